"""If Ctrl-C interrupts a StatefulDataLoader at any moment, no batch is lost or repeated, and states stay exact."""

import itertools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler

from handlers import handling
from kept_state import KeptState
from pressing import (
    check_each_call,
    check_states_at_each_call,
    interrupts_raise,  # noqa: F401 - a fixture
    pressed,
    read_until_call,
)
from process_checks import nothing_is_left  # noqa: F401 - a fixture for all tests here
from random_stateful.datasets import EpochAtEnd, Indexed
from random_stateful.orders import PythonShuffled
from random_stateful.running import plain, seed_all
from resumed import HasPosition, loaded, saved, saved_at
from torchdata._stateful import copied, is_same
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

pytestmark = [
    pytest.mark.alone,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:on_error has skipped"),
    # If Ctrl-C arrives between `open` and `with`, the file is closed only when its last reference is deleted.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning"),
]


class Broken(Indexed):
    broken = frozenset(index for index in range(12_000) if index % 7 == 0 or index // 8 % 5 == 0)


def loaders() -> dict[str, Callable[[], Any]]:
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
    return {
        "shuffled": lambda: StatefulDataLoader(Indexed(12_000), 8, sampler=PythonShuffled(12_000), **options),
        "torch's shuffle": lambda: StatefulDataLoader(Indexed(12_000), 8, shuffle=True, **options),
        "one by one": lambda: StatefulDataLoader(Indexed(3_000), None, **options),
        "as they are ready": lambda: StatefulDataLoader(Indexed(6_000), 4, in_order=False, **options),
        "some are skipped": lambda: StatefulDataLoader(Broken(12_000), 8, on_error="skip", **options),
        "a stream": lambda: StatefulDataLoader(EpochAtEnd(4_000), 2, **options),
    }


def taken(loader: Any, seed: int) -> tuple[list[Any], int]:
    def look(got: list[Any]) -> None:
        assert loader.state_dict()["_snapshot"]["_snapshot_step"] == len(got)

    got, presses = pressed(iter(loader), seed, look)
    return [plain(batch) for batch in got], presses


class Managed(StatefulDataLoader[Any]):
    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


SMALL: dict[str, Callable[[], Any]] = {
    "indices": lambda: Managed(Indexed(9), 4),
    "shuffled": lambda: Managed(Indexed(9), 4, shuffle=True, generator=generator()),
    "a user's sampler": lambda: Managed(Indexed(9), 4, sampler=[*range(8, -1, -1)]),
    "a generator as sampler": lambda: Managed(Indexed(9), 4, sampler=Backwards(9)),
    "ranks": lambda: Managed(Indexed(9), 4, sampler=StatefulDistributedSampler(range(9), 1, 0)),
    "one by one": lambda: Managed(Indexed(5), None),
    "some are skipped": lambda: Managed(Broken(20), 4, on_error="skip"),
    "a generator": lambda: Managed(Yielding(9), 4),
    "a stream": lambda: Managed(EpochAtEnd(9), 4, drop_last=True),
}


class Backwards:
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        yield from map(abs, range(self.count - 1, -1, -1))


class Yielding(torch.utils.data.IterableDataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        yield from map(abs, range(self.count))


@pytest.mark.parametrize("stream", [Yielding, EpochAtEnd])
def test_ctrl_c_at_each_call_neither_loses_nor_repeats_a_batch_of_shards_in_this_process(stream: Any) -> None:
    state = saved_at(StatefulDataLoader(stream(5), 2, num_workers=2), 0, 1)
    assert check_each_call(lambda: loaded(Managed(stream(5), 2), state), 31) > 20


def test_a_state_saved_at_each_call_is_exact_and_does_not_change_the_random_numbers_of_shards_in_this_process() -> None:
    state = saved_at(StatefulDataLoader(EpochAtEnd(5, "all"), 2, num_workers=2), 0, 1)
    assert check_states_at_each_call(lambda: loaded(Managed(EpochAtEnd(5, "all"), 2), state), 11) > 20


@pytest.mark.parametrize("kind", SMALL)
def test_without_workers_ctrl_c_at_each_call_neither_loses_nor_repeats_a_batch(kind: str) -> None:
    assert check_each_call(SMALL[kind], 7) > 20


@pytest.mark.parametrize("is_stateful", [False, True])
def test_after_ctrl_c_the_number_of_the_next_epoch_changes_neither_the_rest_of_an_epoch_nor_a_state(
    is_stateful: bool,
) -> None:
    def make(epoch: int) -> Any:
        sampler = (StatefulDistributedSampler if is_stateful else DistributedSampler)(range(9), 1, 0)
        sampler.set_epoch(epoch)
        # A generator ends at Ctrl-C, so the stateful sampler is tested without `BatchSampler`, which uses a generator.
        batches: Any = {"sampler": sampler} if is_stateful else {"batch_sampler": BatchSampler(sampler, 1, False)}
        return StatefulDataLoader(Indexed(9), **batches), sampler

    def read(iterator: Any) -> list[Any]:
        return [*map(plain, iterator)]

    expected = {epoch: read(make(epoch)[0]) for epoch in (3, 4)}
    for number in itertools.count(5, 5):
        loader, sampler = make(3)
        iterator = iter(loader)
        got = read_until_call(iterator, number)
        if got is None:
            break
        sampler.set_epoch(4)
        state, got, rest = saved(loader), read(got), read(iterator)
        begun = [expected[3]] if got else [*expected.values()]  # The order may not be drawn before the first batch.
        assert got + rest in begun, f"interrupted at call {number}"
        if rest:
            assert read(loaded(make(4)[0], state)) == rest, f"the state after an interruption at call {number}"
    assert number > 200


# With "ranks", the sampler is a generator. Code that interrupts a running generator cannot get its next value.
@pytest.mark.parametrize("kind", [kind for kind in SMALL if kind != "ranks"])
def test_without_workers_a_state_saved_at_each_call_is_exact(kind: str) -> None:
    assert check_states_at_each_call(SMALL[kind], 7) > 5


@pytest.mark.parametrize("kind", loaders())
@pytest.mark.usefixtures("interrupts_raise")
def test_ctrl_c_at_random_moments_neither_loses_nor_repeats_a_batch(kind: str) -> None:
    seed_all(3)
    expected = [plain(batch) for batch in loaders()[kind]()]
    presses = seed = 0
    while seed < 2 or presses < 8:  # An epoch takes milliseconds, so some presses of Ctrl-C are too late.
        assert seed < 30, "Ctrl-C interrupted too few runs"
        seed_all(3)
        loader = loaders()[kind]()
        got, more = taken(loader, seed)
        if kind == "as they are ready":
            got, expected = sorted(got), sorted(expected)
        assert got == expected, f"seed {seed}, after {more} presses"
        if kind == "some are skipped":
            skipped = loader.state_dict()["_torchdata_rs"][0]["skipped"]
            assert (sum(skipped["kinds"].values()), skipped["seen"]) == (len(Broken.broken), 12_000)
        presses, seed = presses + more, seed + 1


class CutOff(torch.utils.data.Dataset[int]):
    def __init__(self, at: int | None) -> None:
        self.at = at

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> int:
        if index == self.at:
            self.at = None
            signal.raise_signal(signal.SIGINT)
        return index


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.usefixtures("interrupts_raise")
def test_without_workers_a_batch_interrupted_by_ctrl_c_is_the_next_batch_of_this_loop_and_of_a_state(
    shuffle: bool, batch_size: int | None
) -> None:
    def loader(at: int | None = None) -> StatefulDataLoader[Any]:
        seed_all(3)
        return StatefulDataLoader(CutOff(at), batch_size, shuffle=shuffle)

    expected = [plain(batch) for batch in loader()]
    made, got = loader(17), []
    iterator = iter(made)
    with pytest.raises(KeyboardInterrupt):
        for batch in iterator:
            got.append(plain(batch))
    state = made.state_dict()
    assert 0 < len(got) < len(expected)
    assert state["_num_yielded"] == len(got)
    assert got + [plain(batch) for batch in loaded(loader(), state)] == expected
    assert got + [plain(batch) for batch in iterator] == expected


class Ticking:
    def __init__(self, at: int, does: Callable[[], object]) -> None:
        self.at, self.does = at, does

    def __call__(self) -> None:
        self.at -= 1
        if self.at == 0:
            self.does()


class Generated(HasPosition, torch.utils.data.IterableDataset[int]):
    def __init__(self, tick: Ticking) -> None:
        self.tick = tick

    def __iter__(self) -> Iterator[int]:
        self.position, self.start = self.start, 0
        while self.position < 12:
            self.tick()
            self.position += 1
            self.tick()
            yield self.position - 1


class Stateless(Generated):
    state_dict = load_state_dict = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        if name in ("state_dict", "load_state_dict"):
            raise AttributeError(name)
        return super().__getattribute__(name)


class Stepping(KeptState, Generated):
    kept = ("position",)

    def __iter__(self) -> Iterator[int]:
        self.position, self.is_loaded = self.position if self.is_loaded else 0, False
        return self

    def __next__(self) -> int:
        if self.position == 12:
            raise StopIteration
        self.tick()
        self.position += 1
        self.tick()
        return self.position - 1


class StepsOf(Stateless):
    def __iter__(self) -> Iterator[int]:
        return iter(Stepping(self.tick))


STREAMS = [Generated, Stateless, Stepping, StepsOf]


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("stream", STREAMS)
def test_ctrl_c_within_a_sample_of_a_stream_loses_nothing_here_and_from_a_state(stream: Any, epoch: int) -> None:
    whole = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    for moment in range(1, 25):
        made = StatefulDataLoader(stream(Ticking(24 * epoch + moment, interrupt)), 4)
        for _ in range(epoch):
            list(made)
        iterator, got = iter(made), list[Any]()
        with pytest.raises(KeyboardInterrupt):
            got.extend(map(plain, iterator))
        later = loaded(StatefulDataLoader(stream(Ticking(0, interrupt)), 4), made.state_dict())
        assert [got + [plain(batch) for batch in later], [plain(batch) for batch in later]] == [whole] * 2, moment
        assert got + [plain(batch) for batch in iterator] == whole, moment
        assert [plain(batch) for batch in made] == whole, moment


class Noticed(Indexed):
    broken = frozenset({5, 9, 10})

    def __init__(self, tick: Ticking) -> None:
        super().__init__(24)
        self.tick = tick

    def __getitem__(self, index: int) -> Any:
        self.tick()
        return super().__getitem__(index)


SKIPS: dict[str, Any] = {"on_error": "skip"}


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        *[(Noticed, options) for options in (SKIPS, {**SKIPS, "shuffle": True})],
        *[(stream, {}) for stream in STREAMS],
        *[(stream, SKIPS) for stream in (Stepping, StepsOf)],
    ],
    ids=str,
)
def test_a_state_that_is_requested_while_a_batch_is_made_is_the_one_before_the_batch(
    dataset: Any, options: Any
) -> None:
    check_states(lambda tick: StatefulDataLoader(dataset(tick), 4, **options), 24)


