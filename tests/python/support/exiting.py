"""Squares numbers, and kills its process at chosen numbers."""

import os
import signal
from pathlib import Path


class Exiting:
    def __init__(self, folder: Path, at: dict[int, int]) -> None:
        self.folder, self.at = folder, at

    def __call__(self, number: int) -> int:
        for time_ in range(self.at.get(number, 0)):
            path = self.folder / f"{number}_{time_}"
            if not path.exists():
                path.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return number * number
