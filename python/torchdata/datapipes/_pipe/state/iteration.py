"""Begins the iterations of pipes, and records the state of the graph at the beginning of an iteration.

This module updates the `PassRecord` of a pipe at the beginning of an iteration. For a replay (see `state`), the
`PassRecord` contains the states of the pipe and its sources at the beginning of the iteration.

A counter numbers the iterations of all pipes. A pipe begins to iterate before its sources do, so its iteration has a
lower number than the iterations of its sources.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from itertools import count
from types import NoneType
from typing import Any

from torchdata._plain_pickles import from_plain, to_plain
from torchdata.datapipes._pipe.graph.graph import Graph, graph_of
from torchdata.datapipes._pipe.graph.torch import has_begun
from torchdata.datapipes._pipe.graph.traversal import is_iter_pipe, iter_base, sources_of
from torchdata.datapipes._pipe.state.declared import DERIVED
from torchdata.datapipes._pipe.state.generators import save_generators
from torchdata.datapipes._pipe.state.hooks import PipeHooks, depth_of, hooks_of
from torchdata.datapipes._pipe.state.layout import PipeEntry, explaining_damage
from torchdata.datapipes._pipe.state.record import Beginning, PassRecord, existing_record, record_of, token_of

_tick = count(1).__next__

#: Types of attributes that user-defined pipes use as counters and random generators.
COUNTERS = frozenset({NoneType, bool, int, float, str, bytes, random.Random})


def _beginning_of(graph: Graph, loaded: PipeEntry | None) -> Beginning:
    pipe = graph.end
    own = None if loaded is None else with_pending(pipe, record_of(pipe), loaded)
    generators = save_generators()
    found = Beginning(generators)
    if own is not None:
        found.dropped, found.yielded = own.drop or 0, own.yielded
        found.whole, found.generators = own.generators is not None, own.generators or found.moved
        finished = own.finished if own.drop is None else None
        own = own._replace(drop=None, finished=finished, generators=None)
    for each in graph:
        passes = hooks_of(each)._passes_begun()
        if passes is not None:
            found.passes[id(each)] = passes
        found.torchs[id(each)] = getattr(each, "_valid_iterator_id", None)
        if each is pipe and own is not None:
            found.parts.append((each, own, None))
        else:
            found.parts.append((each, *entry_at_beginning(each)))
    return found


def entry_at_beginning(pipe: Any) -> tuple[PipeEntry, Any]:
    """Returns the `PipeEntry` of a pipe between two iterations, and the pipe's state. The caller must convert the
    state, unless it is None, to plain data and add it to the `PipeEntry`."""
    record: PassRecord | None = existing_record(pipe)
    if record is not None and record.loaded is not None:
        return with_pending(pipe, record, record.loaded), None
    entry = PipeEntry(name_of(pipe))
    if record is not None:
        entry = with_seeds(entry, record)
    kind = type(pipe)
    if hasattr(kind, "iteration_state"):
        lasting = pipe._lasting_state()
        return entry, lasting or None
    if _keeps_state_between(pipe):
        try:
            entry = entry._replace(state=position_of(pipe))
        except AttributeError:
            if record is not None and record.stamp:
                raise
            # If `state_dict` fails before the first iteration, the state is left out, because some pipes create their
            # attributes only when an iteration begins.
    elif counted := counted_attributes(pipe):
        entry = entry._replace(state=counted)
    return entry, None


def counters_of(pipe: Any) -> dict[str, Any] | None:
    """Returns the counters and random generators of a user-defined pipe without a declared state, as plain data; None
    for any other pipe."""
    kind: Any = type(pipe)
    if kind.__module__.startswith("torchdata.") or is_torchs(pipe) or not is_iter_pipe(pipe):
        return None
    if hasattr(kind, "iteration_state") or hasattr(kind, "state_dict") or is_restorable(pipe):
        return None
    counted = {name: value for name, value in vars(pipe).items() if type(value) in COUNTERS}
    return {name: value.getstate() if isinstance(value, random.Random) else value for name, value in counted.items()}


def counted_attributes(pipe: Any) -> dict[str, Any]:
    """Returns the counters of a pipe (see `counters_of`) that have changed since its first use. Before a replay, a
    resumed run sets the counters of its copy of the pipe to the returned values."""
    now = counters_of(pipe)
    if now is None:
        return {}
    record = record_of(pipe)
    before = record.attributes = now if record.attributes is None else record.attributes
    return {name: value for name, value in now.items() if name not in before or before[name] != value}


def _set_attributes(pipe: Any, state: dict[str, Any]) -> None:
    counted_attributes(pipe)  # notes the attributes of the new pipe
    for name, value in state.items():
        own = vars(pipe).get(name)
        if isinstance(own, random.Random):
            own.setstate(value)
        elif type(own) in COUNTERS:
            setattr(pipe, name, value)


def initial_entry(pipe: Any) -> PipeEntry:
    """Returns the `PipeEntry` for a new iteration of the pipe, which includes the seed."""
    entry, lasting = entry_at_beginning(pipe)
    return entry if lasting is None else entry._replace(state=to_plain(lasting, name_of(pipe)))


def _keeps_state_between(pipe: Any) -> bool:
    """Returns whether a copy of a user-defined pipe can load the state that the pipe has between two iterations.

    The result is False for an iterable-style pipe without `reset`, unless its last iteration has ended: a copy of the
    pipe would resume an abandoned iteration instead of starting a new one.
    """
    kind = type(pipe)
    if not (hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")):
        return False
    if not hasattr(kind, "reset"):
        return not hasattr(kind, "__iter__")
    return can_reset(kind) or (resumes_without_reset(pipe) and _follows_end(pipe))


def resumes_without_reset(datapipe: Any) -> bool:
    """Returns whether a pipe's class has `state_dict` but no `reset`, so that iterations continue from the pipe's
    state."""
    kind = type(datapipe)
    return not can_reset(kind) and is_iter_pipe(datapipe) and is_restorable(datapipe)


def _follows_end(datapipe: Any) -> bool:
    """Returns whether the pipe has yielded no item since its last iteration ended."""
    token, record = token_of(datapipe), record_of(datapipe)
    return token.finished or record.ended or (record.follows_end and not token.yielded)


def _unread_state(datapipe: Any) -> dict[str, Any] | None:
    """Returns the state that was loaded into a pipe without `reset`; None if the pipe has yielded an item after the
    state was loaded."""
    token, record = token_of(datapipe), record_of(datapipe)
    if record.base is not None and (record.base[0] != token.yielded or (token.finished and not record.ended)):
        record.base = None
    return None if record.base is None else record.base[1]


def position_of(datapipe: Any) -> dict[str, Any]:
    unread = _unread_state(datapipe)
    return to_plain(datapipe.state_dict(), name_of(datapipe)) if unread is None else unread


def iterate(datapipe: Any) -> Iterator[Any]:
    """Returns an iterator over the last pipe of a graph. While the iterator is read, the graph's state can be saved.

    Use this function if the graph ends with a PyTorch pipe, because PyTorch reports neither the beginning nor the end
    of an iteration.

    Args:
        datapipe: the last pipe of the graph.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> from torchdata.datapipes.state import iterate
        >>> list(iterate(IterableWrapper(range(3))))
        [0, 1, 2]
    """
    if is_torchs(datapipe):
        datapipe._fast_forward_iterator = None
        datapipe = reader_of(datapipe)
    iterator: Iterator[Any] = iter(datapipe)
    return iterator


def reader_of(datapipe: Any) -> Any:
    """Returns the internal pipe that reads the PyTorch pipe at the end of a graph, and records the graph's
    iteration."""
    record = record_of(datapipe)
    if record.reader is None or record.reader.source is not datapipe:
        record.reader = _class_of_readers()(datapipe)
    return record.reader


@cache
def _class_of_readers() -> Any:
    class PipeOfTorch(iter_base()):  # type: ignore[misc]  # importing its base class in this module would be circular
        iteration_state = ()

        def __init__(self, source: Any) -> None:
            self.source = source

        def __iter__(self) -> Iterator[Any]:
            return iter(self.source)

    return PipeOfTorch


def unnoticed(datapipe: Any) -> TypeError:
    return TypeError(
        f"a pipeline that ends in {name_of(datapipe)}, a pipe of torch, can be neither saved nor resumed, because the "
        "start of its iteration was not detected. Iterate it by torchdata.datapipes.state.iterate(pipe) instead of "
        "iter(pipe), as loaders do, or append a pipe of this package, such as .map()"
    )


def is_unnoticed(datapipe: Any) -> bool:
    """Returns whether the PyTorch pipe at the end of a graph is iterated by `iter` instead of `iterate`. Without
    `iterate`, the state of the graph at the beginning of the iteration is not recorded."""
    record = record_of(reader_of(datapipe))
    if record.loaded is not None or not has_begun(datapipe):
        return False
    if record.beginning is None:
        return True
    before = record.beginning.torchs[id(datapipe)]
    return datapipe._valid_iterator_id not in (before, 0 if before is None else before + 1)


def load_last_entry(datapipe: Any, entry: PipeEntry) -> None:
    """Loads the `PipeEntry` of the PyTorch pipe at the end of a graph. The next iteration resumes, whether it is begun
    by `iter` or by `iterate`."""

    def once_asked() -> Iterator[Any]:  # called at the first request, when the sources have been restored
        if not inspect.isgeneratorfunction(inspect.unwrap(type(datapipe).__iter__)):
            raise unnoticed(datapipe)
        yield from reader_of(datapipe)

    load_entry(reader_of(datapipe), entry)
    datapipe._fast_forward_iterator = once_asked()


def can_reset(kind: type) -> bool:
    """Returns whether pipes of a class can discard a loaded state and start from the beginning."""
    return hasattr(kind, "iteration_state") or (
        iter_base() in kind.__mro__ and kind.reset is not iter_base().reset  # type: ignore[attr-defined]
    )


def with_seeds(entry: PipeEntry, record: PassRecord) -> PipeEntry:
    if record.seed is None and not record.seeded:
        return entry
    seed = entry.seed if record.seed is None else record.seed
    return entry._replace(seed=seed, follows=True if record.seeded else entry.follows)


def with_pending(pipe: Any, record: PassRecord, loaded: PipeEntry) -> PipeEntry:
    """Returns the loaded `PipeEntry`, with settings that were changed after loading, such as seeds."""
    if loaded.left is not None:
        loaded = loaded._replace(loaded_seed=(record.loaded_seed,))
    loaded = with_seeds(loaded, record)
    if record.seed is not None:
        return loaded
    if not hasattr(type(pipe), "iteration_state"):
        return loaded
    if not loaded.restores:
        lasting = pipe._lasting_state()
        return loaded._replace(state=to_plain(lasting, name_of(pipe))) if lasting else loaded
    if type(pipe)._derives_state:
        return loaded._replace(state=to_plain(pipe.state_dict(), name_of(pipe)))
    return loaded


def start_pass(datapipe: Any) -> tuple[int, bool, int, bool]:
    """Begins an iteration of a pipe, and invalidates the iterators of its earlier iterations.

    Returns: A tuple: the number of the iterator, whether the iterator resumes from a loaded state, the number of items
    to drop, and whether the iteration ends after the dropped items.
    """
    token, record = token_of(datapipe), record_of(datapipe)
    counted_attributes(datapipe)
    graph = None if record.watches is False else Graph(datapipe)
    if record.watches is None and graph is not None:
        _find_replayed(graph)
    if record.watches and graph is not None:
        _note_beginning(graph, record, record.loaded)
    else:
        record.beginning = None
    loaded, record.loaded = record.loaded, None
    lacks_reset = resumes_without_reset(datapipe)
    if lacks_reset and loaded is None:
        unread = _unread_state(datapipe)
        record.base = None if unread is None else (0, unread)
        record.follows_end = _follows_end(datapipe)
    number, resumed = token.begin()
    record.stamp = _tick()
    record.is_resumed = resumed
    if not resumed:
        record.skipped = {}
    if lacks_reset and resumed and loaded is not None and loaded.state is not None:
        _take_base(datapipe, token.yielded, loaded.state)
    finished = loaded is not None and bool(loaded.finished)
    dropped = None if loaded is None else loaded.drop
    record.ended = resumed and finished and dropped is None
    if record.has_loaded and not resumed and hooks_of(datapipe)._begins_sources:
        # This iteration starts from the beginning, so the states that were loaded into the sources are dropped.
        forget_below(datapipe)
        record.has_loaded = False
    return number, resumed, dropped or 0, finished and dropped is not None


def _take_end(datapipe: Any, record: PassRecord, state: dict[str, Any] | None) -> None:
    """Loads the state that a pipe without `reset` had at the end of an iteration, unless the state is None."""
    record.follows_end = state is not None
    if state is not None:
        _take_base(datapipe, 0, state)


def _take_base(datapipe: Any, yielded: int, state: dict[str, Any]) -> None:
    datapipe.load_state_dict(from_plain(state, name_of(datapipe)))
    record_of(datapipe).base = yielded, state


def pending_seed(datapipe: Any) -> Any:
    """Returns the seed for a pipe's next iteration; for a user-defined pipe, the seed that `set_seed` last received."""
    if any(state.name == "_seed" for state in type(datapipe)._declared):
        return datapipe._seed
    return record_of(datapipe).seed