def check_states(make: Callable[[Ticking], Any], moments: int, refused: Sequence[int] = ()) -> None:
    for moment in range(1, moments + 1):
        seed_all(3)
        tick = Ticking(moment, lambda: None)
        made, got, states = make(tick), list[Any](), list[Any]()

        def save(made: Any = made, got: list[Any] = got, states: list[Any] = states) -> None:
            try:
                states.append((len(got), made.state_dict()))
            except RuntimeError as error:
                states.append(str(error))

        tick.does = save
        for batch in made:
            got.append(plain(batch))
        [saved_state] = states
        if moment in refused:
            assert "while the sampler computes an index" in saved_state
            continue
        count, state = saved_state
        seed_all(3)
        later = loaded(make(Ticking(0, lambda: None)), state)
        assert got[:count] + [plain(batch) for batch in later] == got, moment


class Permuting:
    """A sampler that draws a random number at each index, or only at the first index if `each` is False."""

    def __init__(self, tick: Ticking, each: bool = False) -> None:
        self.tick, self.each = tick, each

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[int]:
        for index in torch.randperm(12).tolist():
            shift = int(torch.randint(12, ())) if self.each else 0
            self.tick()
            yield (index + shift) % 12


class WithPosition(KeptState, Permuting):
    kept = ("count",)
    count = 0

    def __iter__(self) -> Iterator[int]:
        while self.count < 12:
            self.count += 1
            self.tick()
            yield self.count - 1
        self.count = 0


