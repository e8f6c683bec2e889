"""Reads loaders and graphs up to a position or from a state on, and checks that they resume exactly."""

import pickle
import random
import sys
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from torchdata.datapipes._pipe.graph.traversal import walk
from torchdata.datapipes.state import load_generators, load_state, save_generators, save_state, threads_paused


class Reads:
    count = 0

    def since(self) -> int:
        found, self.count = self.count, 0
        return found


def start(number: int) -> None:
    random.seed(number)
    for name, setter in (("numpy", lambda module: module.random.seed), ("torch", lambda module: module.manual_seed)):
        if name in sys.modules:
            setter(sys.modules[name])(number)


def begun(loader: Any, state: Any = None, seed: int = 3) -> Any:
    if state is None:
        loader.seed(seed)
    else:
        loader.load_state_dict(state)
    return loader


def saved(loader: Any, **options: Any) -> Any:
    return pickle.loads(pickle.dumps(loader.state_dict(**options)))


def with_states(loader: Any) -> tuple[list[Any], list[Any]]:
    items_and_states = [(item, saved(loader)) for item in loader]
    return [item for item, _ in items_and_states], [state for _, state in items_and_states]


def epochs_of(loader: Any, count: int = 2) -> list[list[Any]]:
    with loader:
        return [list(loader) for _ in range(count)]


def stopped(loader: Any, count: int, **options: Any) -> tuple[list[Any], Any]:
    with loader:
        reading = iter(loader)
        return [next(reading) for _ in range(count)], saved(loader, **options)


def continued(loader: Any, count: int) -> tuple[list[Any], Any, list[Any]]:
    with loader:
        reading = iter(loader)
        return [next(reading) for _ in range(count)], saved(loader), list(reading)


def resumed(loader: Any, state: Any, count: int = 1, **options: Any) -> list[list[Any]]:
    with loader:
        loader.load_state_dict(state, **options)
        return [list(loader) for _ in range(count)]


def with_state(pipe: Any, state: Any, **options: Any) -> Any:
    load_state(pipe, pickle.loads(pickle.dumps(state)), **options)
    return pipe


def check_resumes(make: Callable[[Any], Any], *moments: tuple[int, int], pause: float = 0.0) -> list[list[Any]]:
    """Resumes from states saved at `moments`, and compares the items with the items of the uninterrupted loader.

    Each moment consists of an epoch, and the number of items after which a state is saved. Instead of a number of
    items, -2 means after the last item but before StopIteration, and -1 means after StopIteration."""
    whole: list[list[Any]] = []
    states: list[list[Any]] = []
    with make(None) as loader:
        for _ in range(1 + max(epoch for epoch, _ in moments)):
            reading = iter(loader)
            time.sleep(pause)
            whole.append([])
            states.append([saved(loader)])
            for item in reading:
                whole[-1].append(item)
                time.sleep(pause)
                states[-1].append(saved(loader))
            states[-1].append(saved(loader))
        whole += [list(loader), list(loader)]
    for epoch, at in moments:
        state = states[epoch][at]
        if at == 0:
            with make(state) as loader:
                iter(loader)
                state = saved(loader)  # before the first item, this state must be equivalent to the loaded state
        with make(state) as loader:
            if at != -1:
                assert list(loader) == whole[epoch][state["iteration_state"]["received"] :], (epoch, at)
            state = saved(loader)
            assert list(loader) == whole[epoch + 1], (epoch, at)
    assert epochs_of(make(state)) == whole[epoch + 1 : epoch + 3], (
        "saved again by the last loader at the end of its epoch"
    )
    return whole


def read_some(pipe: Any) -> bytes:
    with threads_paused(walk(pipe)):
        return pickle.dumps((save_state(pipe), save_generators()))


def check_graph_resumes(make: Callable[[], Any], end: Callable[[Any], Any] = lambda _: None) -> None:
    start(5)
    pipe = make()
    epochs = [list(pipe) for _ in range(3)]
    for epoch in range(2):
        for position in range(len(epochs[epoch]) + 2):
            start(5)
            pipe = make()
            assert [list(pipe) for _ in range(epoch)] == epochs[:epoch]
            reading = islice(pipe, position)
            list(reading)
            saved = read_some(pipe)
            end(pipe)
            for _ in range(2):  # the second time, the state is saved right after the iteration has begun
                start(99)
                state, generators = pickle.loads(saved)
                load_state(pipe := make(), state)
                load_generators(generators)
                begun = iter(pipe)
                saved = read_some(pipe)
                found = list(begun), list(pipe)
                end(pipe)
                assert found == (epochs[epoch][position:], epochs[epoch + 1]), (epoch, position)
