"""A StatefulDataLoader over pipes of this package resumes at any position of any epoch."""

import io
import pickle
import sys
from collections.abc import Callable
from itertools import cycle, islice
from types import ModuleType
from typing import Any

import pytest
import torch

from resumed import loaded
from torchdata.datapipes.iter import IterableWrapper
from torchdata.stateful_dataloader import StatefulDataLoader, _fitting, _reading

SIZE = 30


def drawn(number: int) -> tuple[int, float]:
    return number, torch.rand(1).item()


def opened(path: str) -> tuple[str, Any]:
    return path, io.BufferedReader(io.BytesIO(path.encode() * 9))


PIPES: dict[str, Callable[[], Any]] = {
    "shuffled": lambda: IterableWrapper(range(SIZE)).shuffle(buffer_size=7).sharding_filter(),
    "read several times": lambda: IterableWrapper(range(SIZE // 3)).shuffle(buffer_size=4).cycle(3).sharding_filter(),
    "with random numbers": lambda: IterableWrapper(range(SIZE)).shuffle().sharding_filter().map(drawn),
    "prefetched": lambda: IterableWrapper(range(SIZE)).shuffle(buffer_size=9).sharding_filter().prefetch(3),
    "unbatched": lambda: IterableWrapper(range(SIZE)).batch(4).shuffle().unbatch().sharding_filter(),
    "streams": lambda: IterableWrapper(["a\n", "b\n", "c\n"]).shuffle().map(opened).readlines().sharding_filter(),
}


def loader_of(name: str, workers: int = 0, context: str = "fork", **settings: Any) -> Any:
    context_of = {"multiprocessing_context": context} if workers else {}
    return StatefulDataLoader(PIPES[name](), batch_size=None, num_workers=workers, **context_of, **settings)


def state_after(loader: Any, epochs: int, items: int) -> tuple[Any, list[Any]]:
    torch.manual_seed(3)
    for _ in range(epochs):
        list(islice(loader, 2))
    iterator = iter(loader)
    list(islice(iterator, items))
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    return state, [*iterator, *loader]


@pytest.mark.parametrize(
    ("name", "items", "workers"),
    [
        *((name, items, 0) for name in PIPES for items in (0, 5, 99)),
        *((name, items, 2) for name, items in zip(PIPES, cycle((0, 5, 99)), strict=False)),
    ],
)
def test_the_rest_of_an_epoch_and_the_next_epoch_are_the_same(name: str, items: int, workers: int) -> None:
    state, rest = state_after(loader_of(name, workers), 1, items)
    later = loaded(loader_of(name, workers), state)
    epochs = 1 if items > SIZE else 2
    assert [item for _ in range(epochs) for item in later] == rest


def test_a_position_is_restored_in_workers_that_were_started_by_spawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers cannot import the function in the pipe, because the program is not in a file, as in a notebook."""
    monkeypatch.setitem(sys.modules, "__main__", main := ModuleType("__main__"))
    exec("def same(number):\n    return number", vars(main))
    monkeypatch.setitem(PIPES, "of a notebook", lambda: PIPES["unbatched"]().map(vars(main)["same"]))
    state, rest = state_after(loader_of("of a notebook", 1), 0, 5)
    assert [*loaded(loader_of("of a notebook", 1, "spawn"), state)] == rest[: SIZE - 5]


@pytest.mark.parametrize(
    ("name", "begun_by", "finished_by"),
    [("shuffled", 0, 2), ("prefetched", 1, 2), ("streams", 2, 0), ("shuffled", 2, 1)],
)
def test_an_epoch_is_finished_by_another_number_of_workers(name: str, begun_by: int, finished_by: int) -> None:
    size = len(list(loader_of(name)))
    state, rest = state_after(loader_of(name, begun_by), 0, 5)
    assert [*loaded(loader_of(name, finished_by), state)] == rest[: size - 5]


@pytest.mark.parametrize(("name", "workers"), [*((name, 0) for name in PIPES), ("shuffled", 2), ("streams", 2)])
def test_a_state_that_counts_items_can_still_be_loaded(
    name: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for module in (_fitting, _reading):
            patch.setattr(module, "source_of", lambda dataset, seed=None: dataset)
        state, rest = state_after(loader_of(name, workers), 0, 5)
    later = loaded(loader_of(name, workers), state)
    assert [*later, *later] == rest


def test_a_damaged_position_of_a_pipe_is_refused() -> None:
    state, _ = state_after(loader_of("shuffled"), 0, 5)
    part = state["_torchdata_rs"][0]["reading"]["dataset_state"]
    part["pipe"] = part["pipe"][:-1] + b"?"
    with pytest.raises(ValueError, match="the state of a pipe is damaged"):
        list(loaded(loader_of("shuffled"), state))