@pytest.mark.parametrize(
    ("sampler", "refused"),
    [(Permuting, []), (WithPosition, [1]), (lambda tick: Permuting(tick, each=True), [*range(2, 13)])],
    ids=["draws at the first index", "has a state", "draws at each index"],
)
def test_a_state_that_is_requested_while_an_index_is_drawn_is_exact_or_refused(
    sampler: Any, refused: list[int]
) -> None:
    check_states(lambda tick: StatefulDataLoader(Indexed(12), None, sampler=sampler(tick)), 12, refused)


@pytest.mark.parametrize("moment", [1, 6])
def test_a_second_ctrl_c_while_the_sampler_is_read_again_changes_neither_the_loop_nor_a_state(moment: int) -> None:
    def make(at: int) -> Any:
        seed_all(3)
        return StatefulDataLoader(Indexed(12), 4, sampler=Permuting(Ticking(at, interrupt)))

    whole = [plain(batch) for batch in make(0)]
    for number in range(1, 400, 6):
        made, got = make(moment), list[Any]()
        iterator = iter(made)
        with pytest.raises(KeyboardInterrupt):
            got.extend(iterator)  # `extend` loops in C
        more = read_until_call(iterator, number)
        if more is None:
            break
        got, state = got + more, saved(made)
        assert [plain(batch) for batch in [*got, *iterator]] == whole, number
        later = loaded(make(0), state)
        assert [plain(batch) for batch in [*got, *later]] == whole, number
    assert number > 50


