"""If a worker overwrites the shared counters, workers that start later still deliver all items."""

import ctypes
import os
import signal
from pathlib import Path

import pytest

import random_scribbles
from process_checks import nothing_is_left  # noqa: F401
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper


class DamagesCounters:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __call__(self, x: int) -> int:
        if x == 7 and not self.mark.exists():
            self.mark.touch()
            found = [first for first, _, kind in random_scribbles._mappings() if kind == "counters"]
            assert found
            for first in found:
                ctypes.memset(first, 255, 256)
            os.kill(os.getpid(), signal.SIGKILL)
        return x


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_that_starts_after_the_counters_were_damaged_delivers_its_items(method: str, tmp_path: Path) -> None:
    pipe = IterableWrapper(range(30)).sharding_filter().map(DamagesCounters(tmp_path / "mark"))
    service = MultiProcessingReadingService(2, method, on_worker_exit="restart")
    with DataLoader2(pipe, reading_service=service) as loader:
        with pytest.warns(RuntimeWarning, match="was killed by SIGKILL") as told:
            assert list(loader) == list(range(30))
        assert sum("has taken its place" in str(one.message) for one in told) == 1
