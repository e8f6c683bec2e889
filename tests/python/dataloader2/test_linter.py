"""The linter accepts valid graphs, and reports faults, which `MultiProcessingReadingService` shows as warnings."""

import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from refusals import refuses
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.dataloader2.linter import DataPipeLintWarning, lint
from torchdata.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper, IterDataPipe, Mapper, SampleMultiplexer
from torchdata.datapipes.map import SequenceWrapper


def ints() -> Any:
    return IterableWrapper(range(6))


def sharded() -> Any:
    return ints().shuffle().sharding_filter()


def dispatched(pipe: Any) -> Any:
    return pipe.sharding_round_robin_dispatch()


class Mine(IterDataPipe):
    def __init__(self, *datapipes: Any) -> None:
        self.datapipes = datapipes

    def __iter__(self) -> Iterator[Any]:
        for datapipe in self.datapipes:
            yield from datapipe


class MySharding(Mine):
    def apply_sharding(self, num_of_instances: int, instance_id: int) -> None:
        self.share = (num_of_instances, instance_id)


class InMain(Mine):
    def is_replicable(self) -> bool:
        return False


class MyIterable:
    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


class Foreign:
    IterDataPipe = type("IterDataPipe", (), {"__iter__": lambda self: iter([1])})

    @classmethod
    def wrapped(cls) -> Any:
        return Mapper(cls.IterDataPipe(), str)


def counter() -> Any:
    return IterableWrapper(itertools.count(), deepcopy=False)


RANKS, WORKERS = SHARDING_PRIORITIES.DISTRIBUTED, SHARDING_PRIORITIES.MULTIPROCESSING
NO_SHUFFLE = ["no-shuffle-before-sharding"]
#: Graphs, and the expected findings of the linter. A finding that ends in "!" must be emitted as a warning, too.
GRAPHS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "shuffled and sharded": (lambda: sharded().map(str).batch(2), []),
    "sharded without shuffle": (lambda: ints().map(str).sharding_filter(), NO_SHUFFLE),
    "shuffled too late": (lambda: ints().sharding_filter().shuffle(), NO_SHUFFLE),
    "shuffled on one of two ways": (lambda: ints().shuffle().concat(ints()).sharding_filter(), NO_SHUFFLE),
    "shuffled on both ways": (lambda: ints().shuffle().concat(ints().shuffle()).sharding_filter(), []),
    "shuffled by a map pipe": (lambda: SequenceWrapper(range(6)).shuffle().sharding_filter(), []),
    "one pipe": (lambda: ints(), ["not-sharded!"]),
    "not sharded": (lambda: ints().map(str).shuffle().batch(2), ["not-sharded!"]),
    "a map pipe, not sharded": (lambda: SequenceWrapper(range(6)).to_iter_datapipe().batch(2), ["not-sharded!"]),
    "sharded among ranks only": (lambda: ints().shuffle().sharding_filter(RANKS), ["not-sharded!"]),
    "sharded for ranks and for workers": (lambda: ints().shuffle().sharding_filter(RANKS).sharding_filter(WORKERS), []),
    "a pipe of one's own": (lambda: Mine(ints()), ["not-sharded"]),
    "a source of one's own": (lambda: Mine().batch(2), ["not-sharded"]),
    "an iterable of one's own": (lambda: IterableWrapper(MyIterable()), ["not-sharded"]),
    "sharding of one's own": (lambda: MySharding(ints().shuffle()), []),
    "a pipe of another library": (lambda: Foreign.wrapped(), ["not-sharded"]),
    "for ever": (lambda: ints().shuffle().cycle(), ["not-sharded"]),
    "twice": (lambda: ints().shuffle().cycle(2), ["not-sharded!"]),
    "in main": (lambda: InMain(sharded()).batch(2), []),
    "not sharded, then in main": (lambda: InMain(ints().map(str)).batch(2), ["not-sharded!"]),
    "all in main": (lambda: InMain().map(str), []),
    "children of a fork": (lambda: Mine(*sharded().fork(2)), []),
    "children of a fork, not sharded": (lambda: (lambda a, b: a.zip(b))(*ints().fork(2)), ["not-sharded!"]),
    "dispatched": (lambda: dispatched(ints().shuffle()).map(str), []),
    "nothing but dispatched": (lambda: dispatched(ints()), []),
    "dispatched and sharded": (lambda: dispatched(sharded()).zip(sharded()), []),
    "dispatched beside a whole": (lambda: dispatched(ints()).concat(ints()), ["partly-sharded!"]),
    "shuffled after dispatch": (lambda: dispatched(ints()).shuffle().map(str), ["shuffle-after-dispatch"]),
    "shuffled before and after dispatch": (lambda: dispatched(ints().shuffle()).shuffle(), []),
    "shuffled in main after dispatch": (lambda: InMain(dispatched(ints())).shuffle(), []),
    "concatenated with a whole": (lambda: sharded().concat(ints()), ["partly-sharded!"]),
    "in turn with a whole": (lambda: ints().mux(sharded()), ["partly-sharded!"]),
    "zipped with a whole": (lambda: sharded().zip(ints().map(str)).batch(2), ["partly-sharded!"]),
    "zipped with something endless": (lambda: sharded().zip(ints().cycle()), ["partly-sharded"]),
    "zipped with a counter": (lambda: sharded().zip(counter()), ["partly-sharded"]),
    "joined by a pipe of one's own": (lambda: Mine(sharded(), ints()), ["partly-sharded"]),
    "joined and then sharded": (lambda: ints().shuffle().zip(ints().shuffle()).sharding_filter(), []),
    "looking up in a whole": (lambda: sharded().zip_with_iter(ints(), int), []),
    "looking up in a share": (lambda: ints().zip_with_iter(sharded(), int), ["partly-sharded"]),
    "looking up in a map pipe": (lambda: sharded().zip_with_map(SequenceWrapper(range(6)), int), []),
    "a whole looked up in a map pipe": (lambda: ints().zip_with_map(SequenceWrapper(range(6)), int), ["not-sharded!"]),
    "chosen from a share and a whole": (lambda: SampleMultiplexer({sharded(): 1, ints(): 1}), ["partly-sharded!"]),
    "a share and the longer whole": (lambda: sharded().zip_longest(ints()), ["partly-sharded!"]),
    "distributed among children": (lambda: Mine(*sharded().round_robin_demux(2)), []),
    "split at random": (lambda: ints().random_split({"a": 1, "b": 1}, 0, 6, target="a"), ["not-sharded!"]),
    "sharded twice": (lambda: sharded().map(str).sharding_filter(), ["sharded-twice"]),
}