def set_later_seeds(datapipe: Any) -> None:
    """After a replay, sets the seed of each pipe's next iteration to the seed in the loaded state."""
    for pipe in Graph(datapipe):
        record: PassRecord | None = existing_record(pipe)
        if record is not None and record.later is not None:
            later, record.later = record.later, None
            _set_seed(pipe, later)


def _set_seed(pipe: Any, seed: Any) -> None:
    (pipe.override_seed if hasattr(type(pipe), "override_seed") else pipe.set_seed)(seed)


def _note_beginning(graph: Graph, record: PassRecord, loaded: PipeEntry | None) -> None:
    beginning = _beginning_of(graph, loaded)
    if record.beginning is not None:
        before, now = ({id(pipe): pipe for pipe, *_ in each.parts} for each in (record.beginning, beginning))
        if before.keys() < now.keys():
            record.grown = [name_of(pipe) for key, pipe in now.items() if key not in before]
    record.beginning = beginning


def _find_replayed(graph: Graph) -> None:
    found: dict[int, bool | None] = {}
    for pipe in graph:
        below = [found.get(id(source)) for source in graph.sources(pipe)]
        is_replayed = is_iter_pipe(pipe) and not is_restorable(pipe)
        # In a cycle, a source may follow its reader in the graph, so whether a pipe is replayed may be unknown (None).
        found[id(pipe)] = is_replayed or any(below) or (None if None in below else False)
        if is_iter_pipe(pipe) and not is_torchs(pipe) and record_of(pipe).watches is None:
            record_of(pipe).watches = found[id(pipe)]
    if found[id(graph.end)] is None:
        record_of(graph.end).watches = any(is_iter_pipe(pipe) and not is_restorable(pipe) for pipe in graph)


