"""With `splits`, the pipes before a `sharding_filter` run once for all shards of a process."""

import io
import os
import random
import signal
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy
import pytest

from kept_state import KeptState
from pressing import interrupts_raise  # noqa: F401 - a fixture
from process_checks import nothing_is_left  # noqa: F401
from random_graphs.users import Passing as Through
from resuming import begun, epochs_of, saved, with_states
from reused_memory import Reused, is_even_at_first, value
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.dataloader2.graph import DataPipe
from torchdata.dataloader2.services import common_parts, reused_objects
from torchdata.dataloader2.services.common_pipes import filters_with_common_part
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes.iter import FileOpener, IterableWrapper, IterDataPipe, Multiplexer, Zipper
from torchdata.datapipes.map import SequenceWrapper

pytestmark = [pytest.mark.alone, pytest.mark.filterwarnings("ignore")]

SPLITS = 6
#: Pairs of worker counts: a state is saved with the first count and loaded with the second count.
PAIRS = [(2, 0), (0, 2), (1, 3), (3, 8), (8, 2)]


class Numbers:
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(map(int, range(self.count)))


class Passing(IterDataPipe[Any]):
    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            yield item, random.random()


def drawn(item: Any) -> Any:
    return item, random.random()


def is_kept(_item: Any) -> bool:
    return random.random() < 0.8


def numbers(count: int = 40) -> IterableWrapper[int]:
    return IterableWrapper(Numbers(count))


def of_two_filters() -> DataPipe:
    first = numbers(24).map(drawn).sharding_filter()
    return Multiplexer(first, numbers(30).filter(is_kept).map(drawn).sharding_filter().shuffle(buffer_size=3)).map(
        drawn
    )


FORMS: dict[str, Callable[[], Any]] = {
    "map": lambda: numbers().map(drawn).sharding_filter().map(drawn),
    "filter and shuffle": lambda: (
        numbers().filter(is_kept).shuffle(buffer_size=5).map(drawn).sharding_filter().shuffle(buffer_size=4).map(drawn)
    ),
    "batch": lambda: numbers(60).map(drawn).batch(2).sharding_filter().filter(is_kept).batch(2).map(drawn),
    "a user's pipe": lambda: Passing(numbers()).sharding_filter().map(drawn).batch(2),
    "zip before the filter": lambda: (
        Zipper(numbers().map(drawn), numbers(50).filter(is_kept)).sharding_filter().map(drawn)
    ),
    "cycle before the filter": lambda: numbers(12).shuffle().cycle(3).map(drawn).sharding_filter().map(drawn),
    "two filters": of_two_filters,
    "no user code": lambda: IterableWrapper(range(40)).shuffle(buffer_size=7).sharding_filter().shuffle().map(drawn),
    "uneven shards": lambda: (
        numbers(48).map(drawn).sharding_filter().filter(lambda item: item[0] % 6 > 1 or item[0] > 30).map(drawn)
    ),
    "bucketbatch": lambda: (
        numbers().map(drawn).sharding_filter().bucketbatch(batch_size=2, batch_num=2, bucket_num=1).map(drawn)
    ),
}


def loader(form: str, workers: int, state: Any = None) -> DataLoader2[Any]:
    return begun(DataLoader2(FORMS[form](), num_workers=workers, splits=SPLITS), state)


@pytest.mark.parametrize("form", FORMS)
def test_epochs_do_not_depend_on_the_number_of_workers(form: str) -> None:
    assert filters_with_common_part(Graph(FORMS[form]()))
    whole = epochs_of(loader(form, 0))
    assert whole[0] != whole[1]
    for workers in (1, 3, 8):
        assert epochs_of(loader(form, workers)) == whole, workers


@pytest.mark.parametrize("form", FORMS)
def test_a_state_of_any_position_resumes_with_another_number_of_workers(form: str) -> None:
    whole = epochs_of(loader(form, 0))
    for old, new in (0, 0), PAIRS[list(FORMS).index(form) % len(PAIRS)]:
        items, states = with_states(loader(form, old))
        assert items == whole[0]
        for index in range(0, len(states), 3 if old == new else 10):
            rest = [whole[0][index + 1 :], whole[1]]
            assert epochs_of(loader(form, new, states[index])) == rest, (old, new, index)


