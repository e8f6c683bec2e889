"""`loader.progress()`: a progress bar for an epoch, with the item rate and the waiting time.

Role: wraps the loader's iterator in the main process. The bar is drawn by tqdm or rich. The loader counts the waiting
times, and the bar reads them from time to time. Outside terminals and notebooks, nothing is drawn, and items have no
additional cost.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator
from typing import IO, Generic, Protocol, TypeVar

from torchdata._observe.stats.model import LoaderStats
from torchdata._optional import optional_import

__all__ = ["ProgressBar"]

T_co = TypeVar("T_co", covariant=True)
_BACKENDS = ("tqdm", "rich")


class _Bar(Protocol):
    """An object that draws a progress bar."""

    def advance(self, items: int, words: str | None) -> None: ...

    def close(self) -> None: ...


class _Loader(Protocol[T_co]):
    """The part of a loader that a progress bar needs."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[T_co]: ...

    def stats(self, since: LoaderStats | None = None) -> LoaderStats: ...


class ProgressBar(Generic[T_co]):
    """Reads an epoch and shows its progress; see `DataLoader2.progress`. Iterating over this object begins an epoch,
    and its `len` is the loader's length."""

    def __init__(
        self,
        loader: _Loader[T_co],
        *,
        description: str = "",
        file: IO[str] | None = None,
        interval: float = 0.5,
        backend: str | None = None,
    ) -> None:
        if backend not in (None, *_BACKENDS):
            raise ValueError(f'progress: backend is "tqdm", "rich" or None, not {backend!r}')
        if isinstance(interval, bool) or not isinstance(interval, (int, float)) or not interval > 0:
            raise ValueError(f"progress: interval is a positive number of seconds, not {interval!r}")
        self._loader = loader
        self._description = description
        self._file = file
        self._interval = interval
        self._backend = backend

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[T_co]:
        items = iter(self._loader)
        file = sys.stderr if self._file is None else self._file
        bar = self._bar(file) if file is not None and _is_watched(file) else None
        return items if bar is None else self._shown(items, bar)

    def _bar(self, file: IO[str]) -> _Bar | None:
        backend = self._backend
        if backend is None:
            backend = next((one for one in _BACKENDS if importlib.util.find_spec(one) is not None), None)
        if backend is None:
            return None
        try:
            total = len(self._loader)
        except TypeError:  # the length is unknown
            total = None
        return (_Tqdm if backend == "tqdm" else _Rich)(total, self._description, file)

    def _shown(self, items: Iterator[T_co], bar: _Bar) -> Iterator[T_co]:
        last, looked, count = self._loader.stats(), time.monotonic(), 0
        try:
            for item in items:
                yield item
                count += 1
                now = time.monotonic()
                if now - looked >= self._interval:
                    stats = self._loader.stats(last)
                    share = stats.loading if stats.loading is not None else stats.waiting
                    bar.advance(count, f"{100 * share:.0f} % waiting")
                    last, looked, count = self._loader.stats(), now, 0
        finally:
            bar.advance(count, None)
            bar.close()


def _is_watched(file: IO[str]) -> bool:
    """Returns whether a terminal or a notebook displays the output immediately."""
    kernel = sys.modules.get("ipykernel.iostream")
    return file.isatty() or (kernel is not None and isinstance(file, kernel.OutStream))


class _Tqdm:
    def __init__(self, total: int | None, description: str, file: IO[str]) -> None:
        library = optional_import("tqdm", extra="progress", needed_by="progress")
        self._bar = library.tqdm(
            total=total, desc=description or None, file=file, unit="item", dynamic_ncols=True, mininterval=0.0
        )

    def advance(self, items: int, words: str | None) -> None:
        if words is not None:
            self._bar.set_postfix_str(words, refresh=False)
        self._bar.update(items)

    def close(self) -> None:
        self._bar.close()


class _Rich:
    def __init__(self, total: int | None, description: str, file: IO[str]) -> None:
        progress = optional_import("rich.progress", extra="top", needed_by="progress")
        console = optional_import("rich.console", extra="top", needed_by="progress")
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[speed]} {task.fields[waits]}"),
            progress.TimeRemainingColumn(),
            console=console.Console(file=file),
        )
        self._task = self._progress.add_task(description, total=total, speed="", waits="")
        self._began, self._count = time.monotonic(), 0
        self._progress.start()

    def advance(self, items: int, words: str | None) -> None:
        self._count += items
        speed = self._count / max(time.monotonic() - self._began, 1e-9)
        waits = {} if words is None else {"waits": words}
        self._progress.update(self._task, advance=items, speed=f"{speed:.4g} items/s", **waits)

    def close(self) -> None:
        self._progress.stop()
