"""If Ctrl-C interrupts the computation of an item, the item is lost neither in the loop nor in later states."""

import itertools
import random
import signal
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from one_rank import Alone
from pressing import check_each_call, read_until_call
from random_graphs.users import Passing, unpinned
from resuming import begun, continued, epochs_of, resumed, saved, stopped
from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from torchdata.datapipes._pipe import exchanging, skipping
from torchdata.datapipes.iter import IterableWrapper

pytestmark = pytest.mark.alone


class Cut:
    at: Any = None
    kind: type[BaseException] = KeyboardInterrupt

    def __new__(cls, item: Any) -> Any:
        if cls.at == item and cls.at is not None:
            cls.at = None
            if cls.kind is KeyboardInterrupt:
                signal.raise_signal(signal.SIGINT)
            raise cls.kind
        return item


@pytest.fixture(autouse=True)
def nothing_is_cut() -> Iterator[None]:
    Cut.at, Cut.kind = None, KeyboardInterrupt
    Halting.cuts.clear()
    yield
    Cut.at = None
    Halting.cuts.clear()


class Generated(Passing):
    def __iter__(self) -> Any:
        for item in self.source:
            yield Cut(item)


class Halting(Passing):
    cuts: list[int] = []  # noqa: RUF012 - all copies share the list

    def __iter__(self) -> Any:
        if self.cuts:
            self.cuts[0] -= 1
            if self.cuts[0] < 0:
                self.cuts.pop(0)
                raise KeyboardInterrupt
        return iter(self.source)


def twice(item: Any) -> list[Any]:
    return [Cut(item), item]


def drawing(item: Any) -> Any:
    return Cut(item) * 100 + random.randrange(100)


PIPES: dict[str, Any] = {
    "map": lambda pipe: pipe.map(Cut),
    "random numbers": lambda pipe: pipe.map(drawing),
    "batch": lambda pipe: pipe.map(Cut).batch(3),
    "shuffle": lambda pipe: pipe.map(Cut).shuffle(buffer_size=4),
    "filter": lambda pipe: pipe.filter(lambda item: bool(Cut(item) >= 0)),
    "flatmap": lambda pipe: pipe.flatmap(twice),
    "a generator": lambda pipe: Generated(pipe),
    "after a thread": lambda pipe: pipe.prefetch(2).map(Cut),
    "fullsync of one rank": lambda pipe: Generated(pipe).fullsync(process_group=Alone()),
}
SERVICES: dict[str, Any] = {
    "no service": lambda: None,
    "in process": InProcessReadingService,
    "over workers": lambda: MultiProcessingReadingService(2),
}


def loader(kind: str, service: str, state: Any = None) -> DataLoader2[Any]:
    pipe: Any = IterableWrapper(range(40)).shuffle().sharding_filter()
    if service == "over workers":
        pipe = pipe.pin_memory(pin_memory_fn=unpinned)  # the main process runs all pipes after `pin_memory`
    random.seed(3)
    return begun(DataLoader2({**PIPES, "halting": Halting}[kind](pipe), reading_service=SERVICES[service]()), state)


def read_until_cut(iterator: Iterator[Any], at: int, kind: type[BaseException] = KeyboardInterrupt) -> list[Any]:
    got: list[Any] = []
    Cut.at, Cut.kind = at, kind
    with pytest.raises(kind):
        for item in iterator:
            got.append(item)
    return got


