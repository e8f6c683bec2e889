"""Damaged states are refused immediately with an error that names the field, and never cause endless reading."""

import copy
import functools
import operator
import random
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torchdata.nodes as tn
from node_sources import Epochs, numbers, same
from node_streams import TakesOnce
from torchdata.datapipes.iter import IterableWrapper as PipeOf


def without_end() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


class Endless:
    def __iter__(self) -> Iterator[int]:
        return without_end()


def weighted() -> tn.BaseNode[Any]:
    sources = {"a": numbers(6), "b": numbers(4)}
    return tn.MultiNodeWeightedSampler(sources, {"a": 1.0, "b": 2.0}, rank=0, world_size=1)


CASES: list[tuple[Callable[[], tn.BaseNode[Any]], list[str], list[Any]]] = [
    (lambda: numbers(9), ["_num_yielded"], [-1, 10**30, "2", None, 1.5, True]),
    (lambda: tn.IterableWrapper(TakesOnce(9)), ["_started"], [3, "no"]),
    (lambda: tn.SamplerWrapper(Epochs(9)), ["_epoch"], ["0", None, 10**30]),
    (lambda: tn.SamplerWrapper(Epochs(9)), ["_started"], [1]),
    (lambda: tn.Header(numbers(9), 5), ["_num_yielded"], [-1, 6, 10**9]),
    (lambda: tn.Cycler(numbers(9), 3), ["_num_cycles"], [-1, 3, 10**9]),
    (lambda: tn.Filter(numbers(9), same), ["_num_filtered"], [-1, "1"]),
    (lambda: tn.Unbatcher(tn.Batcher(numbers(9), 3)), ["batch_idx"], [-1, 4, 10**9]),
    (lambda: tn.Unbatcher(tn.Batcher(numbers(9), 3)), ["source", "source", "_num_yielded"], [-1]),
    (lambda: tn.Prefetcher(tn.IterableWrapper(Endless()), 2, 4), ["steps_since_snapshot"], [-1, 10**9, 2**62, "1"]),
    (lambda: tn.Prefetcher(numbers(9), 2), ["num_yielded"], [-1, "1"]),
    (lambda: tn.ParallelMapper(numbers(9), same, 2), ["it_state", "steps_since_snapshot"], [-1, 10**9]),
    (lambda: tn.ParallelMapper(numbers(9), same, 2), ["it_state"], [None, 3]),
    (weighted, ["epoch"], [-1, 10**9, 2**62]),
    (weighted, ["num_yielded"], [-1]),
    (weighted, ["weighted_sampler_state", "offset"], [-1, 1001, 10**9]),
    (weighted, ["weighted_sampler_state", "g_state"], [3, torch.zeros(3), torch.zeros(5056, dtype=torch.uint8)]),
    (weighted, ["weighted_sampler_state"], [None, 3]),
    (weighted, ["datasets_exhausted"], [{"a": True}, 3, {"a": 1, "b": 0}]),
    (weighted, ["dataset_node_states"], [{"a": None}, []]),
    (
        lambda: tn.MultiNodeRoundRobinSampler({"a": numbers(3), "b": numbers(3)}),
        ["current_dataset_index"],
        [-1, 2, 10**9],
    ),
    (lambda: tn.from_pipe(PipeOf(range(9)), seed=1), ["iterable", "epoch"], [-1, "1", 10**30]),
]


def saved(make: Callable[[], tn.BaseNode[Any]], items: int) -> dict[str, Any]:
    with tn.Loader(make()) as loader:
        iterator = iter(loader)
        for _ in range(items):
            next(iterator)
        return copy.deepcopy(loader.state_dict())


@pytest.mark.parametrize(("make", "path", "values"), CASES, ids=["/".join(path) for _, path, _ in CASES])
def test_a_number_out_of_range_is_refused_by_an_error_that_names_its_field(
    make: Callable[[], tn.BaseNode[Any]], path: list[str], values: list[Any]
) -> None:
    for value in values:
        state = saved(make, 2)
        field = functools.reduce(operator.getitem, path[:-1], state["root"])
        field[path[-1]] = value
        with tn.Loader(make()) as loader:
            loader.load_state_dict(state)
            with pytest.raises(ValueError, match=path[-1]):
                next(iter(loader))
            loader.load_state_dict(saved(make, 2))  # the refused state has not changed the loader
            assert next(iter(loader)) is not None