def unchanged(pipe: Any, _info: Any) -> Any:
    return pipe


def test_a_state_resumes_without_the_common_part() -> None:
    def loader(function: Any = None) -> DataLoader2[Any]:
        service = MultiProcessingReadingService(2, worker_init_fn=function)
        return DataLoader2(numbers().shuffle().sharding_filter().batch(2), ShardingPolicy(splits=6), service)

    for old, new in (None, unchanged), (unchanged, None):
        items, states = with_states(begun(loader(old)))
        for index in range(0, len(items), 4):
            with begun(loader(new), states[index]) as made:
                assert list(made) == items[index + 1 :]


@pytest.mark.parametrize("form", FORMS)
def test_a_state_of_a_later_epoch_resumes(form: str) -> None:
    whole = epochs_of(loader(form, 0), 3)
    with loader(form, 2) as made:
        list(made)
        items, states = with_states(made)
    assert items == whole[1]
    for index in range(0, len(states), 15):
        assert epochs_of(loader(form, index % 4, states[index])) == [whole[1][index + 1 :], whole[2]], index


def test_a_state_moves_through_many_numbers_of_workers() -> None:
    whole, got, state = epochs_of(loader("filter and shuffle", 0)), [], None
    for workers in (2, 0, 5, 1, 8, 3):
        with loader("filter and shuffle", workers, state) as made:
            reading = iter(made)
            got += [next(reading) for _ in range(3)]
            state = saved(made)
    assert [got + list(loader("filter and shuffle", 2, state)), whole[1]] == whole


def count(path: str, item: Any) -> Any:
    with open(path, "a") as file:
        file.write(".")
    return item


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_a_function_before_the_filter_is_called_once_per_process(workers: int, tmp_path: Path) -> None:
    path = str(tmp_path / "calls")
    pipe = numbers(100).map(partial(count, path)).sharding_filter().batch(4)
    with DataLoader2(pipe, num_workers=workers, splits=12) as made:
        assert sorted(item for batch in made for item in batch) == list(range(100))
    assert os.path.getsize(path) == 100 * max(workers, 1)


def test_a_resumed_process_recomputes_the_common_part_only_from_its_snapshot(tmp_path: Path) -> None:
    path = str(tmp_path / "calls")

    def loader(state: Any = None) -> DataLoader2[Any]:
        return begun(DataLoader2(numbers(240).map(partial(count, path)).sharding_filter(), splits=12), state)

    items, states = with_states(loader())
    os.unlink(path)
    assert list(loader(states[119])) == items[120:]
    assert 120 <= os.path.getsize(path) < 120 + 3 * 12


def test_a_replaced_worker_continues_all_its_shards(often: None) -> None:
    whole = epochs_of(loader("filter and shuffle", 0))
    service = MultiProcessingReadingService(2, on_worker_exit="restart", worker_prefetch_cnt=1, main_prefetch_cnt=1)
    pipe = FORMS["filter and shuffle"]()
    with begun(DataLoader2(pipe, ShardingPolicy(splits=SPLITS), reading_service=service)) as made:
        reading = iter(made)
        head = [next(reading) for _ in range(9)]
        os.kill(made.reading_service.engine_processes().pids[1], signal.SIGKILL)
        assert [head + list(reading), list(made)] == whole


def broken(item: int) -> int:
    if item % 7 == 3:
        raise ValueError(item)
    return item


@pytest.mark.parametrize("workers", [0, 2])
def test_on_error_before_the_filter_skips_items_for_all_shards(workers: int) -> None:
    def loader(state: Any = None) -> DataLoader2[Any]:
        pipe = numbers(60).map(broken).on_error("skip").map(drawn).sharding_filter().batch(2)
        return begun(DataLoader2(pipe, num_workers=workers, splits=4), state)

    items, states = with_states(loader())
    assert sorted(item for batch in items for item, _ in batch) == [item for item in range(60) if item % 7 != 3]
    for index in (0, 7, len(items) - 2):
        assert list(loader(states[index])) == items[index + 1 :]


def test_an_error_before_the_filter_reaches_the_program() -> None:
    for workers in 0, 2:
        pipe = numbers(60).map(broken).sharding_filter().batch(2)
        with DataLoader2(pipe, num_workers=workers, splits=4) as made, pytest.raises(ValueError, match="3"):
            list(made)