def is_restorable(datapipe: Any) -> bool:
    """Returns whether a pipe can restore its position, because its class declares a state for its `__iter__`.

    A class declares its state by `iteration_state`, `one_to_one`, or `state_dict` and `load_state_dict`. A subclass
    that overrides `__iter__` must declare its state again.

    Args:
        datapipe: the pipe.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> from torchdata.datapipes.state import is_restorable
        >>> is_restorable(IterableWrapper(range(3)).batch(2))
        True
    """
    kind: Any = type(datapipe)
    return _covers(kind)


@lru_cache(maxsize=1024)
def _covers(kind: type) -> bool:
    classes: tuple[Any, ...] = kind.__mro__
    if iter_base() not in classes:
        # PyTorch resets an iterable-style pipe at the start of each iteration, which would discard a loaded state.
        iterates = hasattr(kind, "__iter__") and issubclass(kind, iter_base())
        return not iterates and hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")

    first_class = max(depth_of(kind, "state_dict"), depth_of(kind, "load_state_dict"))
    first_class = min(first_class, depth_of(kind, "iteration_state"))
    while first_class < len(classes) and not issubclass(classes[first_class], iter_base()):
        # If a mixin declares a state, the class that derives from the mixin counts as the class that declares the
        # state.
        first_class = min(i for i, cls in enumerate(classes) if classes[first_class] in cls.__bases__)
    return first_class < len(classes) and first_class <= depth_of(kind, "__iter__")