def test_a_field_that_is_missing_raises_an_error_that_names_it() -> None:
    for make, path, _ in CASES:
        state = saved(make, 2)
        field = functools.reduce(operator.getitem, path[:-1], state["root"])
        if path[-1] in ("_started", "num_yielded") or path[-1] not in field:
            continue  # States of torchdata 0.11 lack this field.
        del field[path[-1]]
        with tn.Loader(make()) as loader:
            loader.load_state_dict(state)
            with pytest.raises(ValueError, match=rf"the state has no '{path[-1]}'|{path[-1]}"):
                iter(loader)


@pytest.mark.parametrize("garbage", [{}, [], None, 3, {"root": {}}, {"root": {}, "num_yielded": -1}])
def test_loading_refuses_objects_that_are_not_states_of_a_loader(garbage: Any) -> None:
    loader = tn.Loader(numbers(3))
    with pytest.raises(ValueError, match=r"Loader: (a state must be|the state has no|'num_yielded')"):
        loader.load_state_dict(garbage)
    assert list(loader) == [0, 1, 2]


def test_a_whole_checkpoint_is_refused_with_the_part_to_load() -> None:
    loader = tn.Loader(numbers(3))
    with pytest.raises(ValueError, match=r"load the part of it that is one: load_state_dict\(state\['data'\]\)"):
        loader.load_state_dict({"model": {}, "data": loader.state_dict(), "step": 3})


GRAPHS: list[Callable[[], tn.BaseNode[Any]]] = [
    lambda: tn.Prefetcher(tn.Batcher(tn.Mapper(numbers(20), same), 3, drop_last=False), 2),
    lambda: tn.ParallelMapper(tn.SamplerWrapper(Epochs(12)), same, 2, prebatch=2),
    lambda: tn.ParallelMapper(numbers(20), same, 2, in_order=False, snapshot_frequency=3),
    lambda: tn.Unbatcher(tn.Batcher(tn.Filter(numbers(20), bool), 4)),
    lambda: tn.Header(tn.Cycler(tn.IterableWrapper(TakesOnce(5)), 4), 18),
    lambda: tn.Prefetcher(weighted(), 2, snapshot_frequency=3),
    lambda: tn.Header(tn.MultiNodeRoundRobinSampler({"a": tn.Prefetcher(numbers(5), 2), "b": numbers(3)}), 20),
    lambda: tn.from_pipe(tn.to_pipe(tn.Prefetcher(numbers(9), 2)).map(same), seed=1),
]
VALUES = [-1, 0, 1, 2, 7, 10**9, 2**63 - 1, -(10**9), 1.5, "x", None, True, [], {}, [1, 10**12], b"x"]


def fields_of(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(state, dict) and not state.keys() & {"position", "pipes"}:
        for key, value in state.items():
            if not isinstance(value, dict) or "position" not in value:
                yield (*path, key), value
                yield from fields_of(value, (*path, key))


@pytest.mark.filterwarnings("ignore:SamplerWrapper. the first")
def test_mutated_states_load_or_raise_an_error_without_a_hang_or_much_memory() -> None:
    chance, refused, loaded = random.Random(1), 0, 0
    saves = [(make, [saved(make, items) for items in (0, 1, 3, 5)]) for make in GRAPHS]
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    for _ in range(600):
        make, states = chance.choice(saves)
        state = copy.deepcopy(chance.choice(states))
        for _ in range(chance.randint(1, 2)):
            path, _ = chance.choice(list(fields_of(state)))
            field = functools.reduce(operator.getitem, path[:-1], state)
            if chance.random() < 0.1:
                del field[path[-1]]
            else:
                field[path[-1]] = chance.choice(VALUES)
        loader = tn.Loader(make())
        try:
            loader.load_state_dict(state)
            assert len(list(loader)) <= 40
            loaded += 1
        except ValueError:
            refused += 1
        finally:
            loader.shutdown()
    assert refused > 240
    assert loaded > 60
    assert time.monotonic() - began < 300  # A hang would take longer, because loading a state takes milliseconds.
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 256 * 1024, f"{grown // 1024} MiB more"
