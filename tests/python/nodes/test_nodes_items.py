"""Nodes that change, group or select items yield the expected items, and have states with the documented contents."""

import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torchdata.nodes as tn
from kept_state import KeptState
from node_sources import Epochs, at_odds, numbers, outcomes
from torchdata.datapipes.iter import IterableWrapper as Pipe
from torchdata.nodes.map import MapOverBatch


@pytest.mark.parametrize(("count", "size"), [(0, 2), (1, 2), (4, 2), (5, 2), (5, 5), (5, 1), (3, 9)])
def test_batches_are_the_slices_of_the_source(count: int, size: int) -> None:
    slices = [list(range(count))[start : start + size] for start in range(0, count, size)]
    assert list(tn.Batcher(numbers(count), size, drop_last=False)) == slices
    assert list(tn.Batcher(numbers(count), size)) == [one for one in slices if len(one) == size]
    assert list(tn.Unbatcher(tn.IterableWrapper(slices))) == list(range(count))


def test_an_error_in_the_middle_of_a_batch_loses_no_sample_even_in_a_state() -> None:
    node = tn.Batcher(tn.Mapper(numbers(5), at_odds), 4, drop_last=False)
    with pytest.raises(ValueError, match="two"):
        next(node)
    state = pickle.loads(pickle.dumps(node.state_dict()))
    assert list(node) == [[0, 10, 30, 40]]
    node.reset(state)
    assert list(node) == [[0, 10, 30, 40]]
    node.reset(state)
    assert node.state_dict() == state


def test_batches_that_are_tensors_are_taken_apart_and_empty_ones_are_passed_over() -> None:
    rows = tn.Unbatcher(tn.IterableWrapper([torch.arange(2), torch.empty(0), torch.arange(1)]))
    assert [int(row) for row in rows] == [0, 1, 0]


def test_a_state_within_a_batch_reads_it_again_and_one_between_two_does_not() -> None:
    read: list[int] = []

    def noted(batch: list[int]) -> list[int]:
        read.append(batch[0])
        return batch

    node = tn.Unbatcher(tn.Mapper(tn.Batcher(numbers(4), 2), noted))
    states = [(next(node), node.state_dict()) for _ in range(4)]
    for item, state in states:
        read.clear()
        node.reset(state)
        assert list(node) == list(range(item + 1, 4))
        assert read == ([0, 2] if item == 0 else [2] if item < 3 else [])


def test_a_filter_counts_what_it_drops() -> None:
    node = tn.Filter(numbers(7), lambda number: number % 3 == 0)
    assert list(node) == [0, 3, 6]
    assert node.state_dict() == {"source": {"_num_yielded": 7}, "_num_filtered": 4, "_num_yielded": 3}


def test_a_head_leaves_the_rest_unread() -> None:
    def never() -> Iterator[int]:
        yield from (1, 2)
        raise AssertionError("read too far")

    assert list(tn.Header(tn.IterableWrapper(never()), 2)) == [1, 2]
    assert list(tn.Header(numbers(1), 2)) == [0]
    assert list(tn.Header(tn.IterableWrapper(never()), 0)) == []


def test_a_cycle_resets_its_source_so_that_epochs_count() -> None:
    assert list(tn.Cycler(tn.SamplerWrapper(Epochs(1)), max_cycles=3)) == [(0, 0), (1, 0), (2, 0)]
    assert list(tn.Header(tn.Cycler(numbers(2)), 5)) == [0, 1, 0, 1, 0]
    node = tn.Cycler(numbers(1), 1)
    assert list(node) == [0]
    assert list(node) == []


def test_a_cycle_over_nothing_ends() -> None:
    assert list(tn.Cycler(numbers(0))) == []
    assert list(tn.Cycler(tn.Filter(numbers(3), lambda number: False))) == []


def test_an_ended_cycle_stays_ended_even_if_another_pass_would_yield_items() -> None:
    class Uneven:
        def __init__(self) -> None:
            self.sizes = [2, 0, 3]

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.sizes.pop(0)))

    node = tn.Cycler(tn.IterableWrapper(Uneven()))
    assert list(node) == [0, 1]
    assert list(node) == []
    state = node.state_dict()
    node.reset(state)
    assert list(node) == []
    node.shutdown()


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("prebatch", [None, 1, 2, 4])
def test_an_error_of_a_function_is_raised_at_the_position_of_its_result(workers: int, prebatch: int | None) -> None:
    node = tn.ParallelMapper(numbers(5), at_odds, workers, prebatch=prebatch)
    assert outcomes(node) == [0, 10, "two", 30, 40]