def is_torchs(datapipe: Any) -> bool:
    """Returns whether a pipe is an iterable-style pipe of PyTorch. PyTorch's pipes lack an `IterationToken`."""
    return not isinstance(datapipe, PipeHooks) and is_iter_pipe(datapipe)


def has_finished(pipe: Any) -> bool:
    return not is_torchs(pipe) and (token_of(pipe).finished or record_of(pipe).ended)


def name_of(datapipe: Any) -> str:
    return type(datapipe).__name__


def forget_state(*datapipes: Any) -> None:
    """Drops loaded states, so that the next iterations of pipes and of all their sources start from the beginning.

    Args:
        *datapipes: the last pipes of the graphs, or the graphs.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> from torchdata.datapipes.state import forget_state, load_state, save_state
        >>> pipe = IterableWrapper(range(3))
        >>> next(iter(pipe))
        0
        >>> load_state(pipe, save_state(pipe))
        >>> forget_state(pipe)
        >>> list(pipe)
        [0, 1, 2]
    """
    for datapipe in datapipes:
        for pipe in graph_of(datapipe):
            forget_one(pipe)


def forget_below(datapipe: Any) -> None:
    """Drops the states that were loaded into the direct and indirect sources of a pipe.

    The source of a `fork` keeps its loaded state if another child of the `fork` can resume from this state.
    """
    waiting, seen = [datapipe], {id(datapipe)}
    while waiting:
        reader = waiting.pop()
        if not hooks_of(reader)._begins_sources:
            continue
        for source in sources_of(reader):
            if id(source) not in seen:
                seen.add(id(source))
                waiting.append(source)
                forget_one(source)