@pytest.mark.parametrize(
    ("kind", "service"),
    [
        *((kind, "in process") for kind in PIPES),
        ("map", "no service"),
        ("map", "over workers"),
        ("batch", "over workers"),
    ],
)
def test_a_state_saved_after_ctrl_c_resumes_with_the_interrupted_item(kind: str, service: str) -> None:
    epochs = epochs_of(loader(kind, service))
    for at, limited in ((0, False), (17, False), (17, True)) if kind == "map" else ((0, False), (17, True)):
        with loader(kind, service) as made:
            reading = iter(made)
            if limited:
                reading.limit(1000)
            got = read_until_cut(reading, at)
            state = saved(made)
        rest, following = epochs_of(loader(kind, service, state))
        assert [got + rest, following] == epochs


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, KeyboardInterrupt])
def test_a_state_saved_after_an_exit_or_interrupt_has_the_interrupted_item(kind: type[BaseException]) -> None:
    [whole] = epochs_of(loader("batch", "in process"), 1)
    for is_shut_down in False, True:
        with loader("batch", "in process") as made:
            got = read_until_cut(iter(made), 17, kind)
            state = None if is_shut_down else saved(made)
        [rest] = epochs_of(loader("batch", "in process", state or saved(made)), 1)
        assert got + rest == whole


def test_a_state_from_before_an_interrupt_keeps_the_items_before_it() -> None:
    made_items: list[int] = []

    def noting(item: int) -> int:
        made_items.append(item)
        return Cut(item)

    def build(state: Any = None) -> DataLoader2[Any]:
        loader = DataLoader2(IterableWrapper(range(40)).map(noting))
        if state is not None:
            loader.load_state_dict(state, strict=False)
        return loader

    with build() as loader:
        reading = iter(loader)
        for _ in range(20):
            next(reading)
        loader.state_dict()
        assert read_until_cut(reading, 23) == [20, 21, 22]
        state = loader.state_dict()
    del made_items[:]
    with build(state) as loader:
        assert list(loader) == list(range(23, 40))
    assert made_items == list(range(20, 40))


@pytest.mark.parametrize(
    ("kind", "service"),
    [
        *((kind, "in process") for kind in PIPES),
        ("filter", "no service"),
        ("map", "over workers"),
        ("batch", "over workers"),
    ],
)
def test_a_loop_that_continues_after_ctrl_c_receives_all_items(kind: str, service: str) -> None:
    whole, following = epochs_of(loader(kind, service))
    with loader(kind, service) as made:
        reading = iter(made)
        got = [*islice(reading, 2)]
        got += read_until_cut(reading, 17)
        cut, states = len(got), {}
        for item in reading:
            got.append(item)
            if len(got) in (cut + 1, cut + 4):
                states[len(got)] = made.state_dict()
                states[len(got) - 1] = made.state_dict(items_ago=1)
        assert [got, list(made)] == [whole, following]
    for index, state in states.items():
        assert epochs_of(loader(kind, service, state)) == [whole[index:], following]


@pytest.mark.parametrize("kind", [SystemExit, type("Interrupt", (KeyboardInterrupt,), {})])  # a thread sends no signal
def test_no_item_is_lost_if_a_thread_that_reads_ahead_raises_an_exit(kind: type[BaseException]) -> None:
    [whole] = epochs_of(DataLoader2(IterableWrapper(range(40)).map(Cut).prefetch(3)), 1)
    with DataLoader2(IterableWrapper(range(40)).map(Cut).prefetch(3)) as made:
        reading = iter(made)
        Cut.kind = kind
        assert read_until_cut(reading, 17, kind) + list(reading) == whole


def test_a_second_ctrl_c_while_a_loader_returns_to_its_position_loses_no_item() -> None:
    [whole] = epochs_of(loader("batch", "in process"), 1)
    for cuts in range(3):
        with loader("batch", "in process") as made:
            reading = iter(made)
            got = read_until_cut(reading, 30)
            assert got
            for earlier in [8] * cuts:  # A worker computes this item again before it computes the interrupted item.
                assert read_until_cut(reading, earlier) == []
                state = saved(made)
                assert epochs_of(loader("batch", "in process", state), 1) == [whole[len(got) :]]
            assert got + list(reading) == whole