def test_the_generators_of_the_program_are_untouched() -> None:
    with loader("map", 0) as made:
        random.seed(11)
        before, reading = random.getstate(), iter(made)
        for _ in range(20):
            next(reading)
        assert random.getstate() == before


def tagged(item: Any) -> Any:
    import torch.utils.data

    info = torch.utils.data.get_worker_info()
    return item, info.id, info.num_workers


@pytest.mark.parametrize("workers", [0, 1, 3, 6])
def test_torch_reports_one_worker_before_the_filter_and_the_shard_after_it(workers: int) -> None:
    pytest.importorskip("torch")
    with DataLoader2(numbers(12).map(tagged).sharding_filter().map(tagged), num_workers=workers, splits=6) as made:
        assert [*made] == [((item, 0, 1), item % 6, 6) for item in range(12)]


class Shuffled:
    def __iter__(self) -> Iterator[int]:
        own = list(range(100))
        random.Random(os.getpid()).shuffle(own)
        return iter(own)


def test_different_orders_of_two_workers_are_still_found() -> None:
    with (
        DataLoader2(IterableWrapper(Shuffled()).sharding_filter(), num_workers=2, splits=6) as made,
        pytest.raises(RuntimeError, match="order"),
    ):
        list(made)


@pytest.mark.parametrize("form", ["uneven shards", "filter and shuffle", "bucketbatch", "two filters"])
@pytest.mark.parametrize("most", [0, 1, 3])
def test_a_shard_that_lags_runs_its_own_replica(form: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = epochs_of(loader(form, 0))
    monkeypatch.setattr(common_parts, "MOST_WAITING", most)
    items, states = with_states(loader(form, 0))
    assert items == whole[0]
    for index in range(0, len(items), 7):
        assert epochs_of(loader(form, 0, states[index])) == [items[index + 1 :], whole[1]], index


def archive(folder: Path, count: int) -> str:
    path = folder / "members.tar"
    with tarfile.open(path, "w") as file:
        for number in range(count):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = 4
            file.addfile(member, io.BytesIO(b"%04d" % number))
    return str(path)


def read(pair: Any) -> bytes:
    return bytes(pair[1].read())


@pytest.mark.parametrize("workers", [0, 2])
def test_streams_do_not_wait_for_other_shards(workers: int, tmp_path: Path) -> None:
    path = archive(tmp_path, 60)

    def loader(state: Any = None) -> DataLoader2[Any]:
        pipe = FileOpener(IterableWrapper([path]), "b").load_from_tar().sharding_filter().map(read)
        return begun(DataLoader2(pipe, num_workers=workers, splits=6), state)

    items, states = with_states(loader())
    assert items == [b"%04d" % number for number in range(60)]
    for index in (0, 13, 58):
        assert list(loader(states[index])) == items[index + 1 :]


class EpochCounter(IterDataPipe[Any]):
    """A user-defined pipe that counts its iterations, and yields its items in another order in each iteration."""

    def __init__(self, source: Any) -> None:
        self.source, self.epoch = source, 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        items = [*self.source]
        random.Random(self.epoch).shuffle(items)
        for item in items:
            yield item, self.epoch


class SavedCounter(KeptState, EpochCounter):
    kept = ("epoch",)


COUNTING: dict[str, Callable[[], Any]] = {
    "before the filter": lambda: EpochCounter(numbers(24)).sharding_filter().batch(2),
    # A user-defined pipe prevents the shards of a process from sharing pipes.
    "before the filter of each shard": lambda: Through(EpochCounter(numbers(24)).sharding_filter()).batch(2),
    "after the filter": lambda: EpochCounter(numbers(24).sharding_filter()).batch(2),
}


def counting(form: str, workers: int, state: Any = None) -> DataLoader2[Any]:
    return begun(DataLoader2(COUNTING[form](), num_workers=workers, splits=4), state)


@pytest.mark.parametrize("form", COUNTING)
def test_the_attributes_of_a_users_pipe_stay_between_epochs(form: str) -> None:
    whole = epochs_of(counting(form, 0), 3)
    assert [{epoch for batch in items for _, epoch in batch} for items in whole] == [{1}, {2}, {3}]
    for workers in (1, 2, 3):
        assert epochs_of(counting(form, workers), 3) == whole


class ReusingCounter(EpochCounter):
    def __iter__(self) -> Iterator[Any]:
        array = numpy.zeros(1)
        for (item, _), epoch in super().__iter__():
            array[:] = item
            yield array, epoch


class PositionCounter(EpochCounter):
    def __iter__(self) -> Iterator[Any]:
        for position, (item, epoch) in enumerate(super().__iter__()):
            yield item, epoch, position


def is_kept_in_second_epoch(item: Any) -> bool:
    """Rejects many items of one shard in the second epoch, so that all other shards must wait for this shard."""
    return item[1] != 2 or item[2] % 4 != 1 or item[2] > 30


CHANGING: dict[str, Callable[[], Any]] = {
    "reused": lambda: (
        ReusingCounter(numbers(40).map(drawn)).sharding_filter().map(lambda item: (int(item[0][0]), item[1])).batch(3)
    ),
    "late": lambda: PositionCounter(numbers(40)).sharding_filter().filter(is_kept_in_second_epoch),
}


def all_sorted(epochs: list[list[Any]]) -> list[list[Any]]:
    return [sorted(pair for each in items for pair in (each if isinstance(each, list) else [each])) for items in epochs]


@pytest.mark.parametrize("form", CHANGING)
def test_all_replicas_of_the_common_part_count_the_epochs(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_parts, "MOST_WAITING", 1)
    whole = all_sorted(epochs_of(begun(DataLoader2(CHANGING[form]())), 3))
    assert [{pair[1] for pair in items} for items in whole] == [{1}, {2}, {3}]
    for workers in (0, 1, 3):
        found = epochs_of(begun(DataLoader2(CHANGING[form](), num_workers=workers, splits=4)), 3)
        assert all_sorted(found) == whole, workers


@pytest.mark.parametrize("form", COUNTING)
def test_all_shards_count_the_epochs_after_a_resumed_epoch(form: str) -> None:
    _, states = with_states(counting(form, 0))
    with counting(form, 0) as made:
        list(made)
        states.append(saved(made))
    for number, state in enumerate(states[::2]):
        resumed = epochs_of(counting(form, 0, state), 3)
        for items in resumed[1:]:
            assert sorted(item for batch in items for item, _ in batch) == [*range(24)]
        assert epochs_of(counting(form, 1 + number % 2, state), 3) == resumed


LEFT = COUNTING | {"with a state": lambda: SavedCounter(numbers(24)).sharding_filter().batch(2)}


@pytest.mark.parametrize("form", LEFT)
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("workers", [0, 3])
def test_all_shards_count_an_epoch_that_was_left(form: str, count: int, workers: int) -> None:
    with begun(DataLoader2(LEFT[form](), num_workers=workers, splits=4)) as made:
        for _ in range(2):
            reading = iter(made)
            for _ in range(count):
                next(reading)
            del reading
        assert sorted(pair for batch in made for pair in batch) == [(item, 3) for item in range(24)]


@pytest.mark.parametrize("form", COUNTING)
def test_the_shards_of_a_loaded_state_last_for_one_epoch(form: str) -> None:
    with begun(DataLoader2(COUNTING[form](), num_workers=1, splits=6)) as made:
        reading = iter(made)
        next(reading)
        state = saved(made)
    resumed = epochs_of(counting(form, 0, state), 3)
    assert [{epoch for batch in items for _, epoch in batch} for items in resumed] == [{1}, {1}, {2}]
    assert sorted(item for batch in resumed[2] for item, _ in batch) == [*range(24)]
    assert epochs_of(counting(form, 2, state), 3) == resumed


@contextmanager
def interrupted_at(moment: int) -> Iterator[list[int]]:
    """Sends SIGINT to this process after it has executed `moment` instructions of `common_parts`. The yielded list
    contains the number of instructions that were executed so far."""
    executed, files = [0], (common_parts.__file__, reused_objects.__file__)

    def trace(frame: Any, event: str, _arg: Any) -> Any:
        if frame.f_code.co_filename not in files and frame.f_code not in (drawn.__code__, is_kept.__code__):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            executed[0] += 1
            if executed[0] == moment + 1:
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield executed
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)