each_graph = pytest.mark.parametrize(("make", "kinds"), GRAPHS.values(), ids=GRAPHS)


@each_graph
def test_the_linter_reports_every_fault_and_nothing_else(make: Callable[[], Any], kinds: list[str]) -> None:
    found = lint(make())
    assert [finding.kind + "!" * finding.silent for finding in found] == kinds


def test_an_endless_graph_of_one_pipe_in_a_circle_is_looked_at_once() -> None:
    pipe = Mine()
    pipe.datapipes = (pipe.map(str),)
    assert [finding.kind for finding in lint(pipe)] == ["not-sharded"]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_fewer_than_two_workers_duplicate_nothing(num_workers: int) -> None:
    for make, kinds in GRAPHS.values():
        expected = [kind for kind in kinds if kind in ("no-shuffle-before-sharding", "sharded-twice")]
        assert [finding.kind for finding in lint(make(), num_workers)] == expected


def test_shuffling_after_a_dispatch_is_fine_with_a_seed() -> None:
    assert lint(dispatched(ints()).shuffle(), seeded=True) == []


test_wrong_arguments_are_named = refuses(
    (lambda: lint([1]), TypeError, r"datapipe must be the last pipe of a graph, but got \[1\] of type list"),  # type: ignore[arg-type]
    (lambda: lint(ints(), 2.5), TypeError, "num_workers must be an integer"),  # type: ignore[arg-type]
    (lambda: lint(ints(), -1), ValueError, "num_workers must be at least 0"),
)


def test_a_finding_is_a_sentence_with_the_pipe_s_number_and_the_remedy() -> None:
    [finding] = lint(ints().map(str).sharding_filter().batch(2).map(len))
    assert str(finding).startswith("ShardingFilter (3rd of 5 pipes): no `shuffle` comes before this filter")
    assert str(finding).endswith("put `.shuffle()` before `.sharding_filter()`")
    [finding] = lint(ints().map(str), 3)
    assert "IterableWrapper (1st of 2 pipes): " in str(finding)
    assert "each of 3 workers yields all items, and every item is yielded 3 times" in str(finding)
    assert "with a filter and `DataLoader2(..., splits=64)`" in str(finding)
    assert "unless" not in str(finding)
    [finding] = lint(Mine(ints()))
    assert "(unless your own pipe or iterable divides the items)" in str(finding)
    [finding] = lint(sharded().concat(ints()))
    assert str(finding).startswith(
        "Concater (5th of 5 pipes): the input IterableWrapper (4th of 5 pipes) is not sharded, whereas ShardingFilter "
    )


def run(pipe: Any, num_workers: int = 2, **options: Any) -> tuple[list[Any], list[str]]:
    service = MultiProcessingReadingService(num_workers, multiprocessing_context="fork", **options)
    with warnings.catch_warnings(record=True) as caught, DataLoader2(pipe, reading_service=service) as loader:
        warnings.simplefilter("always")
        items = [*loader, *loader]
    assert all(warning.category is DataPipeLintWarning for warning in caught)
    assert all(warning.filename == __file__ for warning in caught), "a warning names the caller's line"
    return items, [str(warning.message) for warning in caught]


def test_the_service_warns_once_if_workers_yield_the_same_items() -> None:
    items, message = run(ints().map(str))
    assert sorted(items) == sorted([*map(str, range(6))] * 4)
    assert message == [str(finding) for finding in lint(ints().map(str))]
    assert len(message) == 1