def forget_one(pipe: Any) -> None:
    record = record_of(pipe)
    if is_torchs(pipe):
        pipe._fast_forward_iterator = None
        if record.reader is not None:
            forget_one(record.reader)
        return
    if record.loaded is not None and record.loaded.left is not None:
        # The `PipeEntry` in `left`, which begins a new iteration, is loaded, because the `PipeEntry` in `loaded` would
        # begin a replay.
        seed = pending_seed(pipe)
        was_set = seed is not None and seed != record.loaded_seed
        load_entry(pipe, record.loaded.left)
        forget_one(pipe)
        if was_set:
            _set_seed(pipe, seed)
        return
    token_of(pipe).disarm()
    if record.loaded is not None and is_iter_pipe(pipe):
        loaded, state = record.loaded, record.loaded.state
        if loaded.restores and hasattr(type(pipe), "iteration_state"):
            state = to_plain(pipe._lasting_state(), name_of(pipe))
        elif loaded.restores and resumes_without_reset(pipe):
            state = state if loaded.finished else None
            _take_end(pipe, record, state)
        record.loaded = PipeEntry(name_of(pipe), state=state, seed=loaded.seed, follows=loaded.follows)


def load_entry(pipe: Any, entry: PipeEntry) -> None:
    if is_torchs(pipe):  # a PyTorch pipe is replayed by the pipe that reads it
        pipe._fast_forward_iterator = None
        return
    record, token = record_of(pipe), token_of(pipe)
    record.watches, record.has_loaded, record.ended = None, True, False
    record.beginning, record.grown, record.seed, record.later = None, [], None, entry.later
    record.base, record.follows_end = None, False
    state = None if entry.state is None else from_plain(entry.state, name_of(pipe))
    if entry.restores:
        token.arm(entry.yielded)
    else:
        token.disarm()
    if entry.restores and is_restorable(pipe):
        # An iterable-style pipe without `reset` cannot discard a loaded state, so its state is loaded only when the
        # iteration resumes.
        if can_reset(type(pipe)) or not is_iter_pipe(pipe):
            _take_state(pipe, pipe.load_state_dict, state, is_whole=not entry.finished)
    elif hasattr(type(pipe), "iteration_state"):
        _take_state(pipe, pipe._load_lasting_state, state or {})
    elif resumes_without_reset(pipe):
        _take_end(pipe, record, entry.state)
    elif state is not None:
        (pipe.load_state_dict if hasattr(pipe, "load_state_dict") else partial(_set_attributes, pipe))(state)
    if entry.seed is not None:
        pipe.set_seed(entry.seed)
    record.seeded = record.seeded if entry.follows is None else entry.follows
    record.skipped = dict(entry.skipped or {})
    record.loaded, record.loaded_seed = entry, pending_seed(pipe) if entry.loaded_seed is None else entry.loaded_seed[0]


def _take_state(pipe: Any, take: Callable[[Any], object], state: Any, *, is_whole: bool = False) -> None:
    if not type(pipe).__module__.startswith("torchdata."):
        take(state)
        return
    with explaining_damage(name_of(pipe)):
        # Invalid values in the state must raise an error before the iteration begins.
        for each in pipe._declared:
            if each.saved and each.key in state:
                each.check(state[each.key], pipe)
            elif each.saved and is_whole and type(pipe).load_state_dict is DERIVED["load_state_dict"]:
                raise LookupError(f"{each.key} is missing")
        take(state)
