"""Loaders resume torch's pipes over children of `fork` or `demux` by replaying items."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest

pytest.importorskip("torch", reason="the tests use torch's own pipes")

from torch.utils.data.datapipes import iter as torchs

from pipes_table import IGNORES_WARNINGS_OF_PIPES, seed
from random_graphs.check import Plain, check, whole
from random_graphs.users import UnstatedPairs, is_odd, small
from resuming import with_state
from torchdata.datapipes.iter import Concater, IterableWrapper
from torchdata.datapipes.state import save_state

pytestmark = IGNORES_WARNINGS_OF_PIPES


@dataclass
class Seeded:
    build: Callable[[], Any]
    number: int = 5
    epochs: int = 2
    is_seeded: bool = True
    seeding: str = "pipes"
    names: tuple[str, ...] = ()


def numbers(count: int) -> Any:
    return IterableWrapper(range(count))


def over_the_first(children: list[Any]) -> Any:
    return Concater(torchs.Mapper(children[0], small), *children[1:])


def over_the_second(children: list[Any]) -> Any:
    first, second, *others = children
    return Concater(first, torchs.Mapper(second, small), *others)


def left_in_the_middle(count: int) -> Any:
    first, second = UnstatedPairs(numbers(9).shuffle()).fork(2)
    return torchs.Concater(first.concat(second.shuffle()), numbers(2)).map(small).header(count)


GRAPHS: dict[str, Callable[[], Any]] = {
    "over the first of two": lambda: over_the_first(numbers(5).fork(2)),
    "over the first of two, which are shuffled": lambda: over_the_first(numbers(5).shuffle().fork(2)),
    "over the second of three": lambda: over_the_second(numbers(5).shuffle().fork(3)),
    "over the second of two that share items out": lambda: over_the_second(numbers(9).shuffle().demux(2, is_odd)),
    "over the first, below which is a pipe without state": lambda: over_the_first(UnstatedPairs(numbers(5)).fork(2)),
    "over the second, behind a shuffle": lambda: over_the_second(
        UnstatedPairs(numbers(5).shuffle()).round_robin_demux(2)
    ),
    "over a fork that is left before its second child": lambda: left_in_the_middle(4),
    "over a fork that is left behind its first child": lambda: left_in_the_middle(12),
    "over a fork that is read to its end": lambda: left_in_the_middle(30),
}


@pytest.mark.parametrize("build", GRAPHS.values(), ids=GRAPHS)
def test_from_every_position_and_in_every_epoch(build: Callable[[], Any]) -> None:
    graph: Any = Seeded(build)
    expected = whole(graph)
    for epoch, items in enumerate(expected[: graph.epochs]):
        for position in range(-1, len(items) + 2):
            chain = ([50], [0, -1], [2, 3])[(epoch + position) % 3]
            try:
                check(graph, expected, epoch, position, chain, Plain)
            except BaseException as error:
                error.add_note(f"epoch {epoch}, position {position}, {chain}")
                raise


@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("again", [0, 1, 2])
@pytest.mark.parametrize("build", [lambda: left_in_the_middle(4), lambda: left_in_the_middle(12)])
def test_seeds_that_are_set_after_a_load_apply_to_passes_that_start_again(
    build: Callable[[], Any], again: int, count: int
) -> None:
    seeded = numbers(1).concat(build())
    seed(seeded, 1)
    list(islice(iter(seeded), count + 1))
    iterator = iter(seeded)
    state = save_state(seeded)
    seed(seeded, 2)
    rest = list(iterator)
    for _ in range(again + 1):
        other = with_state(numbers(1).concat(build()), state)
        seed(other, 2)
        state = save_state(other)
    assert list(other) == rest
