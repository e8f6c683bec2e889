"""After a loop was left or a state was loaded, streams of all kinds yield the items of an uninterrupted run."""

import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest

import torchdata.nodes as tn
from kept_state import KeptState
from node_sources import CRITERIA, Epochs, numbers, same
from node_streams import RESUMING, STREAMS, Draws, Plan, TakesAgain, TakesOnce, Uncheckpointed, resumes, run
from resumed import loaded
from torchdata.datapipes.state import load_state, save_state
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

Kind = Callable[[int], Any]
Wrap = Callable[[tn.BaseNode[Any]], tn.BaseNode[Any]]


def mixed(kind: Kind, criterion: str, weighted: bool, wrap: Wrap = same) -> tn.BaseNode[Any]:
    sources = {"a": tn.IterableWrapper(kind(4)), "b": tn.IterableWrapper(kind(3)), "c": numbers(2)}
    nodes = {name: wrap(node) for name, node in sources.items()}
    weights = {"a": 1.0, "b": 0.5, "c": 1.0}
    if weighted:
        return tn.Header(tn.MultiNodeWeightedSampler(nodes, weights, criterion, rank=0, world_size=1), 14)
    return tn.Header(tn.MultiNodeRoundRobinSampler(nodes, criterion), 14)


READ_AHEAD: dict[str, Wrap] = {
    "prefetch": lambda node: tn.Prefetcher(node, 2),
    "prefetch, few states": lambda node: tn.Prefetcher(node, 3, snapshot_frequency=4),
    "prefetch, one state": lambda node: tn.Prefetcher(node, 2, snapshot_frequency=0),
    "threads": lambda node: tn.ParallelMapper(node, same, 2),
    "threads and batches": lambda node: tn.ParallelMapper(node, same, 2, prebatch=2),
}

GRAPHS: dict[str, Callable[[Kind], tn.BaseNode[Any]]] = {
    "alone": lambda kind: tn.IterableWrapper(kind(5)),
    "sampler": lambda kind: tn.SamplerWrapper(kind(5)),
    "mapper": lambda kind: tn.Mapper(tn.IterableWrapper(kind(5)), same),
    "batches": lambda kind: tn.Prefetcher(tn.Batcher(tn.IterableWrapper(kind(5)), 3, drop_last=False), 2),
    "rebatched": lambda kind: tn.Unbatcher(tn.Batcher(tn.IterableWrapper(kind(5)), 3, drop_last=False)),
    "cycle": lambda kind: tn.Cycler(tn.IterableWrapper(kind(3)), 2),
    "prefetched cycle": lambda kind: tn.Prefetcher(tn.Cycler(tn.IterableWrapper(kind(3)), 2), 3, snapshot_frequency=2),
    "bridge": lambda kind: tn.from_pipe(tn.to_pipe(tn.Prefetcher(tn.IterableWrapper(kind(5)), 2)).map(same)),
    **{name: lambda kind, wrap=wrap: wrap(tn.IterableWrapper(kind(5))) for name, wrap in READ_AHEAD.items()},
    **{
        f"{'weighted' if weighted else 'in turn'} {criterion}": lambda kind, c=criterion, w=weighted: mixed(kind, c, w)
        for criterion in CRITERIA
        for weighted in (True, False)
    },
    "prefetched mixture": lambda kind: tn.Prefetcher(mixed(kind, CRITERIA[0], True), 2, snapshot_frequency=3),
    "mixture of prefetched": lambda kind: mixed(kind, CRITERIA[0], True, READ_AHEAD["prefetch"]),
}


#: Each plan contains, for each epoch, the number of items that are read, or None for a complete epoch.
PLANS: list[Plan] = [[None, None, None, None], [2, None, None, None], [1, 3, None, None]]


@pytest.mark.parametrize("kind", STREAMS, ids=lambda kind: kind.__name__)
def test_every_kind_of_stream_resumes_from_every_position_for_three_epochs(kind: Kind) -> None:
    chance, held = random.Random(kind.__name__), 0
    for number, make in enumerate(GRAPHS.values(), STREAMS.index(kind)):
        held += resumes(lambda make=make: make(kind), PLANS[number % len(PLANS)], chance, share=0.07)
    assert held > 100


@pytest.mark.parametrize("criterion", [one for one in CRITERIA if one != tn.StopCriteria.CYCLE_FOREVER])
@pytest.mark.parametrize("name", ["prefetch, few states", "threads and batches"])
def test_mixtures_have_as_many_items_with_threads_as_without(name: str, criterion: str) -> None:
    def lengths(make: Callable[[], tn.BaseNode[Any]]) -> list[int]:
        return [len(items) for items in run(tn.Loader(make()), [4, None, None, None])[0]]

    for kind in STREAMS:
        for weighted in (True, False):
            alone = lengths(lambda kind=kind, w=weighted: mixed(kind, criterion, w))
            assert lengths(lambda kind=kind, w=weighted: READ_AHEAD[name](mixed(kind, criterion, w))) == alone
            assert lengths(lambda kind=kind, w=weighted: mixed(kind, criterion, w, READ_AHEAD[name])) == alone


