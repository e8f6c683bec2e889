"""Shuffler, Collator, Compose and parallel MapStyleWrapper behave as on upstream's main branch."""

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import RandomSampler, SequentialSampler

import torchdata.nodes as tn
from families import Mapped
from node_sources import numbers


def negative(number: int) -> int:
    return -number


GRAPHS: dict[str, Callable[[], tn.BaseNode[Any]]] = {
    "stored": lambda: tn.Shuffler(numbers(17), 5, seed=3),
    "without a seed": lambda: tn.Shuffler(numbers(17), 5),
    "read again": lambda: tn.Shuffler(numbers(17), 5, store_buffer=False),
    "larger than the data": lambda: tn.Shuffler(numbers(7), 50, store_buffer=False),
    "out of order": lambda: tn.Shuffler(
        tn.ParallelMapper(numbers(17), negative, 2, in_order=False), 5, store_buffer=False
    ),
    "read ahead": lambda: tn.Prefetcher(
        tn.Batcher(tn.Shuffler(tn.Prefetcher(numbers(17), 2), 4), 2, drop_last=False), 2
    ),
    "batches": lambda: tn.Unbatcher(tn.Batcher(tn.Shuffler(numbers(17), 5, store_buffer=False), 3, drop_last=False)),
    "collated": lambda: tn.Collator(numbers(9), 2, collate_fn=sum, drop_last=False),
    "map style": lambda: tn.MapStyleWrapper(list(range(9)), SequentialSampler(range(9)), num_workers=2, prebatch=2),
}


@pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS.keys())
def test_a_state_from_any_position_resumes_exactly(make: Callable[[], tn.BaseNode[Any]]) -> None:
    with tn.Loader(make()) as loader:
        states, received = [copy.deepcopy(loader.state_dict())], []
        for item in loader:
            received.append(item)
            states.append(pickle.loads(pickle.dumps(loader.state_dict())))
    for count, state in enumerate(states[:-1]):
        with tn.Loader(make()) as loader:
            loader.load_state_dict(state)
            iterator = iter(loader)
            rest = [next(iterator)]
            again = copy.deepcopy(loader.state_dict())  # The second state belongs to a loader that was itself resumed.
            rest += list(iterator)
            assert sorted(received[:count] + rest) == sorted(received)
        with tn.Loader(make(), restart_on_stop_iteration=False) as loader:
            loader.load_state_dict(again)
            assert sorted([*received[:count], rest[0], *loader]) == sorted(received)
        if make is not GRAPHS["out of order"]:
            assert rest == received[count:]


def test_the_order_is_random_within_the_buffer_and_follows_from_the_seed() -> None:
    loader = tn.Loader(tn.Shuffler(numbers(100), 10, seed=1))
    first = list(loader)
    assert sorted(first) == list(range(100))
    assert first != list(range(100))
    assert all(number - index <= 10 for index, number in enumerate(first))
    assert list(loader) == first
    assert list(tn.Loader(tn.Shuffler(numbers(100), 10, seed=2))) != first
    unseeded = tn.Loader(tn.Shuffler(numbers(100), 10))
    assert list(unseeded) != list(unseeded)


def test_a_copy_of_a_shuffler_has_random_numbers_of_its_own() -> None:
    loader = tn.Loader(tn.Shuffler(numbers(50), 10, seed=1))
    other = copy.copy(loader)
    iterator, another = iter(loader), iter(other)
    assert [next(iterator) for _ in range(20)] == [next(another) for _ in range(20)]