def reused() -> Any:
    return IterableWrapper(Reused("tuple", 7)).sharding_filter().filter(is_even_at_first).map(value).map(drawn)


@pytest.mark.usefixtures("interrupts_raise")
@pytest.mark.parametrize("form", ["filter and shuffle", "uneven shards", "batch", "two filters", "reused"])
def test_a_state_after_ctrl_c_in_the_common_part_is_exact(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMS, "reused", reused)
    monkeypatch.setattr(common_parts, "MOST_WAITING", 3)  # some shards switch to copies of their own
    whole = epochs_of(loader(form, 0))
    with loader(form, 0) as made, interrupted_at(-1) as executed:
        list(made)
    rng, presses = random.Random(form), 0
    for moment in rng.sample(range(executed[0]), 12):
        with loader(form, 0) as made:
            got: list[Any] = []
            reading = iter(made)
            with interrupted_at(moment) as reached:
                got.extend(reading)  # Ctrl-C loses no item, because `extend` loops in C.
            presses += reached[0] == moment + 1 and len(got) < len(whole[0])
            assert got == whole[0][: len(got)]
            state = saved(made)
            if len(got) < len(whole[0]):
                assert epochs_of(loader(form, 0, state)) == [whole[0][len(got) :], whole[1]], moment
            more = [*islice(reading, 2)]
            assert len({*map(repr, got + more)}) == len(got + more), moment
            state, rest = saved(made), [*reading]
            if rest:  # Ctrl-C may lose the item that it interrupts, but no other item.
                assert epochs_of(loader(form, 0, state)) == [rest, whole[1]], moment
    assert presses > 4


