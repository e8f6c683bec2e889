"""States that go on with batches of another size: the order of items is kept, and none is lost or comes twice."""

from __future__ import annotations

import multiprocessing
import random
from typing import Any

import pytest

from torchdata._engine import snapshots
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe, Mapper
from torchdata.datapipes.state import load_state, save_state


def pipe(size: int, **options: Any) -> Any:
    return IterableWrapper(range(50)).shuffle(buffer_size=9).sharding_filter().batch(size, **options).map(list)


def loader(size: int, workers: int = 0, of: Any = pipe, **options: Any) -> DataLoader2[Any]:
    service = MultiProcessingReadingService(workers, **options) if workers else None
    return DataLoader2(of(size), ShardingPolicy(block=size), service)


def whole(size: int, of: Any = pipe) -> list[list[int]]:
    """Two epochs, item by item."""
    with loader(size, of=of) as run:
        run.seed(5)
        return [[item for batch in run for item in batch] for _ in range(2)]


def batches_of(items: list[int], size: int) -> list[list[int]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


#: Lets go of the worker that has the first batch of all.
let_go = multiprocessing.get_context("fork").Event()


def wait_at_the_first(batch: list[int]) -> list[int]:
    if batch == whole(4)[0][:4]:
        let_go.wait(120)
    return batch


def held(size: int) -> Any:
    return pipe(size).map(wait_at_the_first)


@pytest.mark.parametrize(("workers", "later"), [(0, 0), (2, 2), (3, 2), (0, 2), (2, 0)])
def test_a_state_goes_on_with_other_batches_behind_the_last_item_that_was_given(workers: int, later: int) -> None:
    first, second = whole(4)
    changes = ((1, 6), (5, 3), (12, 7), (3, 1))
    for given, size in changes if not workers and not later else changes[workers % 2 :: 2]:
        with loader(4, workers) as run:
            run.seed(5)
            epoch = iter(run)
            head = [item for _ in range(given) for item in next(epoch)]
            state = run.state_dict()
        assert head == first[: 4 * given]
        with loader(size, later) as run:
            run.load_state_dict(state)
            assert list(run) == batches_of(first[4 * given :], size)
            assert [item for batch in run for item in batch] == second


def test_random_chains_of_sizes_and_workers_give_the_items_of_one_run() -> None:
    for number in range(4):
        dice = random.Random(number)
        expected = whole(2)[0]
        seen: list[int] = []
        state = None
        for _ in range(4):
            size, workers = dice.choice([1, 2, 3, 5, 8]), dice.choice([0, 1, 2, 3])
            with loader(size, workers, worker_prefetch_cnt=dice.choice([0, 4])) as run:
                run.seed(5)
                if state is not None:
                    run.load_state_dict(state)
                epoch = iter(run)
                for _ in range(dice.randrange(1, 3)):
                    seen += next(epoch)
                state = run.state_dict()
        with loader(7, 2) as run:
            run.load_state_dict(state)
            rest = list(run)
        assert rest == batches_of(expected[len(seen) :], 7), number
        assert seen == expected[: len(seen)], number


def test_a_state_of_the_same_size_after_a_change_goes_on_as_any_other() -> None:
    expected = whole(4)[0]
    with loader(4, 2) as run:
        run.seed(5)
        epoch = iter(run)
        next(epoch)
        state = run.state_dict()
    for position in (1, 3):
        with loader(5, 2) as run:
            run.load_state_dict(state)
            epoch = iter(run)
            for _ in range(position):
                next(epoch)
            later = run.state_dict()
        with loader(5, 3) as run:
            run.load_state_dict(later)
            assert list(run) == batches_of(expected[4 + 5 * position :], 5)


@pytest.mark.parametrize("last", [0, 2])
def test_a_state_of_before_the_first_batch_of_another_size_goes_on_with_a_third_one(last: int) -> None:
    expected = whole(4)[0]
    for begins in (0, 2):
        with loader(4, begins) as run:
            run.seed(5)
            next(iter(run))
            state = run.state_dict()
        with loader(5) as run:
            run.load_state_dict(state)
            iter(run)
            state = run.state_dict()
        with loader(3, last) as run:
            run.load_state_dict(state)
            assert list(run) == batches_of(expected[4:], 3)


def test_batches_of_another_size_are_counted_in_the_main_process() -> None:
    expected = whole(4)[0]
    with loader(4) as run:
        run.seed(5)
        next(iter(run))
        state = run.state_dict()
    with loader(5) as run:
        run.load_state_dict(state)
        epoch = iter(run)
        next(epoch)
        assert run.skip(2) == 2
        state = run.state_dict()
    with loader(5, 2) as run:
        run.load_state_dict(state)
        assert list(run) == batches_of(expected[19:], 5)


def test_batches_of_several_sizes_without_a_division_are_not_taken_for_those_of_one() -> None:
    """Nobody has counted their items, so workers cannot go on behind them."""
    state: Any = None
    for size in (4, 5):
        with DataLoader2(pipe(size)) as run:  # which deals items out one by one
            run.seed(5)
            if state is not None:
                run.load_state_dict(state)
            next(iter(run))
            state = run.state_dict()
    with loader(5, 2) as run:
        run.load_state_dict(state)
        with pytest.raises(ValueError, match="batches of several sizes, which nobody has counted"):
            iter(run)


def test_a_filter_behind_a_dispatch_is_named() -> None:
    def behind(size: int) -> Any:
        return IterableWrapper(range(50)).sharding_round_robin_dispatch().sharding_filter().batch(size)

    with loader(4, 2, of=behind) as run:
        next(iter(run))
        state = run.state_dict()
    with loader(5, 2, of=behind) as run:
        run.load_state_dict(state)
        with pytest.raises(ValueError, match="stands behind `sharding_round_robin_dispatch`"):
            iter(run)


def test_an_epoch_that_has_ended_goes_on_with_the_next_one() -> None:
    second = whole(4)[1]
    for workers in (0, 2):
        with loader(4, workers) as run:
            run.seed(5)
            list(run)
            state = run.state_dict()
        with loader(6, workers) as run:
            run.load_state_dict(state)
            assert list(run) == batches_of(second, 6)


def test_a_graph_without_a_loader_goes_on_with_other_batches() -> None:
    def graph(size: int) -> Any:
        return IterableWrapper(range(10)).batch(size).map(list)

    pipe = graph(3)
    assert next(iter(pipe)) == [0, 1, 2]
    state = save_state(pipe)
    other = graph(4)
    load_state(other, state)
    assert list(other) == [[3, 4, 5, 6], [7, 8, 9]]


def test_batches_that_are_made_again_for_want_of_a_state_are_refused() -> None:
    torch = pytest.importorskip("torch.utils.data.datapipes.iter")

    def graph(size: int) -> Any:
        return Mapper(torch.Mapper(IterableWrapper(range(10)), abs), abs).batch(size).map(list)

    pipe = graph(3)
    assert next(iter(pipe)) == [0, 1, 2]
    state = save_state(pipe)
    with pytest.raises(ValueError, match="batches of 3, and now they are of 4"):
        load_state(graph(4), state)


class Unstated(IterDataPipe):
    def __init__(self, source_datapipe: Any) -> None:
        self.source_datapipe = source_datapipe

    def __iter__(self) -> Any:
        yield from self.source_datapipe


@pytest.mark.parametrize(
    ("behind", "name"),
    [
        (lambda pipe: pipe.shuffle(buffer_size=2), "Shuffler"),
        (lambda pipe: pipe.prefetch(2), "Prefetcher"),
        (Unstated, "Unstated"),
        (lambda pipe: pipe.unbatch(), "UnBatcher"),
    ],
)
def test_a_pipe_behind_that_holds_batches_is_named(behind: Any, name: str) -> None:
    def graph(size: int) -> Any:
        return behind(IterableWrapper(range(20)).batch(size))

    run = graph(3)
    next(iter(run))
    state = save_state(run)
    with pytest.raises(ValueError, match=rf"batches of 3, and now they are of 4: {name}, which stands behind"):
        load_state(graph(4), state)


def test_batches_that_are_prefetched_behind_a_filter_are_made_again() -> None:
    def read_ahead(size: int) -> Any:
        return pipe(size).prefetch(3)

    expected = whole(4)[0]
    for workers in (0, 2):
        with loader(4, workers, of=read_ahead) as run:
            run.seed(5)
            epoch = iter(run)
            next(epoch)
            next(epoch)
            state = run.state_dict()
        with loader(5, workers, of=read_ahead) as run:
            run.load_state_dict(state)
            assert list(run) == batches_of(expected[8:], 5)


def dispatched(size: int) -> Any:
    return IterableWrapper(range(50)).batch(size).sharding_round_robin_dispatch().map(list)


def without_policy(size: int) -> Any:
    return IterableWrapper(range(50)).sharding_filter().batch(size)


def before_the_filter(size: int) -> Any:
    return IterableWrapper(range(50)).batch(size).sharding_filter()


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (dispatched, "The `batch` stands before the place where items are shared out"),
        (without_policy, r"deals out blocks of 1, and Batcher makes batches of 5"),
        (before_the_filter, "The `batch` stands before the place where items are shared out"),
    ],
)
def test_a_pipeline_whose_items_depend_on_the_workers_is_refused_with_the_remedy(of: Any, message: str) -> None:
    with DataLoader2(of(4), reading_service=MultiProcessingReadingService(2)) as run:
        epoch = iter(run)
        for _ in range(3):
            next(epoch)
        state = run.state_dict()
    with DataLoader2(of(5), reading_service=MultiProcessingReadingService(2)) as run:
        run.load_state_dict(state)
        with pytest.raises(ValueError, match=rf"batches of 4, and now they are of 5\. .*{message}"):
            iter(run)


def test_batches_that_were_given_out_of_order_are_refused() -> None:
    let_go.clear()
    with loader(4, 2, held, in_order=False) as run:
        run.seed(5)
        assert next(iter(run)) == whole(4)[0][4:8]
        state = run.state_dict()
        let_go.set()
    with loader(5, 2, held, in_order=False) as other:
        other.load_state_dict(state)
        with pytest.raises(ValueError, match="some come before others that were not"):
            iter(other)


def test_blocks_that_were_no_batches_when_the_state_was_saved_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SECONDS", 0.0)  # one after each item
    monkeypatch.setattr(snapshots, "FACTOR", 0.0)
    with DataLoader2(pipe(4), reading_service=MultiProcessingReadingService(2)) as run:
        epoch = iter(run)
        for _ in range(4):
            next(epoch)
            state = run.state_dict()
    with loader(5, 2) as other:
        other.load_state_dict(state)
        assert state["iteration_state"]["workers"]["workers"][0]["snapshot"] is not None
        with pytest.raises(ValueError, match="dealt out blocks of 1 when the state was saved"):
            iter(other)
