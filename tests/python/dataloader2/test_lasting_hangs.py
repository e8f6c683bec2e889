"""Between two epochs, a loader with pipes that keep state can be saved even if a worker exits or hangs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from hanging import kill_only_hung
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper


def cached(dispatches: bool) -> Any:
    pipe = IterableWrapper(range(20))
    shared = pipe.sharding_round_robin_dispatch() if dispatches else pipe.sharding_filter()
    return shared.map(int).in_memory_cache()


def loader(dispatches: bool, method: str) -> DataLoader2[Any]:
    service = MultiProcessingReadingService(
        3, method, timeout=0.5, on_timeout="restart", on_worker_exit="restart", worker_prefetch_cnt=0
    )
    return DataLoader2(cached(dispatches), reading_service=service)


@pytest.mark.filterwarnings("ignore:.*worker process")
@pytest.mark.parametrize(
    ("number", "dispatches", "method"),
    [
        (signal.SIGSTOP, False, "fork"),
        (signal.SIGSTOP, True, "fork"),
        (signal.SIGKILL, True, "fork"),
        (signal.SIGKILL, False, "spawn"),
    ],
)
def test_a_state_can_be_taken_before_the_first_item_of_an_epoch_that_a_worker_has_not_begun(
    number: signal.Signals, dispatches: bool, method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kill_only_hung(monkeypatch, tmp_path)
    with loader(dispatches, method) as run:
        run.seed(3)
        assert sorted(run) == list(range(20))
        os.kill(run.reading_service._children.pids[1], number)
        epoch = iter(run)
        state = run.state_dict()
        assert sorted(epoch) == list(range(20))
    with loader(dispatches, method) as other:
        other.load_state_dict(state)
        for _ in range(2):
            assert sorted(other) == list(range(20))
