"""A loader rereads a stream without a state up to the saved position, and raises an error if the items differ."""

import datetime
import json
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import resuming
from resuming import begun, continued, stopped
from torchdata.dataloader2 import DataLoader2
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.map import SequenceWrapper

POSITIONS = 2, 5, 9, 15
BY_WORKERS = {0: POSITIONS, 1: (5,), 2: (9,)}


class InRandomOrder:
    def __init__(self, seed: int | None = None, length: int = 20) -> None:
        self.seed, self.length = seed, length

    def __iter__(self) -> Iterator[Any]:
        yield from random.Random(self.seed).sample(range(100_000), self.length)


class Sized(InRandomOrder):
    def __len__(self) -> int:
        return self.length


class ShuffledGlobally(InRandomOrder):
    def __iter__(self) -> Iterator[Any]:
        order = [*range(self.length)]
        random.shuffle(order)
        return iter(order)


class Augmented(InRandomOrder):
    def __iter__(self) -> Iterator[Any]:
        for number in range(self.length):
            yield number, random.random()


class Undigestible(InRandomOrder):
    def __iter__(self) -> Iterator[Any]:
        yield from ({number} for number in range(self.length))


def wrapped(stream: Any) -> Any:
    return IterableWrapper(stream, deepcopy=False)


def filtered_and_mapped(stream: Any) -> Any:
    return IterableWrapper(stream).sharding_filter().map(str)


def loader_over(pipe: Any, workers: int) -> DataLoader2[Any]:
    return DataLoader2(pipe, num_workers=workers)


def state_and_rest(pipe: Any, workers: int, items: int) -> tuple[dict[str, Any], list[Any]]:
    return continued(loader_over(pipe, workers), items)[1:]


def resumed(pipe: Any, workers: int, state: dict[str, Any], strict: bool = True) -> list[Any]:
    return resuming.resumed(loader_over(pipe, workers), state, strict=strict)[0]


@pytest.mark.parametrize(("make", "stream"), [(wrapped, Sized), (filtered_and_mapped, InRandomOrder)])
def test_an_unseeded_order_is_refused_in_the_main_process(make: Callable[[Any], Any], stream: Any) -> None:
    for items in POSITIONS:
        state, rest = state_and_rest(make(stream()), 0, items)
        words = f"does not repeat itself.* first {items} items of the {stream.__name__}"
        with pytest.raises(RuntimeError, match=words):
            resumed(make(stream()), 0, state)
        assert len(resumed(make(stream()), 0, state, strict=False)) == len(rest)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_sampler_without_a_length_in_an_unseeded_order_is_refused(workers: int) -> None:
    def pipe(seed: int | None) -> Any:
        return SequenceWrapper(range(100_000)).sample_by(InRandomOrder(seed)).sharding_filter()

    for items in BY_WORKERS[workers]:
        state, rest = state_and_rest(pipe(3), workers, items)
        assert resumed(pipe(3), workers, state) == rest
        if workers < 2:  # With several workers, different orders raise another error.
            state, rest = state_and_rest(pipe(None), workers, items)
            with pytest.raises(RuntimeError, match="does not repeat itself"):
                resumed(pipe(None), workers, state)
            assert len(resumed(pipe(None), workers, state, strict=False)) == len(rest)


def test_a_generator_function_and_a_data_set_in_an_unseeded_order_are_refused() -> None:
    def shuffled() -> Iterator[Any]:
        yield from InRandomOrder()

    state, _ = state_and_rest(wrapped(shuffled), 0, 5)
    with pytest.raises(RuntimeError, match="generator function shuffled"):
        resumed(wrapped(shuffled), 0, state)
    _, state = stopped(DataLoader2.from_dataset(InRandomOrder(), batch_size=2), 1)
    with pytest.raises(RuntimeError, match="does not repeat itself"):
        resuming.resumed(DataLoader2.from_dataset(InRandomOrder(), batch_size=2), state)


def test_a_worker_refuses_an_unseeded_order_after_its_snapshot(often: None) -> None:
    _, state = stopped(loader_over(wrapped(InRandomOrder(length=1500)), 1), 1000)
    with pytest.raises(RuntimeError, match="items of the InRandomOrder given to IterableWrapper differ from"):
        resumed(wrapped(InRandomOrder(length=1500)), 1, state)
    assert len(resumed(wrapped(InRandomOrder(length=1500)), 1, state, strict=False)) == 500


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("stream", [lambda: InRandomOrder(3), Undigestible], ids=["seeded", "undigestible"])
def test_a_stream_that_repeats_itself_resumes_silently(workers: int, stream: Any) -> None:
    for items in BY_WORKERS[workers]:
        state, rest = state_and_rest(filtered_and_mapped(stream()), workers, items)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert resumed(filtered_and_mapped(stream()), workers, state) == rest


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("stream", [ShuffledGlobally, Augmented])
def test_a_stream_that_draws_from_the_global_generators_draws_the_same_again(workers: int, stream: Any) -> None:
    for items in BY_WORKERS[workers]:
        state, rest = state_and_rest(wrapped(stream()), workers, items)
        assert resumed(wrapped(stream()), workers, state) == rest


