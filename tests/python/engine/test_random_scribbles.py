"""Random or damaged bytes in shared memory (see `random_scribbles`) lead to correct items or to an error."""

import ctypes
import os
import signal
import threading
import warnings
from pathlib import Path

import pytest

import random_scribbles
from process_checks import FINDS_MEMORY, loader, no_earlier_loader, nothing_is_left  # noqa: F401
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

pytestmark = FINDS_MEMORY

PAGE, ROLE, PIPES = 4096, 4, 28


def test_random_bytes_in_shared_memory_lead_to_correct_items_or_an_error_and_everything_is_released():
    for seed in range(1, 16):
        random_scribbles.check(random_scribbles.Plan(seed))


def damage(offset, value):
    (board,) = [first for first, _, kind in random_scribbles._mappings() if kind == "counters"]
    ctypes.c_uint32.from_address(board + PAGE + offset).value = value


@pytest.mark.parametrize(("offset", "action"), [(ROLE, "always"), (PIPES, "error")])
def test_a_damaged_page_of_counters_is_left_out_with_one_warning_and_the_loader_ends(offset, action, monkeypatch):
    errors = []
    monkeypatch.setattr(threading, "excepthook", lambda one: errors.append(one.exc_value))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter(action)
        dl = loader(IterableWrapper(range(20)).sharding_filter())
        items = iter(dl)
        got = [next(items), next(items)]  # after these two items, both workers have a page
        damage(offset, 2**32 - 1)
        shown = dl.stats()
        dl.diagnose()
        got += items
        dl.shutdown()
        assert dl.stats().main is None
    assert got == list(range(20))
    assert [process.role for process in shown.processes] == ["worker", "worker"]
    (warning,) = errors if action == "error" else [one.message for one in warned]
    assert str(warning).startswith("the statistics of this loader are incomplete: page 0 of the counters")


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
        with pytest.warns(RuntimeWarning, match="was killed by SIGKILL") as warned:
            assert list(loader) == list(range(30))
        assert sum("A new process replaced it" in str(one.message) for one in warned) == 1