def test_a_loader_that_was_paused_after_ctrl_c_stays_paused_and_then_loses_no_item() -> None:
    [whole] = epochs_of(loader("batch", "in process"), 1)
    with loader("batch", "in process") as made:
        reading = iter(made)
        got = read_until_cut(reading, 17)
        reading._pause()
        assert list(reading) == []
        reading.resume()
        assert got + list(reading) == whole


@pytest.mark.parametrize("kind", PIPES)
def test_ctrl_c_at_each_call_neither_loses_nor_repeats_an_item(kind: str) -> None:
    assert check_each_call(lambda: loader(kind, "in process"), 17) > 8


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ctrl-C in `close` is only printed
def test_ctrl_c_at_each_call_restores_what_shards_have_changed_in_this_process() -> None:
    for number in range(1, 90):
        with begun(DataLoader2(IterableWrapper(range(12)).shuffle().sharding_filter(), splits=3)) as made:
            reading = iter(made)
            next(reading)
            before = skipping.worker, random.getstate()
            read_until_call(reading, number)
            assert (skipping.worker, random.getstate()) == before, f"interrupted at call {number}"
            assert not exchanging._turn._is_owned(), f"interrupted at call {number}"  # type: ignore[attr-defined]


def test_ctrl_c_loses_no_item_that_a_thread_has_read_ahead() -> None:
    def made() -> DataLoader2[Any]:
        return begun(DataLoader2(IterableWrapper(range(20)).shuffle().prefetch(3)))

    assert check_each_call(made) > 0  # The main thread takes an item without calls of Python functions.


class Cutting:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return Cut(index)


def test_a_loop_over_a_dataset_continues_after_ctrl_c_with_the_interrupted_sample() -> None:
    with DataLoader2.from_dataset(Cutting(), shuffle=True) as made:
        reading = iter(made)
        got = read_until_cut(reading, 17)
        got += list(reading)
    assert sorted(got) == [*range(40)]


def test_a_one_shot_iterator_raises_an_error_after_ctrl_c_because_it_cannot_be_read_again() -> None:
    with DataLoader2(IterableWrapper(iter(range(40)), deepcopy=False).map(Cut)) as made:
        reading = iter(made)
        assert read_until_cut(reading, 17) == [*range(17)]
        for _ in range(2):
            with pytest.raises(RuntimeError, match="the range_iterator given to .* is a one-shot iterator"):
                next(reading)
        assert made.state_dict()["iteration_state"]["received"] == 17
        assert list(made) == [*range(18, 40)]


class Unsaved(Passing):
    def __iter__(self) -> Any:
        return map(Cut, self.source)

    def state_dict(self) -> Any:
        raise ValueError("the message cannot be built")

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError("no exception was raised")


@pytest.mark.filterwarnings("ignore:states of this pipeline resume from the beginning")
def test_pipes_that_cannot_be_saved_are_read_again_from_their_beginning() -> None:
    with DataLoader2(Unsaved(IterableWrapper(range(40)))) as made:
        reading = iter(made)
        got = read_until_cut(reading, 17)
        state = made.state_dict()
        assert next(reading) == 17
        assert made.state_dict()["iteration_state"]["received"] == 18
        assert next(iter(made)) == 0
        assert made.state_dict()["iteration_state"]["received"] == 1  # the count contains only items of the new epoch
    with DataLoader2(Unsaved(IterableWrapper(range(40)))) as made:
        made.load_state_dict(state)
        assert got + list(made) == list(range(40))


@pytest.mark.parametrize("service", SERVICES)
def test_the_epoch_after_one_that_ctrl_c_has_ended_is_complete(service: str) -> None:
    epochs = epochs_of(loader("batch", service))
    made = loader("batch", service)
    read_until_cut(iter(made), 17)
    got, state, rest = continued(made, 2)
    assert got + rest == epochs[1]
    assert epochs_of(loader("batch", service, state), 1) == [epochs[1][2:]]