def drawing_between(stream: Any) -> tuple[dict[str, Any], list[Any]]:
    loader = loader_over(wrapped(stream), 0)
    iterator = iter(loader)
    for _ in range(7):
        next(iterator)
        random.random()
    return loader.state_dict(), list(iterator)


def test_a_global_shuffle_resumes_although_the_program_draws_between_the_items() -> None:
    state, rest = drawing_between(ShuffledGlobally())
    assert resumed(wrapped(ShuffledGlobally()), 0, state) == rest


def test_augmented_items_warn_if_the_program_draws_between_them_and_keep_their_positions() -> None:
    state, _ = drawing_between(Augmented())
    with pytest.warns(RuntimeWarning, match="items of the Augmented given to IterableWrapper contain other numbers"):
        assert [number for number, _ in resumed(wrapped(Augmented()), 0, state)] == [*range(7, 20)]


def test_states_of_resumed_epochs_are_compared_as_well() -> None:
    first, _ = state_and_rest(wrapped(InRandomOrder(3)), 0, 5)
    _, second, rest = continued(begun(loader_over(wrapped(InRandomOrder(3)), 0), first), 4)
    assert resumed(wrapped(InRandomOrder(3)), 0, second) == rest
    with pytest.raises(RuntimeError, match="first 9 items"):
        resumed(wrapped(InRandomOrder(4)), 0, second, strict=True)


def test_a_stream_that_raises_at_a_sampled_item_continues_after_it() -> None:
    class Raising:
        def __init__(self) -> None:
            self.number = 0

        def __iter__(self) -> Iterator[Any]:
            return self

        def __next__(self) -> int:
            self.number += 1
            if self.number in (1, 3, 6, 200):
                raise ValueError(self.number)
            if self.number > 400:
                raise StopIteration
            return self.number

    iterator, found = iter(wrapped(Raising())), []
    while len(found) < 400:
        try:
            found.append(next(iterator))
        except ValueError as error:
            found.append(-error.args[0])
    assert found == [-number if number in (1, 3, 6, 200) else number for number in range(1, 401)]
    assert next(iterator, None) is None


def test_sequences_are_not_sampled() -> None:
    for data in ([1, 2], (1, 2), range(2), "ab", {1: 2}):
        pipe = IterableWrapper(data)
        next(iter(pipe))
        assert "digest" not in pipe.state_dict()


@pytest.mark.parametrize("name", ["IterableWrapper", "SamplerWrapper"])
def test_a_node_warns_of_an_unseeded_order_and_of_no_seeded_one(name: str) -> None:
    nodes = pytest.importorskip("torchdata.nodes", reason="nodes need PyTorch")
    Node, Loader = getattr(nodes, name), nodes.Loader

    for seed in (None, 3):
        for items in POSITIONS:
            loader = Loader(Node(InRandomOrder(seed)))
            iterator = iter(loader)
            for _ in range(items):
                next(iterator)
            state = json.loads(json.dumps(loader.state_dict()))
            rest, later = list(iterator), Loader(Node(InRandomOrder(seed)))
            later.load_state_dict(state)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                got = list(later)
            assert len(got) == len(rest)
            message = [str(each.message) for each in caught if each.category is RuntimeWarning]
            assert len(message) == (seed is None)
            assert got == rest if seed else f"first {items} items differ from" in message[0]


MAKE: dict[str, Callable[[int], Any]] = {
    "text": lambda number: f"{number}" + "x" * 2000,
    "bytes": lambda number: f"{number}".encode() + b"x" * 2000,
    "large text": lambda number: f"{number}" + "x" * 20_000,
    "times": lambda number: datetime.datetime(2024, 1, 1 + number),
    "tuples": lambda number: (f"{number}" + "x" * 100, number, (f"{number}" + "y" * 100,)),
    "dicts": lambda number: {"text": f"{number}" + "x" * 100, "other": [f"{number}" + "y" * 100]},
}


@pytest.mark.parametrize("kind", MAKE)
def test_an_object_that_is_yielded_twice_is_repeated_from_a_state_between_the_two(kind: str, often: None) -> None:
    make = MAKE[kind]
    pipe = IterableWrapper(range(3)).sharding_filter().flatmap(lambda number: [make(number)] * 2)
    expected = list(pipe)
    for position in (1, 3):
        items, state = stopped(loader_over(pipe, 1), position)
        assert items + resumed(pipe, 1, state) == expected


@pytest.mark.parametrize("kind", ["text", "bytes", "times"])
def test_an_object_that_an_item_contains_twice_arrives_as_one_object(kind: str) -> None:
    make = MAKE[kind]

    def item(number: int) -> list[Any]:
        shared = make(number)
        return [make(5), shared, make(number), {"again": shared}, make(6), shared]

    with loader_over(IterableWrapper(range(3)).sharding_filter().map(item), 1) as loader:
        for number, found in enumerate(loader):
            assert found == item(number)
            assert found[1] is found[3]["again"] is found[5]
            assert found[2] is not found[1]