class CutOff:
    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, number: int) -> int:
        if number == self.at:
            self.at = -1
            raise KeyboardInterrupt
        return number


@pytest.mark.parametrize("kind", ["map", "filter", "batch"])
def test_an_item_interrupted_by_ctrl_c_is_the_next_item_of_this_loop_and_of_a_state(kind: str) -> None:
    def node(at: int = -1) -> tn.BaseNode[Any]:
        if kind == "filter":
            cut_off = CutOff(at)
            return tn.Filter(numbers(9), lambda number: cut_off(number) % 4 != 2)
        mapper = tn.Mapper(numbers(9), CutOff(at))
        return mapper if kind == "map" else tn.Batcher(mapper, 2, drop_last=False)

    expected = list(node())
    for at in range(9):
        cut_off = node(at)
        got = []
        with pytest.raises(KeyboardInterrupt):
            for item in cut_off:
                got.append(item)
        state = pickle.loads(pickle.dumps(cut_off.state_dict()))
        other = node()
        other.reset(state)
        assert pickle.loads(pickle.dumps(other.state_dict())) == state
        assert got + list(other) == got + list(cut_off) == expected
        other.reset(None)
        assert list(other) == expected


class Generating:
    def __init__(self, at: int) -> None:
        self.cut_off = CutOff(at)

    def __iter__(self) -> Iterator[int]:
        for number in range(9):
            yield self.cut_off(number)


class GeneratingWithState(KeptState, Generating):
    kept = ("number",)
    number = 0

    def __iter__(self) -> Iterator[int]:
        while self.number < 9:
            cut_off = self.cut_off(self.number)
            self.number += 1
            yield cut_off
        self.number = 0


INTERRUPTED: dict[str, Callable[[int], tn.BaseNode[Any]]] = {
    "generator": lambda at: tn.IterableWrapper(Generating(at)),
    "generator with a state": lambda at: tn.IterableWrapper(GeneratingWithState(at)),
    "sampler": lambda at: tn.SamplerWrapper(Generating(at)),
    "pipe": lambda at: tn.from_pipe(Pipe(range(9)).map(CutOff(at))),
    "batches of a pipe": lambda at: tn.from_pipe(Pipe(range(9)).map(CutOff(at)).batch(2)),
    "shuffled pipe": lambda at: tn.from_pipe(Pipe(range(9)).map(CutOff(at)).shuffle(buffer_size=3), seed=3),
}


@pytest.mark.parametrize("kind", INTERRUPTED)
def test_a_source_interrupted_by_ctrl_c_is_read_again_and_loses_no_item(kind: str) -> None:
    expected = [*INTERRUPTED[kind](-1)]
    for at, early in itertools.product(range(9), (0, 3)):
        node = INTERRUPTED[kind](at)
        got: list[Any] = []
        with pytest.raises(KeyboardInterrupt):
            for item in node:
                got.append(item)
                if len(got) == early:
                    node.state_dict()
        if at % 2:
            state = pickle.loads(pickle.dumps(node.state_dict()))
            other = INTERRUPTED[kind](-1)
            other.reset(state)
            assert got + list(other) == expected
        assert got + list(node) == expected


def test_a_state_requested_within_an_item_is_refused_because_it_would_lack_items() -> None:
    def look(number: int) -> int:
        if number == 2:
            with pytest.raises(RuntimeError, match="while this thread computes an item, in a signal handler"):
                loader.state_dict()
        return number

    loader = tn.Loader(tn.Batcher(tn.Mapper(numbers(4), look), 4))
    assert list(loader) == [[0, 1, 2, 3]]


def test_a_one_shot_iterator_that_ctrl_c_interrupted_raises_an_error_instead_of_ending() -> None:
    node = tn.IterableWrapper(iter(Generating(4)))
    with pytest.raises(KeyboardInterrupt):
        list(node)
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match="IterableWrapper cannot continue .* the generator is a one-shot iterator"
        ):
            next(node)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("prebatch", [None, 2])
def test_a_function_cannot_end_the_data_by_accident(workers: int, prebatch: int | None) -> None:
    def ends(_number: int) -> None:
        raise StopIteration

    for node in (
        tn.ParallelMapper(numbers(1), ends, workers, prebatch=prebatch),
        tn.Filter(tn.ParallelMapper(numbers(1), abs, workers, prebatch=prebatch), ends),
    ):
        with pytest.raises(RuntimeError, match="raised StopIteration, which would end the epoch"):
            next(node)


def test_a_function_of_lists_calls_a_function_of_items() -> None:
    assert MapOverBatch(str)([1, 2]) == ["1", "2"]
