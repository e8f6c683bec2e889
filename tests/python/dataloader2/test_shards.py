"""States resume with another number of workers, but the interrupted epoch keeps its shards."""

import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

from kept_state import KeptState
from one_rank import Alone
from process_checks import nothing_is_left  # noqa: F401
from random_graphs.users import Passing, unpinned
from rank_threads import ThreadGroup, in_ranks
from resuming import begun, continued, epochs_of, resumed, saved, stopped, with_states
from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    InProcessReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.dataloader2.services.program import GraphProgram
from torchdata.dataloader2.services.worker_output import WorkerOutput
from torchdata.dataloader2.state.worker_positions import lasts
from torchdata.datapipes._pipe import exchanging
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe, Multiplexer, Zipper
from torchdata.datapipes.iter.threads.prefetching import pipes_with_threads
from torchdata.datapipes.map import SequenceWrapper

pytestmark = [pytest.mark.alone, pytest.mark.filterwarnings("ignore")]

ITEMS = 26
PAIRS = [(0, 1), (2, 8), (0, 2), (0, 3), (0, 5), (1, 2), (1, 3), (1, 5), (2, 3), (2, 5), (3, 5)]


class Generated(IterDataPipe):
    def __init__(self, source: Any) -> None:
        self.source, self.counts = source, {"read": 0}

    def __iter__(self) -> Iterator[Any]:
        self.counts["read"] = 0
        for item in self.source:
            self.counts["read"] += 1
            yield item, self.counts["read"]


class Counting(KeptState, Passing):
    kept = ("count",)
    count = 0

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            self.count += 1
            yield item, self.count


def drawn(item: Any) -> Any:
    return item, (random.random(), float(numpy.random.standard_normal())) if os.environ.get("DRAWS") else 0


def size(item: Any) -> int:
    return item % 5 + 1


def source() -> Any:
    return IterableWrapper(range(ITEMS)).shuffle().sharding_filter()


FORMS: dict[str, Callable[[], Any]] = {
    "map": lambda: source().map(drawn),
    "prefetch": lambda: source().map(drawn).prefetch(3),
    "held in main": lambda: source().map(drawn).pin_memory(pin_memory_fn=unpinned).prefetch(2),
    "threadpool_map": lambda: source().threadpool_map(str, max_workers=2),
    "filter": lambda: source().filter(lambda item: item % 3 > 0).map(drawn),
    "flatmap": lambda: source().flatmap(lambda item: [item] * (item % 3)),
    "shuffle": lambda: source().shuffle(buffer_size=3).map(drawn),
    "batch": lambda: source().batch(3),
    "unbatch": lambda: source().batch(2).unbatch(),
    "bucketbatch": lambda: source().bucketbatch(batch_size=2, batch_num=2, bucket_num=1),
    "max_token_bucketize": lambda: source().max_token_bucketize(max_token_count=8, len_fn=size, buffer_size=5),
    "groupby": lambda: source().groupby(lambda item: item % 3, buffer_size=6, group_size=2),
    "pack": lambda: source().map(lambda item: [item] * size(item)).pack(8),
    "mux": lambda: Multiplexer(source(), IterableWrapper(range(100, 110)).sharding_filter()),
    "zip": lambda: Zipper(source(), IterableWrapper(range(100, 140)).sharding_filter()),
    "cycle": lambda: source().cycle(2),
    "fork": lambda: Zipper(*source().fork(2)),
    "demux": lambda: Multiplexer(*source().demux(2, lambda item: item % 2)),
    "in_memory_cache": lambda: source().in_memory_cache(),
    "enumerate": lambda: source().enumerate(),
    "header": lambda: source().header(5),
    "rows of a map": lambda: SequenceWrapper(list(range(ITEMS))).shuffle().sharding_filter().map(drawn),
    "a user's pipe": lambda: Generated(source()),
    "a user's pipe with a state": lambda: Counting(source()),
    "nothing is divided": lambda: IterableWrapper(range(7)).map(drawn),
}


def service(workers: int) -> Any:
    return MultiProcessingReadingService(workers) if workers else InProcessReadingService()


def loader(form: str, workers: int, state: Any = None) -> DataLoader2[Any]:
    return begun(DataLoader2(FORMS[form](), reading_service=service(workers)), state)


