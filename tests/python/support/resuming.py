"""Functions that read a loader up to a position, or from a state on, and then shut the loader down.

Another function loads the state of a pipe.
"""

from __future__ import annotations

import pickle
from typing import Any

from torchdata.datapipes.state import load_state


def begun(loader: Any, state: Any = None, seed: int = 3) -> Any:
    """Loads the state into the loader, or seeds the loader if the state is None. Returns the loader."""
    if state is None:
        loader.seed(seed)
    else:
        loader.load_state_dict(state)
    return loader


def saved(loader: Any, **options: Any) -> Any:
    return pickle.loads(pickle.dumps(loader.state_dict(**options)))


def epochs_of(loader: Any, count: int = 2) -> list[list[Any]]:
    with loader:
        return [list(loader) for _ in range(count)]


def stopped(loader: Any, count: int, **options: Any) -> tuple[list[Any], Any]:
    """Returns the first items of an epoch, and the state after these items."""
    with loader:
        reading = iter(loader)
        return [next(reading) for _ in range(count)], saved(loader, **options)


def continued(loader: Any, count: int) -> tuple[list[Any], Any, list[Any]]:
    """Returns the first items of an epoch, the state after these items, and the remaining items."""
    with loader:
        reading = iter(loader)
        return [next(reading) for _ in range(count)], saved(loader), list(reading)


def resumed(loader: Any, state: Any, count: int = 1, **options: Any) -> list[list[Any]]:
    """Returns the remaining items after a state, and the items of the following epochs."""
    with loader:
        loader.load_state_dict(state, **options)
        return [list(loader) for _ in range(count)]


def with_state(pipe: Any, state: Any, **options: Any) -> Any:
    """Loads a copy of a state into a pipe, and returns the pipe. The state is pickled in between."""
    load_state(pipe, pickle.loads(pickle.dumps(state)), **options)
    return pipe