@pytest.mark.parametrize("service", SERVICES)
def test_an_epoch_begins_again_after_ctrl_c_at_its_start_and_its_state_is_the_previous_one(service: str) -> None:
    epochs = epochs_of(loader("halting", service), 3)
    with loader("halting", service) as made:
        for epoch in epochs:
            Halting.cuts.append(0)
            with pytest.raises(KeyboardInterrupt):
                iter(made)
            state = saved(made)
            assert resumed(loader("halting", service), state) == [epoch]
            assert list(made) == epoch


@pytest.mark.parametrize(
    ("service", "after_iter"),
    [("no service", False), ("in process", True), ("over workers", False), ("over workers", True)],
)
def test_a_state_is_not_lost_if_ctrl_c_interrupts_its_way_to_the_main_process(service: str, after_iter: bool) -> None:
    epochs = epochs_of(loader("halting", service))
    _, state = stopped(loader("halting", service), 7)
    with loader("halting", service) as made:
        if after_iter:
            iter(made)
        Halting.cuts.append(0)
        with pytest.raises(KeyboardInterrupt):
            made.load_state_dict(state)
            iter(made)
        again = saved(made)
        assert again["iteration_state"]["received"] == 7
        assert [list(made), list(made)] == [epochs[0][7:], epochs[1]]
    assert resumed(loader("halting", service), again) == [epochs[0][7:]]


@pytest.mark.parametrize("workers", [0, 2])
def test_another_state_can_be_loaded_after_a_resume_has_failed(workers: int) -> None:
    pipe = IterableWrapper(range(20)).shuffle().sharding_round_robin_dispatch().shuffle()

    def made(number: int) -> DataLoader2[Any]:
        service = MultiProcessingReadingService(number) if number else InProcessReadingService()
        return DataLoader2(pipe, reading_service=service)

    states, rests = {}, {}
    for number in 0, 2:
        _, states[number], rests[number] = continued(begun(made(number)), 1)
    other = 2 - workers
    with made(workers) as loader:
        loader.load_state_dict(states[other])
        with pytest.raises(ValueError, match="dispatching process|round_robin_dispatch"):
            iter(loader)
        assert loader.state_dict()["iteration_state"] == states[other]["iteration_state"]
        loader.load_state_dict(states[workers])
        assert list(loader) == rests[workers]


@pytest.mark.parametrize(
    ("service", "count"),
    [
        ("no service", 7),
        ("in process", 20),
        ("in process, ahead", 7),
        *(("over workers", count) for count in (0, 7, 20)),
    ],
)
def test_a_loader_that_was_shut_down_still_has_its_state(service: str, count: int, monkeypatch: Any) -> None:
    monkeypatch.setitem(SERVICES, "in process, ahead", lambda: InProcessReadingService(prefetch_cnt=3))
    epochs = epochs_of(loader("halting", service), 3)
    with loader("halting", service) as made:
        assert list(islice(made, count)) == epochs[0][:count]
    state = saved(made)
    with pytest.raises(ValueError, match="shut down"):
        made.state_dict(items_ago=1)
    other = loader("halting", service)
    assert resumed(other, state, 2) == [epochs[0][count:], epochs[1]]
    state = saved(other)
    assert resumed(loader("halting", service), state) == [epochs[2]]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ctrl-C in `__del__` is only printed
def test_a_loop_continues_although_ctrl_c_has_also_interrupted_an_earlier_attempt() -> None:
    def build() -> DataLoader2[Any]:
        return begun(DataLoader2(IterableWrapper(range(12)).shuffle().sharding_filter().prefetch(2), splits=3))

    expected = epochs_of(build())
    interruptions = 0
    for number in itertools.count(5, 997):
        with build() as made:
            reading = iter(made)
            got = read_until_call(reading, 30)
            second = read_until_call(reading, number)
            if got is None or second is None:
                break
            interruptions += 1
            assert [[*got, *second, *reading], [*made]] == expected, f"interrupted at call {number}"
    assert interruptions > 5