def test_items_in_the_buffer_outlive_an_error_of_the_source() -> None:
    def fails_once(number: int, failed: list[int] = []) -> int:  # noqa: B006
        if number == 6 and not failed:
            failed.append(number)
            raise KeyError(number)
        return number

    node, received = tn.Shuffler(tn.Mapper(numbers(12), fails_once), 4), []
    with pytest.raises(KeyError):
        while True:
            received.append(next(node))
    received += list(node)
    assert sorted(received) == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"buffer_size": 9}, "'buffer_size'"),
        ({"rng_state": [3, [1, 2], None]}, "'rng_state'"),
        ({"buffer": 3}, "'buffer'"),
        ({"num_yielded": -1}, "'num_yielded'"),
        ({"store_buffer": False, "num_yielded": 50}, "its source has only"),
    ],
)
def test_a_damaged_state_of_a_shuffler_is_refused_by_the_name_of_the_field(change: dict[str, Any], text: str) -> None:
    loader = tn.Loader(tn.Shuffler(numbers(17), 5))
    next(iter(loader))
    state = copy.deepcopy(loader.state_dict())
    state["root"] |= change
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match=text):
        iter(loader)


def test_a_collator_without_a_function_collates_as_torch_does() -> None:
    batches = list(tn.Collator(tn.IterableWrapper([{"a": n} for n in range(5)]), 2))
    assert [batch["a"].tolist() for batch in batches] == [[0, 1], [2, 3]]
    node = tn.Collator(numbers(5), 2, collate_fn=tuple, drop_last=False)
    assert isinstance(node, tn.Batcher)
    assert list(tn.Loader(node)) == [(0, 1), (2, 3), (4,)]
    assert len(tn.Loader(node)) == 3


@pytest.mark.parametrize(
    ("items", "note"),
    [([1, None], "None cannot be collated, and item 1"), ([{"a": 1}, {"b": 1}], "All items of a batch need the same")],
)
def test_a_batch_that_cannot_be_collated_is_described_with_the_remedy(items: list[Any], note: str) -> None:
    with pytest.raises((RuntimeError, KeyError)) as caught:
        list(tn.Collator(tn.IterableWrapper(items), 2))
    assert note in caught.value.__notes__[0]


def test_a_batch_is_delivered_after_an_interrupt_of_its_collation() -> None:
    def interrupted(batch: list[int], calls: list[int] = []) -> tuple[int, ...]:  # noqa: B006
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return tuple(batch)

    loader = tn.Loader(tn.Collator(numbers(5), 2, collate_fn=interrupted, drop_last=False))
    iterator = iter(loader)
    assert next(iterator) == (0, 1)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    state = copy.deepcopy(loader.state_dict())
    assert list(iterator) == [(2, 3), (4,)]
    loader.load_state_dict(state)
    assert list(loader) == [(2, 3), (4,)]


def test_a_stop_iteration_of_a_collate_function_is_not_the_end() -> None:
    def stops(batch: list[int]) -> Iterator[int]:
        return next(iter(()))

    with pytest.raises(RuntimeError, match="collate_fn of Collator raised StopIteration"):
        list(tn.Collator(numbers(4), 2, collate_fn=stops))


def test_composed_functions_are_called_in_order_and_pickle() -> None:
    composed = pickle.loads(pickle.dumps(tn.Compose([int, negative, str])))
    assert list(tn.Mapper(tn.IterableWrapper(["1", "2"]), composed)) == ["-1", "-2"]
    assert repr(tn.Compose([int])) == "Compose([<class 'int'>])"
    with pytest.raises(ValueError, match="at least one function"):
        tn.Compose([])
    with pytest.raises(TypeError, match=r"Compose: fns\[1\]"):
        tn.Compose([int, 3])  # type: ignore[list-item]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 1, "method": "process"}])
def test_a_map_style_wrapper_takes_the_arguments_of_a_parallel_mapper(options: dict[str, Any]) -> None:
    if options.get("method"):
        options = {**options, "multiprocessing_context": "fork"}
    squares = Mapped(lambda index: index * index, 9)
    with tn.Loader(tn.MapStyleWrapper(squares, SequentialSampler(range(9)), **options)) as loader:
        assert list(loader) == [n * n for n in range(9)]
    shuffled = tn.MapStyleWrapper(squares, RandomSampler(range(9)), in_order=False, **options)
    with tn.Loader(shuffled) as loader:
        assert sorted(loader) == [n * n for n in range(9)]
    with pytest.raises(TypeError, match="in_oder"):
        tn.MapStyleWrapper(squares, SequentialSampler(range(9)), in_oder=False)