def test_ctrl_c_while_torch_s_order_is_drawn_changes_no_order() -> None:
    def shuffled() -> Any:
        seed_all(3)
        return Managed(Indexed(4), 2, shuffle=True)

    assert check_each_call(shuffled) > 100


def test_after_ctrl_c_in_the_first_draw_of_a_sampler_that_counts_in_its_attributes_the_epoch_raises_an_error() -> None:
    batches = iter(StatefulDataLoader(Indexed(12), 4, sampler=WithPosition(Ticking(1, interrupt))))
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="interrupted WithPosition .* and changed its state"):
            next(batches)


@pytest.mark.usefixtures("interrupts_raise")
def test_the_second_ctrl_c_ends_a_sampler_that_hangs() -> None:
    class Hanging(PythonShuffled):
        def __iter__(self) -> Iterator[int]:
            yield from range(8)
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                noted.append(len(noted))
            raise AssertionError("the second Ctrl-C was deferred, too")

    noted: list[int] = []
    loader = StatefulDataLoader(Indexed(12), None, sampler=Hanging(12), num_workers=2)
    iterator = iter(loader)
    assert [next(iterator) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert noted == [0]
    with pytest.raises(RuntimeError, match="begin a new loop"):
        next(iterator)


@pytest.mark.usefixtures("interrupts_raise")
def test_ctrl_c_within_a_sampler_is_raised_when_the_batch_is_delivered() -> None:
    class Pressed(PythonShuffled):
        def __iter__(self) -> Iterator[int]:
            for index in range(12):
                if index == 8:
                    os.kill(os.getpid(), signal.SIGINT)
                yield index

    loader = StatefulDataLoader(Indexed(12), None, sampler=Pressed(12), num_workers=2)
    got: list[int] = []
    iterator = iter(loader)
    with pytest.raises(KeyboardInterrupt):
        got.extend(iterator)
    assert got == [0, 1, 2, 3, 4]
    assert loader.state_dict()["_snapshot"]["_snapshot_step"] == 5
    assert [*got, *iterator] == [*range(12)]


class Signals:
    def __deepcopy__(self, memo: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)

    def __eq__(self, other: object) -> bool:
        return bool(self.__deepcopy__(None))


@pytest.mark.parametrize("use", [copied, lambda state: is_same(state, [1])])
def test_an_exception_of_a_signal_handler_is_raised_while_a_state_is_copied_or_compared(use: Any) -> None:
    def stop(*_: object) -> None:
        raise BufferError

    with handling(stop, signal.SIGUSR1), pytest.raises(BufferError):
        use(Signals())


@pytest.mark.usefixtures("interrupts_raise")
def test_another_thread_reads_and_ctrl_c_stays_the_main_threads() -> None:
    import threading

    got: list[Any] = []
    loader = StatefulDataLoader(Indexed(40), 2, num_workers=2)
    thread = threading.Thread(target=lambda: got.extend(loader))
    thread.start()
    thread.join()
    assert torch.cat(got).tolist() == [*range(40)]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
