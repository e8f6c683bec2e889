"""State of a pipe graph: where every pipe stands, and how to put a fresh graph into the same place.

Role: composes the pipes' own `state_dict()` into the state of a graph. Runs in the process and thread that
iterates the graph, between two items.

A graph state is a plain dict that pickles; it holds references into the running pipes, so pickle or deep-copy it
before the iteration goes on.

A pipe is *restored* where the class that defines its `__iter__` (or a subclass of it) also defines
`state_dict` and `load_state_dict`; it is *replayed* where it does not: it and all it reads from start the
iteration again with the same seeds, and as many items as it had yielded are dropped. Pipes that read from a
replayed pipe are restored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torchdata.datapipes._torch import replay_later, yielded_so_far
from torchdata.datapipes._traversal import sources_of, walk
from torchdata.datapipes.datapipe import IterDataPipe, token_of

__all__ = [
    "STATE_VERSION",
    "Counting",
    "Stateless",
    "forget_state",
    "is_restorable",
    "load_state",
    "repeat_epoch",
    "save_state",
]

#: Version of the layout that `save_state` writes.
STATE_VERSION = 1


class Stateless:
    """Mixin for pipes whose whole state is that of their sources."""

    def state_dict(self) -> dict[str, Any]:
        """The pipe's own state: nothing."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes nothing: the sources hold all there is."""


class Counting:
    """Mixin for pipes whose own state is how many items they have yielded.

    `__iter__` begins with the item of number `_position`.
    """

    _position = 0

    def reset(self) -> None:
        """Begins with the first item."""
        self._position = 0

    def state_dict(self) -> dict[str, Any]:
        """The number of items yielded."""
        token = token_of(self)
        return {"position": self._position if token.armed else token.yielded}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iteration go on after the saved number of items."""
        self._position = state_dict["position"]


def _is_torchs(datapipe: Any) -> bool:
    """Whether this is a pipe of torch's that is read by iterating. It knows no token."""
    return isinstance(datapipe, IterDataPipe) and IterDataPipe not in type(datapipe).__mro__


def _iteration_of(datapipe: Any) -> int:
    """The number of the pipe's running iteration."""
    return (datapipe._valid_iterator_id or 0) if _is_torchs(datapipe) else token_of(datapipe).current


def is_restorable(datapipe: Any) -> bool:
    """Whether `state_dict`/`load_state_dict` of the pipe cover the `__iter__` that it runs.

    They do not where a subclass overrides `__iter__` and inherits the state of its base.
    """
    if not isinstance(datapipe, IterDataPipe):
        return hasattr(datapipe, "state_dict") and hasattr(datapipe, "load_state_dict")
    classes = type(datapipe).__mro__
    if _is_torchs(datapipe):  # their iterations always start with a reset
        return False

    def depth(name: str) -> int:
        return next((i for i, cls in enumerate(classes) if name in cls.__dict__), len(classes))

    state = max(depth("state_dict"), depth("load_state_dict"))
    while state < len(classes) and not issubclass(classes[state], IterDataPipe):
        # A mixin is no pipe itself: it speaks for the first class that lists it among its bases.
        state = min(i for i, cls in enumerate(classes) if classes[state] in cls.__bases__)
    return state < len(classes) and state <= depth("__iter__")


#: What was loaded into the graph that ends in a pipe, and the pipe's iteration number then.
_loaded: WeakKeyDictionary[Any, tuple[int, dict[str, Any]]] = WeakKeyDictionary()


def _upstream_of(datapipes: Iterable[Any]) -> set[int]:
    """Ids of the given pipes' sources, direct and indirect."""
    return {id(pipe) for root in datapipes for pipe in walk(root) if pipe is not root}


def _replay_plan(end: Any, pipes: list[Any]) -> tuple[set[int], set[int]]:
    """Ids of the pipes to replay, and of those that start anew below them.

    Everything below a replayed pipe starts anew. Where two branches meet in a pipe below (the children of a
    fork do), the branches can only be replayed in step, that is, from where they join; the end of the graph
    is taken for that.
    """
    replayed = {id(p): p for p in pipes if isinstance(p, IterDataPipe) and not is_restorable(p)}
    restarted = _upstream_of(replayed.values())
    for pipe in pipes:
        goes_on = id(pipe) not in restarted and id(pipe) not in replayed
        if goes_on and any(id(source) in restarted for source in sources_of(pipe)):
            return {id(end)}, _upstream_of([end])
    return set(replayed) - restarted, restarted