@pytest.mark.parametrize("name", [*READ_AHEAD, "unbatcher", "mixture", "looked ahead"])
def test_a_node_without_states_works_until_one_is_asked_for(name: str) -> None:
    if name == "unbatcher":
        node: tn.BaseNode[Any] = tn.Unbatcher(tn.Batcher(Uncheckpointed(7), 2, drop_last=False))
    elif name == "mixture":
        node = tn.Prefetcher(tn.MultiNodeRoundRobinSampler({"a": Uncheckpointed(7)}, CRITERIA[0]), 2)
    else:
        node = READ_AHEAD.get(name, same)(Uncheckpointed(7))
    loader = tn.Loader(node)
    assert [len(items) for items in run(loader, [3, None, None])[0]] == [3, 7, 7]
    iterator: Any = iter(loader)
    if name == "looked ahead":
        assert iterator.has_next()
    assert next(iterator) == 0
    with pytest.raises(NotImplementedError, match="no states here"):
        loader.state_dict()
    assert list(iterator) == [1, 2, 3, 4, 5, 6]
    loader.shutdown()


def test_an_iterable_whose_state_raises_can_be_read() -> None:
    class Broken(TakesOnce):
        def state_dict(self) -> dict[str, Any]:
            raise OSError("no state today")

    loader = tn.Loader(tn.IterableWrapper(Broken(3)))
    assert [list(loader), list(loader)] == [[0, 1, 2], [0, 1, 2]]
    with pytest.raises(OSError, match="no state today"):
        loader.state_dict()


def distributed() -> StatefulDistributedSampler:
    return StatefulDistributedSampler(range(12), num_replicas=2, rank=1, seed=3)


@pytest.mark.parametrize("name", ["alone", *READ_AHEAD])
def test_a_stateful_sampler_resumes_in_the_order_of_its_epoch(name: str) -> None:
    wrap = READ_AHEAD.get(name, same)
    for plan in ([None, None, None, None], [2, None, None, None]):
        assert resumes(lambda: wrap(tn.SamplerWrapper(distributed(), initial_epoch=4)), plan, random.Random(0), 1.0) > 8
    epochs, _ = run(tn.Loader(wrap(tn.SamplerWrapper(distributed()))), [None, 2, None])
    assert [len(items) for items in epochs] == [6, 2, 6]
    assert epochs[0] != epochs[2]


def test_a_sampler_receives_the_epoch_before_its_state_is_loaded_or_requested() -> None:
    class Notes(TakesOnce):
        def __init__(self) -> None:
            super().__init__(3)
            self.calls: list[Any] = []

        def set_epoch(self, epoch: int) -> None:
            self.calls.append(epoch)

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.calls.append("load")
            super().load_state_dict(state_dict)

    loader = tn.Loader(tn.SamplerWrapper(Notes(), initial_epoch=2))
    list(loader)
    next(iter(loader))
    sampler = Notes()
    assert list(loaded(tn.Loader(tn.SamplerWrapper(sampler)), loader.state_dict())) == [1, 2]
    assert sampler.calls == [3, "load"]


def test_an_epoch_updater_resumes_with_its_state() -> None:
    class Doubling(KeptState):
        kept = ("step",)

        def __init__(self) -> None:
            self.step = 1

        def __call__(self, epoch: int) -> int:
            self.step *= 2
            return epoch + self.step

    def make() -> tn.BaseNode[Any]:
        return tn.SamplerWrapper(Epochs(2), epoch_updater=Doubling())

    assert resumes(make, [None, None, None, None], random.Random(0), 1.0) > 8
    assert [items[0][0] for items in run(tn.Loader(make()), [None] * 4)[0]] == [0, 2, 6, 14]


@pytest.mark.parametrize("name", ["alone", *READ_AHEAD, "out of order"])
def test_an_epoch_that_fails_at_its_first_item_counts_as_begun(name: str) -> None:
    failing = [True]

    def fails_once(item: Any) -> Any:
        if failing:
            failing.clear()
            raise ValueError("at first")
        return item

    def out_of_order(node: tn.BaseNode[Any]) -> tn.BaseNode[Any]:
        return tn.ParallelMapper(node, same, 2, in_order=False)

    wrap = out_of_order if name == "out of order" else READ_AHEAD.get(name, same)
    loader = tn.Loader(wrap(tn.Mapper(tn.SamplerWrapper(Epochs(2)), fails_once)))
    with pytest.raises(ValueError, match="at first"):
        list(loader)
    assert sorted(loader) == [(1, 0), (1, 1)]


