"""`loader.progress()`: a progress bar for an epoch, with the item rate and the waiting time. If the output is neither a
terminal nor a notebook, items are not counted."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import IO, Any, Generic, TypeVar

from torchdata._optional import optional_import

T_co = TypeVar("T_co", covariant=True)


class ProgressBar(Generic[T_co]):
    def __init__(
        self, loader: Any, *, description: str = "", file: IO[str] | None = None, interval: float = 0.5
    ) -> None:
        if isinstance(interval, bool) or not isinstance(interval, (int, float)) or not interval > 0:
            raise ValueError(f"progress: interval must be a positive number of seconds, not {interval!r}")
        self._loader = loader
        self._description = description or None
        self._file = file
        self._interval = interval
        self._tqdm = optional_import("tqdm", extra="progress", needed_by="progress").tqdm

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[T_co]:
        items = iter(self._loader)
        file = sys.stderr if self._file is None else self._file
        return self._shown(items, file) if file is not None and _is_watched(file) else items

    def _shown(self, items: Iterator[T_co], file: IO[str]) -> Iterator[T_co]:
        try:
            total = len(self._loader)
        except TypeError:
            total = None
        bar = self._tqdm(total=total, desc=self._description, file=file, unit="item", dynamic_ncols=True, mininterval=0)
        last, looked, count = self._loader.stats(), time.monotonic(), 0
        try:
            for item in items:
                yield item
                count += 1
                now = time.monotonic()
                if now - looked >= self._interval:
                    stats = self._loader.stats(last)
                    share = stats.loading if stats.loading is not None else stats.waiting
                    bar.set_postfix_str(f"{100 * share:.0f} % waiting", refresh=False)
                    bar.update(count)
                    last, looked, count = self._loader.stats(), now, 0
        finally:
            bar.update(count)
            bar.close()


def _is_watched(file: IO[str]) -> bool:
    kernel = sys.modules.get("ipykernel.iostream")
    return file.isatty() or (kernel is not None and isinstance(file, kernel.OutStream))
