"""`torch.distributed.checkpoint` can save and load loaders, because the state of a loader always has the same keys."""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import SubsetRandomSampler

from process_checks import nothing_is_left  # noqa: F401 - a fixture for all tests here
from random_stateful.datasets import Counting, IteratorAlone, Plain
from random_stateful.orders import IteratorKnows
from resumed import TakesOnce, epochs_of, plain, seed_all
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")


@pytest.fixture(scope="module")
def dcp() -> Any:
    return importlib.import_module("torch.distributed.checkpoint")


class ItsOwnIterator(Plain):
    def __iter__(self) -> ItsOwnIterator:
        self.left = [*self.shard()]
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        return self.left.pop(0)

    def state_dict(self) -> dict[str, Any]:
        return {"left": list(self.left)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = list(state["left"])


class SavesLater(TakesOnce):
    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "window": [{"last": self.position}]} if self.position else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state.get("position", 0)


class ReadsInTensor(Counting):
    def state_dict(self) -> dict[str, Any]:
        return {"reads": torch.tensor(self.reads)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reads = int(state["reads"])


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "map-style": lambda: {"dataset": range(24), "batch_size": 5},
    "shuffled": lambda: {"dataset": range(24), "batch_size": 5, "shuffle": True},
    "single": lambda: {"dataset": range(6), "batch_size": None, "shuffle": True},
    "map-style with a state": lambda: {"dataset": ReadsInTensor(24), "batch_size": 5, "shuffle": True},
    "iterable": lambda: {"dataset": Plain(24), "batch_size": 5},
    "iterable with a state": lambda: {"dataset": TakesOnce(), "batch_size": 2},
    "iterator with a state": lambda: {"dataset": IteratorAlone(24), "batch_size": 5},
    "its own iterator": lambda: {"dataset": ItsOwnIterator(24), "batch_size": 5},
    "another state later": lambda: {"dataset": SavesLater(), "batch_size": 2},
    "subset": lambda: {"dataset": range(24), "sampler": SubsetRandomSampler(range(20)), "batch_size": 6},
    "sampler with a state": lambda: {
        "dataset": range(24), "sampler": StatefulDistributedSampler(range(24), 2, 1), "batch_size": 5
    },
    "sampler's iterator with a state": lambda: {"dataset": range(24), "sampler": IteratorKnows(24), "batch_size": 5},
    "single, sampler's iterator with a state": lambda: {
        "dataset": range(6), "sampler": IteratorKnows(6), "batch_size": None
    },
}  # fmt: skip
WITH_WORKERS = [("map-style", 1), ("iterable", 2), ("iterable with a state", 2), ("iterator with a state", 1)]
#: When a state is saved: after a number of batches, before the first epoch (None), or at the end of an epoch.
MOMENTS: list[Any] = [None, 0, 2, "end"]


def reached(make: Callable[[], Any], moment: Any) -> tuple[Any, Any]:
    loader = make()
    if moment is None:
        return loader, None
    iterator = iter(loader)
    for _ in iterator if moment == "end" else itertools.islice(iterator, moment):
        pass
    return loader, iterator


@pytest.mark.parametrize(("kind", "workers"), [*((kind, 0) for kind in KINDS), *WITH_WORKERS])
def test_a_new_loader_resumes_from_a_checkpoint_of_the_loader_object(
    kind: str, workers: int, tmp_path: Path, dcp: Any
) -> None:
    def make() -> Any:
        return StatefulDataLoader(num_workers=workers, **KINDS[kind]())

    for moment in MOMENTS:
        seed_all()
        loader, iterator = reached(make, moment)
        dcp.save({"loader": loader}, checkpoint_id=tmp_path / str(moment))
        rest = [] if moment in (None, "end") else [[plain(batch) for batch in iterator]]
        wanted = [*rest, *epochs_of(loader, 2)]
        del loader, iterator
        seed_all()
        later = make()
        dcp.load({"loader": later}, checkpoint_id=tmp_path / str(moment))
        assert epochs_of(later, len(wanted)) == wanted, moment


@pytest.mark.parametrize(
    ("kind", "workers"), [*((kind, 0) for kind in KINDS if kind != "another state later"), *WITH_WORKERS]
)
def test_the_keys_of_a_state_are_the_same_before_inside_and_after_an_epoch(kind: str, workers: int, dcp: Any) -> None:
    def make() -> Any:
        return StatefulDataLoader(num_workers=workers, **KINDS[kind]())

    keys = [set(dcp._nested_dict.flatten_state_dict(reached(make, moment)[0].state_dict())[0]) for moment in MOMENTS]
    if kind == "its own iterator":  # The loader detects this state only after the first `iter()`.
        keys = keys[1:]
    assert all(one == keys[0] for one in keys)
    [ours] = [key for key in keys[0] if "_torchdata_rs" in key]
    assert ours == "_torchdata_rs"


def test_the_state_of_a_new_loader_begins_neither_an_epoch_nor_workers() -> None:
    class Beginning(TakesOnce):
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("the iterator began an epoch")

    class Ordering(IteratorKnows):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("the iterator began an epoch")

    for workers in (0, 2):
        before = multiprocessing.active_children()
        StatefulDataLoader(Beginning(), num_workers=workers).state_dict()
        StatefulDataLoader(range(6), sampler=Ordering(6), num_workers=workers).state_dict()
        assert multiprocessing.active_children() == before
