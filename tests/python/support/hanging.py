"""Makes a process hang at an item in different ways."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


def stop(_folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def sleep(_folder: Path) -> None:
    time.sleep(1e8)


def lock(_folder: Path) -> None:
    held, is_held = threading.Lock(), threading.Event()

    def hold() -> None:
        with held:
            is_held.set()
            time.sleep(1e8)

    threading.Thread(target=hold, daemon=True).start()
    is_held.wait()
    held.acquire()


def loop(_folder: Path) -> None:
    re.match(r"(a+)+$", "a" * 60 + "b")


def fifo(folder: Path) -> None:
    path = folder / f"fifo{os.getpid()}_{time.monotonic_ns()}"
    os.mkfifo(path)
    with path.open() as file:
        file.read()


WAYS = {way.__name__: way for way in (stop, sleep, lock, loop, fifo)}


class Hanging:
    def __init__(self, way: str, folder: Path | str, times: int = 1, name: str = "") -> None:
        self.way, self.folder, self.times, self.name = way, str(folder), times, name

    def __call__(self) -> None:
        for number in range(self.times):
            try:
                with (Path(self.folder) / f"hung{self.name}{number}").open("x") as file:
                    file.write(str(os.getpid()))
            except FileExistsError:
                continue
            except FileNotFoundError:  # The folder is missing once the test has ended.
                return
            WAYS[self.way](Path(self.folder))
            return


class HangingAt:
    def __init__(self, way: str, at: int, folder: Path | str, times: int = 1) -> None:
        self.at, self.hang = at, Hanging(way, folder, times)

    def __call__(self, item: int) -> int:
        if item == self.at:
            self.hang()
        return item


def hung_in(folder: Path) -> set[int]:
    texts = [path.read_text() for path in folder.rglob("hung*")]
    return {int(text) for text in texts if text}


def kill_only_hung(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Allows the package to kill a process only if it hangs, not if it is merely slow."""
    from torchdata._engine.workers.hangs import Hangs

    is_over = Hangs._is_over

    def is_over_and_hung(self: Hangs, child: int, *waited: Any) -> bool:
        has_hung = self._is_stopped(child) or self._members.processes[child].pid in hung_in(folder)
        return has_hung and is_over(self, child, *waited)

    monkeypatch.setattr(Hangs, "_is_over", is_over_and_hung)


class ClockOfHangs:
    def __init__(self, folder: Path) -> None:
        self.folder, self.seconds, self.read_at = folder, 0.0, time.monotonic()

    def __call__(self) -> float:
        now = time.monotonic()
        if hung_in(self.folder):
            self.seconds += now - self.read_at
        self.read_at = now
        return self.seconds


@contextlib.contextmanager
def stalls_reported(there: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Iterator[list[str]]:
    shown: list[str] = []

    def report(message: Warning | str, category: type[Warning], *_rest: object) -> None:
        if category.__name__ == "StallWarning" and all(word in str(message) for word in words):
            shown.append(str(message))
            there.touch()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", report)
        yield shown