UNCERTAIN: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "a pipe of one's own": (lambda: Mine(ints()), {}),
    "one worker": (ints, {"num_workers": 1}),
    "worker_init_fn": (ints, {"worker_init_fn": lambda pipe, *_: pipe}),
    "worker_reset_fn": (ints, {"worker_reset_fn": lambda pipe, *_: pipe}),
}


@pytest.mark.parametrize(("make", "options"), UNCERTAIN.values(), ids=UNCERTAIN)
def test_the_service_does_not_warn_if_it_is_not_certain(make: Callable[[], Any], options: dict[str, Any]) -> None:
    assert run(make(), **options)[1] == []


def test_the_service_does_not_warn_if_sharding_was_switched_off_on_purpose() -> None:
    service = MultiProcessingReadingService(2, multiprocessing_context="fork")
    with DataLoader2(sharded(), ShardingPolicy(enable=False), service) as loader:
        assert len(list(loader)) == 12


def decoded(item):
    return item


def test_a_function_before_the_filter_is_called_by_each_worker_for_all_items():
    pipe = IterableWrapper(range(9)).shuffle().map(decoded).sharding_filter()
    [finding] = lint(pipe, 4)
    assert (finding.kind, finding.silent, finding.datapipe) == ("work-before-sharding", False, pipe)
    assert "decoded comes before the filter, so each of 4 workers calls decoded for all items" in str(finding)
    assert "put `.sharding_filter()` before `.map(decoded)`" in str(finding)
    assert lint(pipe, 1) == []
    assert lint(IterableWrapper(range(9)).shuffle().sharding_filter().map(decoded)) == []


def joined(groups):
    return [item for group in groups for item in group]


def exact_mix(letters, mixed_in):
    return mixed_in(IterableWrapper(letters[0] * 24).shuffle(), IterableWrapper(letters[1] * 8).shuffle())


MIXES = {
    "zipped batches, unbatched": lambda a, b: a.batch(3).zip(b.batch(1)).map(joined).unbatch(),
    "zipped batches, flattened": lambda a, b: a.batch(3).zip(b.batch(1)).flatmap(joined),
    "batches in turn, unbatched": lambda a, b: a.batch(3).mux(b.batch(1)).unbatch().map(str),
}


@pytest.mark.parametrize("mixed", MIXES.values(), ids=MIXES)
def test_an_exact_mix_before_a_filter_and_a_batch_is_found_only_where_workers_change_its_ratio(mixed):
    pipe = exact_mix("AB", mixed).sharding_filter()
    with DataLoader2(pipe.batch(4), num_workers=2) as loader:
        assert {"".join(batch) for batch in loader} == {"AAAA", "ABAB"}
    [finding] = [one for one in lint(pipe.batch(4), 2) if one.kind == "mix-before-sharding"]
    assert (finding.datapipe, finding.silent) == (pipe, False)
    assert "mixes its inputs in a pattern of 4 items, and each worker keeps one of every 2 items" in str(finding)
    where = "into each of its inputs" if mixed is MIXES["batches in turn, unbatched"] else "directly after Zipper"
    assert f"put `.sharding_filter()` {where}, or pass the adapter `ShardingPolicy(block=4)`" in str(finding)
    with DataLoader2(pipe.batch(4), [ShardingPolicy(block=4)], num_workers=2) as loader:
        assert ["".join(batch) for batch in loader] == ["AAAB"] * 8
    with DataLoader2(pipe.batch(4), num_workers=3) as loader:
        assert {tuple(sorted(batch)) for batch in loader if len(batch) == 4} == {("A", "A", "A", "B")}
    before = exact_mix("AB", lambda a, b: mixed(a.sharding_filter(), b.sharding_filter())).batch(4)
    shuffled = exact_mix("AB", mixed).shuffle().sharding_filter().batch(4)
    assert "mix-before-sharding" not in [
        one.kind
        for graph, workers in ((pipe.batch(4), 3), (pipe.batch(4), 1), (pipe, 2), (before, 2), (shuffled, 2))
        for one in lint(graph, workers)
    ]


def test_lint_finds_that_two_inputs_in_turn_leave_each_of_two_workers_one_input():
    pipe = IterableWrapper("A" * 8).shuffle().mux(IterableWrapper("B" * 8).shuffle()).sharding_filter().batch(4)
    with DataLoader2(pipe, num_workers=2) as loader:
        assert ["".join(batch) for batch in loader] == ["AAAA", "BBBB"] * 2
    assert [finding.kind for finding in lint(pipe, 2)] == ["mix-before-sharding"]


class Reordered:
    def __iter__(self) -> Iterator[int]:
        items = list(range(5))
        random.shuffle(items)
        return iter(items)


def test_lint_finds_a_filter_over_an_iterable_that_shuffles_by_itself() -> None:
    [finding] = lint(IterableWrapper(Reordered()).shuffle().sharding_filter())
    assert (finding.kind, finding.silent) == ("own-order", False)
    assert "Reordered in IterableWrapper" in str(finding)
    assert lint(IterableWrapper(Reordered()).shuffle().sharding_round_robin_dispatch()) == []
    assert lint(IterableWrapper(Reordered()).shuffle().sharding_filter(), num_workers=1) == []