def test_an_epoch_whose_first_item_is_being_sent_out_of_order_counts_as_begun() -> None:
    import threading

    opened = threading.Event()

    def first_waits(item: Any) -> Any:
        if item == (0, 0):
            assert opened.wait(120)
        return item

    loader = tn.Loader(tn.ParallelMapper(tn.SamplerWrapper(Epochs(4)), first_waits, 2, in_order=False))
    assert next(iter(loader)) == (0, 1)
    opened.set()
    assert sorted(loader) == [(1, number) for number in range(4)]
    loader.shutdown()


def test_a_stream_that_was_loaded_and_left_begins_the_next_epoch_from_its_beginning() -> None:
    for kind in STREAMS:
        for position in (0, 2, 6):
            _, state = run(tn.Loader(tn.IterableWrapper(kind(5))), [None, None], (1, position))
            loader = tn.Loader(tn.IterableWrapper(kind(5)))
            for _ in range(2):
                loader.load_state_dict(pickle.loads(state))
                iter(loader)
                assert [len(items) for items in run(loader, [None, None])[0]] == [5, 5], (kind, position)


@pytest.mark.parametrize("kind", [*STREAMS, *RESUMING])
@pytest.mark.parametrize("plan", [[2], [1, 1], [3, 0, 1], [None, 1], [4], [None, 4]], ids=str)
def test_after_abandoned_epochs_a_stream_resumes_where_it_continued(kind: Kind, plan: Plan) -> None:
    def left() -> tn.Loader[Any]:
        loader = tn.Loader(tn.IterableWrapper(kind(5)))
        run(loader, plan)
        return loader

    whole = run(left(), [None] * 3)[0]
    loader = left()
    iter(loader)
    assert run(loaded(tn.Loader(tn.IterableWrapper(kind(5))), loader.state_dict()), [None] * 3)[0] == whole


class StartsOver(TakesOnce):
    """A stream that is its own iterator. Each call of `__iter__` except the first moves back to the beginning."""

    def __iter__(self) -> Any:
        self.position, self.start = self.start, 0
        return self

    def __next__(self) -> Any:
        if self.position == self.size:
            raise StopIteration
        self.position += 1
        return self.position - 1


def test_a_loader_calls_iter_once_per_epoch() -> None:
    loader = tn.Loader(tn.IterableWrapper(StartsOver(4)))
    assert [list(loader) for _ in range(2)] == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("kind", [*STREAMS, *RESUMING])
@pytest.mark.parametrize("items", [0, 2])
def test_a_loader_can_be_reset_to_the_beginning_of_an_unread_epoch(kind: Kind, items: int) -> None:
    loader = tn.Loader(tn.IterableWrapper(kind(5)))
    beginning = loader.state_dict()
    whole = [list(loader) for _ in range(2)]
    if items and kind is Draws:
        return  # For this stream, the states before and after the beginning of an epoch are the same.
    loader = tn.Loader(tn.IterableWrapper(kind(5)))
    iterator = iter(loader)
    if items:  # A loader that resumes from a later state never reads the first item.
        for _ in range(items):
            next(iterator)
        state = loader.state_dict()
        loader = loaded(tn.Loader(tn.IterableWrapper(kind(5))), state)
        next(iter(loader))
    loader.load_state_dict(beginning)
    assert [list(loader) for _ in range(2)] == whole


def test_a_loader_can_be_set_back_to_an_earlier_position() -> None:
    for kind in STREAMS:
        loader = tn.Loader(tn.Prefetcher(tn.IterableWrapper(kind(5)), 2))
        whole, _ = run(tn.Loader(tn.Prefetcher(tn.IterableWrapper(kind(5)), 2)), [None] * 3)
        for position in range(7):
            _, state = run(tn.Loader(tn.Prefetcher(tn.IterableWrapper(kind(5)), 2)), [None] * 2, (0, position))
            loader.load_state_dict(pickle.loads(state))
            expected = whole[1:] if position >= 5 else [whole[0][position:], *whole[1:]]
            assert run(loader, [None] * len(expected))[0] == expected, (kind, position)
        loader.shutdown()


def test_states_of_torchdata_0_11_from_the_beginning_of_an_epoch_give_all_of_it() -> None:
    for index in (0, 5):  # Position 0 is before the first line of the stream's generator.
        for kind in (TakesOnce, TakesAgain):
            loader = tn.Loader(tn.IterableWrapper(kind(5)))
            loader.load_state_dict({"root": {"_num_yielded": 0, "iterable": {"position": index}}, "num_yielded": 0})
            assert [list(loader), list(loader)] == [[0, 1, 2, 3, 4]] * 2


def test_the_state_of_a_pipe_over_nodes_is_asked_for_without_an_epoch_being_counted() -> None:
    def make() -> Any:
        return tn.to_pipe(tn.Prefetcher(tn.SamplerWrapper(Epochs(2)), 2)).map(same)

    pipe, other = make(), make()
    state = pickle.loads(pickle.dumps(save_state(pipe)))
    load_state(other, state)
    for one in (pipe, other):
        assert [list(one), list(one)] == [[(0, 0), (0, 1)], [(1, 0), (1, 1)]]