@pytest.mark.parametrize(("number", "form"), [*enumerate(FORMS)], ids=FORMS)
def test_the_rest_of_an_epoch_keeps_the_number_of_workers_that_began_it(number: int, form: str) -> None:
    pair = PAIRS[number % len(PAIRS)]
    old, new = pair if number < len(PAIRS) else pair[::-1]
    with loader(form, old) as made:
        first, states = with_states(made)
        later = list(made)
    # If pipes keep state between epochs, later epochs keep the number of shards of the interrupted epoch.
    following = later if lasts(FORMS[form]()) else epochs_of(loader(form, new))[1]
    for index in sorted({len(first) // 2, len(first) - 1}):
        assert epochs_of(loader(form, new, states[index - 1])) == [first[index:], following], index


def test_a_worker_that_recomputes_an_epoch_of_the_main_process_draws_the_same_numbers() -> None:
    pipe: Any = IterableWrapper(range(40)).sharding_filter().shuffle(buffer_size=3)
    pipe = pipe.map(lambda item: (item, random.random(), numpy.random.random()))
    with begun(DataLoader2(pipe)) as made:
        reading = iter(made)
        head = [next(reading) for _ in range(8)]
        state, rest = made.state_dict(items_ago=1), [head[7], *reading]
    for services in [], [DistributedReadingService(process_group=Alone())]:
        with_workers = SequentialReadingService(*services, service(2))
        assert epochs_of(begun(DataLoader2(pipe, reading_service=with_workers), state), 1) == [rest]
    replayed: Any = Passing(pipe)
    _, state, rest = continued(begun(DataLoader2(replayed, reading_service=InProcessReadingService(2))), 8)
    assert epochs_of(begun(DataLoader2(replayed, num_workers=2), state), 1) == [rest]
    groups = [DistributedReadingService(process_group=Alone(2, rank)) for rank in range(2)]
    held = pipe.pin_memory(pin_memory_fn=unpinned)
    ranks = [DataLoader2(held, reading_service=SequentialReadingService(group, service(0))) for group in groups]
    _, states, rests = zip(*(continued(begun(rank), 3) for rank in ranks), strict=True)
    [got] = resumed(DataLoader2(held, num_workers=1), dict(enumerate(states)))
    assert (got[::2], got[1::2]) == rests


@pytest.mark.parametrize("form", ["shuffle", "prefetch"])
def test_random_numbers_of_functions_belong_to_the_shard(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAWS", "1")
    for new in 0, 2, 5:
        _, state, rest = continued(loader(form, 4), 6)
        with loader(form, new, state) as made:
            reading = iter(made)
            random.seed(new)
            before = random.getstate()
            assert list(reading) == rest
            assert random.getstate() == before, "the generator of the program is its own"


class WhoAmI(Passing):
    def __iter__(self) -> Iterator[Any]:
        import torch.utils.data

        for item in self.source:
            info = torch.utils.data.get_worker_info()
            yield item, None if info is None else (info.id, info.num_workers)


def slowly_drawn(item: int) -> float:
    time.sleep(0.01)
    return random.random()


def slowly(item: Any) -> Any:
    time.sleep(0.001)
    return item


def test_a_warning_names_the_pool_whose_threads_mix_the_random_numbers_of_shards() -> None:
    numbers = IterableWrapper(range(12)).sharding_filter()
    pooled = numbers.threadpool_map(slowly_drawn, max_workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for workers in (0, 1):
            with pytest.raises(RuntimeWarning, match=r"ThreadPoolMapper: while its threads call.*Draw these numbers"):
                epochs_of(DataLoader2(pooled, num_workers=workers, splits=3))
        for silent in (
            numbers.map(drawn).prefetch(2).threadpool_map(slowly).map(drawn),
            numbers.threadpool_map(slowly),
        ):
            epochs_of(DataLoader2(silent, splits=3))
        for options in ({"num_workers": 3, "splits": 3}, {"num_workers": 2}, {}):
            epochs_of(DataLoader2(pooled, **options))


def shown(pipe: Any, info: Any) -> Any:
    return pipe.map(lambda item: (item, info.worker_id, info.num_workers))


def test_functions_of_the_user_see_the_shard() -> None:
    torch = pytest.importorskip("torch")

    def loader_of(workers: int, state: Any = None) -> DataLoader2[Any]:
        service = MultiProcessingReadingService(workers, worker_init_fn=shown)
        return begun(DataLoader2(WhoAmI(source()), reading_service=service), state)

    [whole] = epochs_of(loader_of(3), 1)
    assert {(worker, shown) for (_, worker), *shown in whole for shown in [tuple(shown)]} == {
        ((n, 3), (n, 3)) for n in range(3)
    }
    _, state = stopped(loader_of(3), 4)
    for new in 0, 1, 2:
        assert epochs_of(loader_of(new, state), 1) == [whole[4:]]
    assert torch.utils.data.get_worker_info() is None


def test_a_worker_that_runs_several_shards_is_replaced_with_all_of_them(often: None) -> None:
    _, state, rest = continued(loader("shuffle", 5), 3)
    service = MultiProcessingReadingService(2, on_worker_exit="restart", worker_prefetch_cnt=1, main_prefetch_cnt=1)
    with begun(DataLoader2(FORMS["shuffle"](), reading_service=service), state) as made:
        reading = iter(made)
        head = [next(reading) for _ in range(4)]
        os.kill(made.reading_service.engine_processes().pids[0], signal.SIGKILL)
        assert head + list(reading) == rest
        assert len(list(made)) == ITEMS


def even() -> Any:
    return IterableWrapper(range(48)).shuffle().sharding_filter()


RANKED: dict[str, Callable[[], Any]] = {
    "all": lambda: IterableWrapper(range(24)).shuffle().sharding_filter(),
    "some": lambda: IterableWrapper(range(24)).shuffle().sharding_filter().filter(lambda item: item % 3 > 0),
    "batch": lambda: even().batch(2),
    "shuffle": lambda: even().shuffle(buffer_size=3).map(drawn),
    "a user's pipe": lambda: Generated(even()),
    "a common part": lambda: (
        IterableWrapper(range(60)).filter(lambda item: item % 5 > 0).shuffle().map(drawn).sharding_filter()
    ),
    "batches in main": lambda: even().pin_memory(pin_memory_fn=unpinned).batch(2),
    "counts": lambda: Counting(even()),
    "cache": lambda: even().in_memory_cache(),
    "cache in main": lambda: even().pin_memory(pin_memory_fn=unpinned).in_memory_cache(),
}


def of_ranks(
    form: str, ranks: int, workers: int, count: int | None, states: Any = None, adapters: Any = None
) -> list[Any]:
    def body(group: ThreadGroup) -> Any:
        inner = service(workers)
        if ranks > 1:
            inner = SequentialReadingService(DistributedReadingService(60, process_group=group), inner)
        made: DataLoader2[Any] = DataLoader2(RANKED[form](), adapters, inner)
        if states is None:
            made.seed(3)
        else:
            made.load_state_dict(states if len(states) > 1 else states[0])
        with made:
            reading = iter(made)
            got = list(reading) if count is None else [next(reading) for _ in range(count)]
            if ranks > 1 and count is not None:
                until(lambda: made.datapipe.state_dict()["items"])  # `fullsync` reads an item ahead
            return got, saved(made)

    return in_ranks(ranks, body)


def states_of(by_rank: list[Any]) -> dict[int, Any]:
    return {rank: state for rank, (_, state) in enumerate(by_rank)}


@pytest.mark.parametrize(
    ("form", "old", "new"),
    [
        ("batch", (2, 2), (1, 1)),
        ("shuffle", (1, 4), (2, 1)),
        ("shuffle", (3, 1), (1, 2)),
        ("a user's pipe", (2, 3), (3, 2)),
    ],
)
def test_states_of_all_ranks_resume_with_another_number_of_ranks(form: str, old: Any, new: Any) -> None:
    (ranks, workers), count = old, 2
    whole = [got for got, _ in of_ranks(form, ranks, workers, None)]
    states = states_of(of_ranks(form, ranks, workers, count))
    # The remaining items of each shard, ordered by worker and then by rank.
    left = [[*got[worker::workers][len(range(worker, count, workers)) :]] for worker in range(workers) for got in whole]
    turn = count % workers * ranks
    expected = []
    for rank in range(new[0]):
        own = [*range(rank, len(left), new[0])]
        first = next((index for index, shard in enumerate(own) if shard // ranks * ranks >= turn), 0)
        queues, rest = [[*left[shard]] for shard in own[first:] + own[:first]], []
        while queues := [queue for queue in queues if queue]:
            rest += [queue.pop(0) for queue in queues]
        expected.append(rest)
    shortest = min(map(len, expected))  # all ranks end when the shortest rank ends
    assert [rest for rest, _ in of_ranks(form, *new, None, states)] == [rest[:shortest] for rest in expected]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_of_rank_0_is_refused_by_others_within_an_epoch_and_begins_the_next_epoch_of_all(
    workers: int,
) -> None:
    state = of_ranks("shuffle", 2, workers, 3)[0][1]
    for ranks, here in (
        (2, "rank 1 of 2: load each rank's own"),
        (1, "not a rank of a distributed job"),
        (3, r"rank \d of 3"),
    ):
        with pytest.raises(ValueError, match=f"saved by rank 0 of 2, and this is {here}"):
            of_ranks("shuffle", ranks, workers, None, {0: state})
    own = states_of(of_ranks("shuffle", 2, workers, None))
    shared = of_ranks("shuffle", 2, workers, None, {0: own[0]})
    assert [got for got, _ in shared] == [got for got, _ in of_ranks("shuffle", 2, workers, None, own)]
    ended = of_ranks("cache", 2, workers, None)
    with pytest.raises(ValueError, match="rank 1 of 2: load each rank's own"):
        of_ranks("cache", 2, workers, None, {0: ended[0][1]})
    again = of_ranks("cache", 2, workers, None, states_of(ended))
    assert [{*got} for got, _ in again] == [{*got} for got, _ in ended], "each rank has its own cache"


def test_more_ranks_than_shards_and_batches_of_the_main_process_are_refused_by_name() -> None:
    states = {0: of_ranks("batch", 1, 2, 2)[0][1]}
    with pytest.raises(ValueError, match="this state has 2 shards, one for each worker of each rank.*rank 2 of 3"):
        of_ranks("batch", 3, 1, None, states)
    states = states_of(of_ranks("batches in main", 2, 2, 3))
    whole = [got for got, _ in of_ranks("batches in main", 2, 2, None)]
    assert [got for got, _ in of_ranks("batches in main", 2, 3, None, states)] == [got[3:] for got in whole]
    with pytest.raises(ValueError, match=r"another number of ranks, and the pipes in the main process do not yield"):
        of_ranks("batches in main", 1, 2, None, states)
    ended = states_of(of_ranks("cache in main", 2, 2, None))
    with pytest.raises(ValueError, match=r"saved between two epochs with another number of ranks"):
        of_ranks("cache in main", 1, 2, None, ended)


def test_dispatched_items_resume_with_the_same_number_of_workers_until_the_epoch_ends() -> None:
    def dispatched(workers: int, state: Any = None) -> DataLoader2[Any]:
        pipe = IterableWrapper(range(ITEMS)).shuffle().sharding_round_robin_dispatch().shuffle(buffer_size=3)
        return begun(DataLoader2(pipe, reading_service=service(workers)), state)

    _, state, rest = continued(dispatched(3), 5)
    for new in 1, 5:
        found, following = epochs_of(dispatched(new, state))
        assert found == rest
        assert sorted(following) == list(range(ITEMS))


def of_split_ranks(ranks: int, workers: int, count: int | None, states: Any = None, form: str = "shuffle") -> list[Any]:
    return of_ranks(form, ranks, workers, count, states, ShardingPolicy(splits=12))


def in_steps(by_rank: list[Any]) -> list[Any]:
    return [item for step in zip(*(got for got, _ in by_rank), strict=True) for item in step]


@pytest.mark.parametrize(
    ("form", "old", "new"),
    [
        ("shuffle", (2, 2), (3, 1)),
        ("a common part", (3, 1), (2, 2)),
        ("a common part", (4, 0), (2, 0)),
        ("shuffle", (2, 3), (12, 0)),
    ],
)
def test_with_splits_the_order_is_the_same_for_any_number_of_ranks(
    form: str, old: Any, new: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAWS", "1")
    whole = in_steps(of_split_ranks(1, 2, None, form=form))
    assert in_steps(of_split_ranks(*new, None, form=form)) != whole, "ranks agree on a seed of their own"
    whole = in_steps(of_split_ranks(2, 1, None, form=form))
    assert in_steps(of_split_ranks(*old, None, form=form)) == whole
    count = 12 // old[0]
    begun = of_split_ranks(*old, count, form=form)
    rest = in_steps(of_split_ranks(*new, None, states_of(begun), form))
    assert in_steps(begun) + rest == whole


def test_a_thread_that_reads_ahead_takes_no_item_while_shards_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    position = WorkerOutput.position

    # The sleep gives the read-ahead thread time to take an item, so the test fails if the thread is not paused.
    monkeypatch.setattr(WorkerOutput, "position", lambda *arguments: time.sleep(0.1) or position(*arguments))
    begun = of_split_ranks(2, 0, 3)
    rest = in_steps(of_split_ranks(3, 0, None, states_of(begun)))
    monkeypatch.undo()
    assert in_steps(begun) + rest == in_steps(of_split_ranks(2, 0, None))


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize(("ranks", "count", "new"), [(1, 1, 2), (1, 9, 2), (2, 5, 1), (3, 3, 1)])
def test_a_state_after_ended_shards_resumes_on_other_ranks(workers: int, ranks: int, count: int, new: int) -> None:
    split = ShardingPolicy(splits=12)
    shard_of = {item: index % 12 for index, item in enumerate(in_steps(of_ranks("all", ranks, 2, None, None, split)))}
    begun = of_ranks("some", ranks, workers, count, None, split)
    left = {item for item in shard_of if item % 3} - {item for got, _ in begun for item in got}
    rests = of_ranks("some", new, workers, None, states_of(begun), split)
    own = [[item for item in left if shard_of[item] % new == rank] for rank in range(new)]
    for (rest, _), of_rank in zip(rests, own, strict=True):
        assert len(rest) == len({*rest} & {*of_rank}) == min(map(len, own)), "ranks end with the shortest rank"


@pytest.mark.parametrize("splits", [None, 12])
@pytest.mark.parametrize(
    "moves",
    [[(2, 0, None), (2, 0, 3), (1, 3, 2), (2, 2, 2), (1, 0, None)], [(3, 1, None), (2, 0, 2), (3, 2, 2), (1, 2, None)]],
)
def test_pipes_keep_their_state_while_shards_move_again_and_again(moves: Any, splits: int | None) -> None:
    got, states, shards = [], None, splits or moves[0][0]
    for ranks, workers, count in moves:
        found = of_ranks("counts", ranks, workers, count, states, ShardingPolicy(splits=splits) if splits else None)
        states, got = states_of(found), got + [item for items, _ in found for item in items]
    items, counts = zip(*got, strict=True)
    assert sorted(items) == sorted(2 * [*range(48)])
    assert sorted(counts) == sorted(shards * [*range(1, 96 // shards + 1)]), "each shard counts through both epochs"


def test_an_error_names_the_service_or_the_number_that_cannot_be_used_with_splits() -> None:
    class Own:
        def initialize(self, *arguments: Any) -> Any:
            return arguments[0]

        initialize_iteration = finalize = initialize

    with pytest.raises(ValueError, match="splits=4 needs a reading service of this package.*Own"):
        DataLoader2(source(), ShardingPolicy(splits=4), Own())
    for refuses in ShardingPolicy, lambda splits: DataLoader2(source(), splits=splits):
        with pytest.raises(ValueError, match="splits"):
            refuses(splits=0)


@pytest.mark.parametrize(
    ("workers", "taken", "after"), [(1, 3, "held"), (3, 20, "held"), (3, 3, "batched"), (1, 9, "batched")]
)
def test_batches_that_pipes_of_the_main_process_hold_are_kept_by_workers(workers: int, taken: int, after: str) -> None:
    def loader(number: int) -> DataLoader2[Any]:
        pipe = IterableWrapper(range(90)).shuffle().sharding_filter().batch(2).pin_memory(pin_memory_fn=unpinned)
        pipe = pipe.prefetch(3) if after == "held" else pipe.batch(2)
        return DataLoader2(pipe, reading_service=service(number))

    _, state, rest = continued(begun(loader(0)), taken)
    assert resumed(loader(workers), state) == [rest]


@pytest.mark.parametrize("workers", [1, 3, 0])
def test_an_epoch_that_is_replayed_up_to_the_state_has_its_shards(workers: int) -> None:
    def loader(number: int) -> DataLoader2[Any]:
        pipe = source().shuffle(buffer_size=4).pin_memory(pin_memory_fn=unpinned).batch(2)
        return DataLoader2(pipe, reading_service=service(number))

    with begun(loader(2)) as run:
        reading = iter(run)
        head = [next(reading) for _ in range(3)]
    state = saved(run)
    assert state["iteration_state"]["workers"] is None, "the state holds no positions of workers, only a count"
    [whole] = epochs_of(begun(loader(2)), 1)
    assert resumed(loader(workers), state) == [whole[3:]]
    assert head == whole[:3]


def test_threads_that_read_shards_in_one_process_restore_its_globals() -> None:
    torch = pytest.importorskip("torch")
    second_is_in_its_shard, first_is_done = threading.Event(), threading.Event()
    seen: list[tuple[str, int]] = []

    def loader(name: str, wait: Callable[[], object]) -> DataLoader2[Any]:
        def note(item: int) -> int:
            wait()
            seen.append((name, torch.utils.data.get_worker_info().num_workers))
            return item

        pipe = IterableWrapper(range(4)).sharding_filter().map(note)
        return DataLoader2(pipe, splits=3 if name == "first" else 4)

    def overlap() -> None:
        second_is_in_its_shard.set()
        first_is_done.wait(0.3)

    with loader("first", lambda: second_is_in_its_shard.wait(0.3)) as first, loader("second", overlap) as second:
        thread = threading.Thread(target=lambda: next(iter(second)))
        reading = iter(first)
        thread.start()
        next(reading)
        first_is_done.set()
        thread.join()
    assert sorted(seen) == [("first", 3), ("second", 4)]
    assert torch.utils.data.get_worker_info() is None


def until(is_over: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_over() and time.monotonic() < deadline:
        time.sleep(0.001)


@pytest.fixture
def reading_ahead(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Any]]:
    programs: list[GraphProgram] = []
    prepare = GraphProgram.prepare

    def prepared(program: GraphProgram, child: Any) -> None:
        programs.append(program)
        prepare(program, child)

    monkeypatch.setattr(GraphProgram, "prepare", prepared)
    return lambda: [
        pipe._data for each in programs for pipe in pipes_with_threads(each.datapipe) if pipe._data is not None
    ]


def test_threads_draw_no_numbers_while_the_state_of_another_shard_is_saved(
    often: None, reading_ahead: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    save, is_saving = exchanging.save_generators, threading.Event()

    def draw(item: int) -> tuple[int, float]:
        queues = [data.queue for data in reading_ahead() if threading.current_thread() in data.threads]
        until(lambda: is_saving.is_set() or any(queue.held or queue.is_awaited for queue in queues))
        return item, random.random()

    def save_when_drawn() -> Any:
        free = [data.queue for data in reading_ahead() if not data.queue.held]
        lengths = [len(queue.slots()) for queue in free]
        is_saving.set()
        for queue, length in zip(free, lengths, strict=True):
            until(lambda queue=queue, length=length: queue.finished or len(queue.slots()) > length)
        is_saving.clear()
        return save()

    def items(workers: int) -> list[Any]:
        pipe = IterableWrapper(range(ITEMS)).sharding_filter().map(draw).prefetch(ITEMS)
        service = MultiProcessingReadingService(workers, "fork")
        with DataLoader2(pipe, reading_service=service, splits=2) as loader:
            loader.seed(3)
            return list(loader)

    monkeypatch.setattr(exchanging, "save_generators", save_when_drawn)
    assert items(1) == items(2)


def test_after_an_exception_threads_do_not_draw_from_the_generator_of_the_program(
    reading_ahead: Callable[[], list[Any]],
) -> None:
    fails, reads, is_raised, has_drawn = (threading.Event() for _ in range(4))

    def draw(item: int) -> int:
        [queue] = (data.queue for data in reading_ahead() if threading.current_thread() in data.threads)
        if fails.is_set():
            reads.set()
            until(lambda: queue.held or is_raised.is_set())
        random.random()
        if is_raised.is_set():
            has_drawn.set()
        return item

    def fail(_item: int) -> None:
        fails.set()
        reads.wait(60)
        raise ValueError("the first item")

    pipe = IterableWrapper(range(10**6)).sharding_filter().map(draw).prefetch(10**6).map(fail)
    with DataLoader2(pipe, splits=2) as loader:
        reading = iter(loader)
        before = random.getstate()
        with pytest.raises(ValueError, match="the first item"):
            next(reading)
        is_raised.set()
        until(lambda: has_drawn.is_set() or all(data.queue.held for data in reading_ahead()))
        assert random.getstate() == before
