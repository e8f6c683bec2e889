"""A state that is saved during the start of an epoch equals the last state before this epoch."""

import itertools
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from random_stateful.datasets import EpochAtEnd, Indexed, Noisy
from random_stateful.orders import Positions, PythonShuffled
from random_stateful.running import plain, seed_all
from resumed import with_workers
from torchdata.stateful_dataloader import StatefulDataLoader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

WORKERS: list[dict[str, Any]] = [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]


class CallsBack(PythonShuffled):
    called: Callable[[], object] = staticmethod(lambda: None)

    def __iter__(self) -> Iterator[int]:
        order = super().__iter__()
        self.called()
        return order


def stream() -> Any:
    dataset = EpochAtEnd(9)
    dataset.size = 9
    return dataset


LOADERS: dict[str, Callable[..., Any]] = {
    "shuffled": lambda **options: StatefulDataLoader(Noisy(9, "all"), 2, shuffle=True, **options),
    "its own generator": lambda **options: StatefulDataLoader(
        Indexed(9), 2, shuffle=True, generator=torch.Generator().manual_seed(4), **options
    ),
    "a sampler": lambda **options: StatefulDataLoader(Indexed(9), 2, sampler=PythonShuffled(9), **options),
    "a sampler with a state": lambda **options: StatefulDataLoader(Indexed(9), 2, sampler=Positions(9), **options),
    "a stream": lambda **options: StatefulDataLoader(stream(), 2, **options),
}


def read(batches: Any) -> list[Any]:
    return [plain(batch) for batch in batches]


def begun(made: Any, states: list[Any], before: str) -> Any:
    if before == "an epoch":
        read(made)
    elif before == "a break":
        next(iter(made))
    elif before != "nothing":
        made.load_state_dict(states[before == "a loaded state from within an epoch"])
    return made


def resumed(made: Any, state: Any) -> list[Any]:
    seed_all(99)
    made.load_state_dict(state)
    return [read(made) for _ in range(2)]


class Saving:
    """A profiler that saves a loader's state at each `step`-th function call, as a signal handler could do."""

    def __init__(self, loader: Any, step: int) -> None:
        self.loader, self.step, self.calls = loader, step, 0
        self.states: set[bytes] = set()

    def __call__(self, _frame: Any, event: str, _argument: Any) -> None:
        self.calls += event in ("call", "c_return")
        if self.calls % self.step == 0:
            self.states.add(pickle.dumps(self.loader.state_dict()))


BEFORE = ["nothing", "an epoch", "a break", "a loaded state between epochs", "a loaded state from within an epoch"]
#: Starting workers takes long, so only two elements of `BEFORE` are tested with each loader that has workers.
PAIRS = itertools.product(enumerate(with_workers([*LOADERS])), enumerate(BEFORE))
CASES = [(*case, before) for (i, case), (j, before) in PAIRS if not case[1] or (i + j) % 5 < 2]


@pytest.mark.parametrize(("kind", "options", "before"), CASES)
def test_a_state_saved_while_an_epoch_begins_equals_the_state_before_the_epoch(
    kind: str, options: dict[str, Any], before: str
) -> None:
    def made() -> Any:
        seed_all(7)
        return LOADERS[kind](**options)

    loader = made()
    read(loader)
    states = [loader.state_dict()]
    next(iter(loader))
    states.append(loader.state_dict())
    state = begun(made(), states, before).state_dict()
    expected = [resumed(made(), state)]
    saving = Saving(loader := begun(made(), states, before), 31 if options else 5)
    sys.setprofile(saving)
    batches = iter(loader)
    sys.setprofile(None)
    state = loader.state_dict()
    expected.append([read(batches), read(loader)])
    assert resumed(made(), state) == expected[1]
    assert saving.states
    for state in saving.states:
        assert resumed(made(), pickle.loads(state)) in expected


@pytest.mark.parametrize("options", WORKERS, ids=["no workers", "workers", "persistent workers"])
def test_another_thread_gets_the_state_from_before_without_waiting_for_the_epoch_to_begin(
    options: dict[str, Any],
) -> None:
    states: list[Any] = []

    def save() -> None:
        thread = threading.Thread(target=lambda: states.append(loader.state_dict()))
        thread.start()
        thread.join(60)

    def made() -> Any:
        seed_all(7)
        return StatefulDataLoader(Indexed(9), None, sampler=CallsBack(9), **options)

    loader = made()
    epochs = [read(loader) for _ in range(3)]
    loader = made()
    read(loader)
    loader.sampler.called = save
    iter(loader)
    assert [resumed(made(), state) for state in states] == [epochs[1:]] * len(states)
    assert states


@pytest.mark.parametrize("error", [KeyboardInterrupt, LookupError])
@pytest.mark.parametrize("options", WORKERS, ids=["no workers", "workers", "persistent workers"])
@pytest.mark.parametrize("count", [0, 1])
def test_the_next_loop_begins_the_epoch_whose_beginning_has_failed(
    options: dict[str, Any], count: int, error: type[BaseException]
) -> None:
    def fail() -> None:
        del loader.sampler.called
        raise error

    def made() -> Any:
        seed_all(7)
        return StatefulDataLoader(Noisy(9, "all"), None, sampler=CallsBack(9), **options)

    loader = made()
    epochs = [read(loader) for _ in range(count + 2)]
    loader = made()
    assert [read(loader) for _ in range(count)] == epochs[:count]
    loader.sampler.called = fail
    with pytest.raises(error):
        next(iter(loader))
    state = loader.state_dict()
    assert [read(loader) for _ in range(2)] == epochs[count:]
    assert resumed(made(), state) == epochs[count:]


def test_after_a_failed_beginning_a_state_contains_the_seed_that_the_program_sets() -> None:
    def fail() -> None:
        del loader.sampler.called
        raise LookupError

    loader = StatefulDataLoader(Indexed(9), 2, num_workers=2, sampler=CallsBack(9))
    loader.sampler.called = fail
    with pytest.raises(LookupError):
        iter(loader)
    seed_all(12)
    state = loader.state_dict()
    epochs = [read(loader) for _ in range(2)]
    assert resumed(StatefulDataLoader(Indexed(9), 2, num_workers=2, sampler=CallsBack(9)), state) == epochs