@contextmanager
def _held(pipes: list[Any]) -> Iterator[None]:
    """Keeps threads that read ahead from the pipes meanwhile."""
    with ExitStack() as stack:
        # Readers before their sources: a source that stands still would keep its reader's thread from parking.
        for pipe in reversed(pipes):
            if hasattr(type(pipe), "held"):
                stack.enter_context(pipe.held())
        yield


def save_state(datapipe: Any) -> dict[str, Any]:
    """The state of the graph that ends in `datapipe`, as of the last item that it yielded."""
    loaded = _loaded.get(datapipe)
    if loaded is not None:
        if loaded[0] == _iteration_of(datapipe):
            return loaded[1]  # not iterated since
        del _loaded[datapipe]
    pipes = walk(datapipe)
    with _held(pipes):
        return {"version": STATE_VERSION, "pipes": _entries(datapipe, pipes)}


def _entries(datapipe: Any, pipes: list[Any]) -> list[dict[str, Any]]:
    replayed, restarted = _replay_plan(datapipe, pipes)
    entries = []
    for pipe in pipes:
        if _is_torchs(pipe):
            entries.append(_entry_of_torchs(pipe, id(pipe) in restarted))
            continue
        token = token_of(pipe)
        entry: dict[str, Any] = {"type": type(pipe).__name__, "yielded": token.yielded}
        if not isinstance(
            pipe, IterDataPipe
        ):  # read by index: has no place in the iteration, but may have state
            entry["how"] = "restore" if is_restorable(pipe) else "fresh"
        elif id(pipe) in restarted:
            entry["how"] = "restart"
        elif token.current == 0 and not token.armed:
            entry["how"] = "fresh"
        else:
            entry["how"] = "replay" if id(pipe) in replayed else "restore"
        if entry["how"] == "restore":
            entry["state"] = pipe.state_dict()
        if hasattr(pipe, "epoch_seed"):
            entry["seed"] = pipe.epoch_seed()
        entries.append(entry)
    return entries


def _entry_of_torchs(pipe: Any, restarted: bool) -> dict[str, Any]:
    yielded = yielded_so_far(pipe)
    how = "restart" if restarted else "fresh" if yielded is None else "replay"
    return {"type": type(pipe).__name__, "yielded": yielded or 0, "how": how}


def load_state(datapipe: Any, state: dict[str, Any]) -> None:
    """Puts the graph that ends in `datapipe` where the saved one stood: `iter(datapipe)` goes on from there.

    Raises:
        ValueError: the state has another version or was saved from a graph of another shape.
    """
    if not isinstance(state, dict) or state.get("version") != STATE_VERSION:
        version = state.get("version") if isinstance(state, dict) else state
        raise ValueError(
            f"this pipe state has version {version!r}, but this release reads version {STATE_VERSION}"
        )
    pipes, entries = walk(datapipe), state["pipes"]
    saved, found = [entry["type"] for entry in entries], [type(pipe).__name__ for pipe in pipes]
    if saved != found:
        raise ValueError(
            f"the state was saved from another pipeline: it holds {saved}, but this pipeline is {found} "
            "(sources first); build the same pipeline before loading its state"
        )
    with _held(pipes):
        for pipe, entry in zip(pipes, entries, strict=True):
            if _is_torchs(pipe):
                replay_later(pipe, entry["yielded"] if entry["how"] == "replay" else None)
                continue
            how, token = entry["how"], token_of(pipe)
            if how == "restore":
                token.arm(entry["yielded"])
                pipe.load_state_dict(entry["state"])
            else:
                token.disarm()
                repeat_epoch(pipe, entry.get("seed"))
                if how == "replay":
                    token.arm_replay(entry["yielded"])
    _loaded[datapipe] = (_iteration_of(datapipe), state)


def repeat_epoch(datapipe: Any, seed: Any) -> None:
    """Makes the next iteration of a random pipe take the course of the one for which `epoch_seed()` gave `seed`.

    That is `set_seed`, but for pipes whose seed is the user's own: these define `repeat_epoch`. None does nothing.
    """
    if seed is not None:
        (datapipe.repeat_epoch if hasattr(type(datapipe), "repeat_epoch") else datapipe.set_seed)(seed)


def forget_state(*datapipes: Any, keeping: Iterable[Any] = ()) -> None:
    """Makes the next iteration of the pipes, and of all that they read from, start anew.

    Pipes that those in `keeping` are or read from keep what was loaded into them.
    """
    kept = {id(pipe) for root in keeping for pipe in walk(root)}
    for datapipe in datapipes:
        for pipe in walk(datapipe):
            if id(pipe) in kept:
                continue
            _loaded.pop(pipe, None)
            if _is_torchs(pipe):
                replay_later(pipe, None)
            else:
                token_of(pipe).disarm()
