"""If Ctrl-C interrupts a loop that waits for an item, and the loop continues, the loop receives this item next."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from families import Mapped
from torchdata import nodes
from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper
from torchdata.stateful_dataloader import StatefulDataLoader

pytestmark = pytest.mark.alone

ITEMS, AT = 20, 7


class Pressing:
    def __init__(self, main: int, requested: socket.socket, arrived: socket.socket) -> None:
        self.main, self.requested, self.arrived = main, requested, arrived

    def __call__(self, item: int) -> int:
        if item == AT:
            self.requested.recv(1)
            os.kill(self.main, signal.SIGINT)
            self.arrived.recv(1)
        return item


def nodes_over(press: Pressing, **options: Any) -> Any:
    return nodes.Loader(nodes.ParallelMapper(nodes.IterableWrapper(range(ITEMS)), press, **options))


def pipe(press: Pressing) -> Any:
    return IterableWrapper(range(ITEMS)).sharding_filter().map(press)


LOADERS: dict[str, Callable[[Pressing], Any]] = {
    "workers of DataLoader2": lambda press: DataLoader2(
        pipe(press), reading_service=MultiProcessingReadingService(1, "fork", worker_prefetch_cnt=0)
    ),
    "a thread of DataLoader2": lambda press: DataLoader2(
        pipe(press).prefetch(1), reading_service=InProcessReadingService()
    ),
    "workers of StatefulDataLoader": lambda press: StatefulDataLoader(
        Mapped(press, ITEMS), batch_size=None, num_workers=1, prefetch_factor=1, multiprocessing_context="fork"
    ),
    "threads of nodes": lambda press: nodes_over(press, num_workers=1, method="thread", max_concurrent=1),
    "processes of nodes": lambda press: nodes_over(
        press, num_workers=1, method="process", multiprocessing_context="fork", max_concurrent=1
    ),
    "a node that reads ahead": lambda press: nodes.Loader(
        nodes.Prefetcher(nodes.Mapper(nodes.IterableWrapper(range(ITEMS)), press), 1)
    ),
}


@pytest.fixture
def sockets() -> Iterator[tuple[Pressing, socket.socket]]:
    (requested, request), (arrived, waking) = socket.socketpair(), socket.socketpair()
    waking.setblocking(False)
    handler, before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.set_wakeup_fd(waking.fileno())
    with requested, request, arrived, waking:
        yield Pressing(os.getpid(), requested, arrived), request
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGINT, handler)


@pytest.mark.filterwarnings("ignore:.*use of fork\\(\\) may lead to deadlocks")
@pytest.mark.parametrize("kind", LOADERS)
def test_ctrl_c_during_a_wait_loses_no_item_if_the_loop_continues(
    kind: str, sockets: tuple[Pressing, socket.socket]
) -> None:
    press, request = sockets
    loader = LOADERS[kind](press)
    reading = iter(loader)
    got = [next(reading) for _ in range(AT)]
    with pytest.raises(KeyboardInterrupt):
        request.send(b"1")
        next(reading)
    assert got + list(reading) == list(range(ITEMS))
    if not isinstance(loader, StatefulDataLoader):
        (loader.root if isinstance(loader, nodes.Loader) else loader).shutdown()
