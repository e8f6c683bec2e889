"""Statistics and warnings also cover the processes of `StatefulDataLoader` and nodes, not only of `DataLoader2`."""

import os
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from families import Mapped
from hanging import stalls_reported
from process_checks import FINDS_MEMORY, nothing_is_left  # noqa: F401
from torchdata._observe.outside import stalls
from torchdata._observe.outside.attaching import NoLoaderError, attach
from torchdata.nodes import IterableWrapper, Loader, ParallelMapper
from torchdata.stateful_dataloader import StatefulDataLoader
from waiting import wait_for

pytestmark = [pytest.mark.alone, *FINDS_MEMORY]

NAMES = ["main", "worker process 0", "worker process 1"]


def waiting(path: Path, index: int) -> int:
    while index == 5 and not path.exists():
        time.sleep(0.01)
    return index


def delayed(path: Path) -> Mapped:
    return Mapped(partial(waiting, path), 20)


def test_a_stateful_loader_is_found_and_its_batches_are_counted(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    iterator = iter(StatefulDataLoader(delayed(tmp_path / "there"), 2, num_workers=2, multiprocessing_context="fork"))
    for _ in range(4):
        next(iterator)
    (attached,) = attach(os.getpid())
    stats = attached.stats()
    assert [one.name for one in stats.processes] == NAMES
    assert stats.running
    assert stats.items == 4
    assert sum(worker.items for worker in stats.workers) >= 4
    assert list(iterator)
    with pytest.raises(NoLoaderError):
        attach(os.getpid())


def node_over(items: list[int], there: Path) -> ParallelMapper[int]:
    read = partial(waiting, there)
    return ParallelMapper(IterableWrapper(items), read, 2, method="process", multiprocessing_context="fork")


@pytest.mark.parametrize("family", ["StatefulDataLoader", "ParallelMapper"])
def test_the_main_process_warns_of_the_process_that_sends_no_item(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stalls, "STALL", 0.3)
    there = tmp_path / "there"
    node = node_over(list(range(20)), there)
    loader: Any = Loader(node)
    if family == "StatefulDataLoader":
        loader = StatefulDataLoader(delayed(there), 1, num_workers=2, multiprocessing_context="fork")
    with stalls_reported(there, monkeypatch, "main waits for worker process", "in waiting") as shown:
        assert [int(item) for item in loader] == list(range(20))
    assert "no item has come for" in shown[0]
    if family == "StatefulDataLoader":
        assert "main waits for worker process 1" in shown[0]
        assert "with start method 'fork' the usual cause is a library whose threads do not survive a fork" in shown[0]
        assert "`timeout=` makes that an error, and `on_timeout='restart'` replaces the process" in shown[0]
    node.shutdown()


def test_the_processes_of_a_node_are_found_and_show_their_stacks(tmp_path: Path) -> None:
    loader = Loader(node_over([1, 5, 5], tmp_path / "there"))
    iterator = iter(loader)
    assert next(iterator) == 1
    attached = max(attach(os.getpid()), key=lambda found: len(found.stats().processes))
    # A worker process of a node appears in the statistics only after the process has executed its first call.
    wait_for(lambda: [one.name for one in attached.stats().processes] == NAMES)
    wait_for(lambda: any("in waiting" in stack for name, stack in attached.stacks() if name.startswith("worker")))
    (tmp_path / "there").touch()
    assert list(iterator) == [5, 5]
    loader.shutdown()
    with pytest.raises(NoLoaderError):
        attach(os.getpid())


def test_a_process_for_which_the_main_process_does_not_wait_causes_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stalls, "STALL", 0.5)
    node = node_over([1, 5], tmp_path / "there")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        iterator = iter(Loader(node))
        assert next(iterator) == 1
        time.sleep(1.5)  # The next item is read during this long training step.
        (tmp_path / "there").touch()
        assert list(iterator) == [5]
    node.shutdown()