@pytest.mark.parametrize(
    ("why", "pipe"),
    [
        ("the source seeks", lambda: IterableWrapper(list(range(9))).sharding_filter()),
        ("items are read by index", lambda: SequenceWrapper(range(9)).shuffle().map(drawn).sharding_filter()),
        ("the filter is read twice", lambda: numbers().map(drawn).sharding_filter().cycle(2)),
        ("a user's pipe may read the filter twice", lambda: Passing(numbers().sharding_filter())),
        ("a thread reads the filter", lambda: numbers().map(drawn).sharding_filter().prefetch(2)),
        ("a thread reads the source", lambda: numbers().prefetch(2).sharding_filter()),
        ("exceptions of the source are skipped later", lambda: numbers().map(broken).sharding_filter().on_error()),
        ("the source outlives the epoch", lambda: numbers().in_memory_cache().sharding_filter()),
        ("files are locked", lambda: numbers().sharding_filter().on_disk_cache(filepath_fn=str).map(str).end_caching()),
        ("items are cached", lambda: numbers().sharding_filter().in_memory_cache()),
        ("children share the filter", lambda: Zipper(*numbers().sharding_filter().fork(2))),
        ("workers do not share the items", lambda: numbers().sharding_filter(2)),
        ("one filter follows another", lambda: numbers().sharding_filter(3).map(drawn).sharding_filter(2)),
        ("fork keeps its children", lambda: Zipper(*numbers().fork(2)).sharding_filter()),
        ("the source is read past the filter", lambda: Zipper((source := numbers()).sharding_filter(), source)),
    ],
)
def test_other_pipelines_keep_a_replica_for_each_shard(why: str, pipe: Callable[[], Any]) -> None:
    assert not filters_with_common_part(Graph(pipe())), why


def repeated(pipe: Any) -> Any:
    return pipe.cycle(2)


def test_a_function_that_repeats_the_items_ends_the_common_part() -> None:
    with DataLoader2(numbers(12).sharding_filter(), num_workers=2, splits=4) as made:
        assert list(made) == list(range(12))
        made.reading_service._pause(repeated)
        made.reading_service._resume()
        assert sorted(made) == sorted([*range(12)] * 2)


def test_without_splits_each_worker_draws_its_own_numbers() -> None:
    def drawn_by(workers: int) -> list[Any]:
        pipe = numbers(12).map(drawn).sharding_filter()
        return epochs_of(begun(DataLoader2(pipe, reading_service=MultiProcessingReadingService(workers))), 1)[0]

    assert [item for item, _ in drawn_by(2)] == list(range(12))
    assert drawn_by(2) != drawn_by(3)
