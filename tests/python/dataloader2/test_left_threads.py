"""If a loop leaves an epoch early, threads that still read ahead in this epoch do not disturb the next epoch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from random_graphs.users import unpinned
from resuming import begun, epochs_of
from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from waiting import wait_for

pytestmark = pytest.mark.alone


class SlowToEnd(IterDataPipe):
    """A pipe that waits once after its last item, and creates a file when it begins to wait."""

    def __init__(self, source: Any, said: Path) -> None:
        self.source, self.said = source, said

    def __iter__(self) -> Any:
        yield from self.source
        if not self.said.exists():
            self.said.touch()
            time.sleep(0.3)


SERVICES: dict[str, Any] = {
    "no service": lambda: None,
    "in process": InProcessReadingService,
    "in process, ahead": lambda: InProcessReadingService(prefetch_cnt=2),
    "in workers": lambda: MultiProcessingReadingService(1, worker_prefetch_cnt=0, main_prefetch_cnt=0),
    "over workers": lambda: MultiProcessingReadingService(2),
}


def pipeline(service: str, said: Path) -> Any:
    pipe: Any = IterableWrapper(range(6)).shuffle().sharding_filter()
    if service == "over workers":  # all pipes from here on run in the main process
        pipe = pipe.pin_memory(pin_memory_fn=unpinned).shuffle()
    return SlowToEnd(pipe, said).cycle(2).prefetch(10)


@pytest.mark.parametrize("service", SERVICES)
def test_a_thread_of_an_abandoned_epoch_takes_no_seeds_of_the_next_one(service: str, tmp_path: Path) -> None:
    said = tmp_path / "said"
    pipe = pipeline(service, said)

    def loader() -> DataLoader2[Any]:
        return begun(DataLoader2(pipe, reading_service=SERVICES[service]()))

    said.touch()
    expected = epochs_of(loader(), 3)
    said.unlink()
    with loader() as made:
        reading = iter(made)
        got = [next(reading) for _ in range(4)]
        wait_for(said.exists)  # when the file exists, the thread is about to begin the second pass of `cycle`
        assert got == expected[0][:4]
        assert [list(made), list(made)] == expected[1:]
