"""Saves the positions of all pipes of a graph as the state of the graph, and restores them in a new graph.

A graph state is a dict of plain data that is never modified. The key `graph` describes the classes and arguments of the
pipes (see `fingerprint`). The key `pipes` has an entry for each pipe (see `PipeEntry`), with sources before their
readers. The key `checksums` contains checksums of the values of `graph` and `pipes`. In the state of a pipe, values
that require pickle are stored as bytes under `"__pickled__"`, and nested containers under `"__nested__"`.

A pipe without a declared state is *replayed*: a resumed run starts it from the beginning and drops the items that it
had yielded. The sources of a replayed pipe begin with the states that they had at the beginning of the saved iteration.
The whole graph is replayed if user functions have drawn from the global random generators, or if a replayed pipe and
another pipe read the same source.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from torchdata._plain_pickles import to_plain
from torchdata.datapipes._pipe.graph.fingerprint import Fingerprint, difference
from torchdata.datapipes._pipe.graph.fingerprint import fingerprint as _fingerprint
from torchdata.datapipes._pipe.graph.graph import Graph, graph_of
from torchdata.datapipes._pipe.graph.torch import has_begun
from torchdata.datapipes._pipe.state.declared import random_state, state
from torchdata.datapipes._pipe.state.generators import load_generators, save_generators
from torchdata.datapipes._pipe.state.hooks import PipeHooks, depth_of, hooks_of
from torchdata.datapipes._pipe.state.iteration import (
    can_reset,
    entry_at_beginning,
    forget_state,
    has_finished,
    initial_entry,
    is_restorable,
    is_torchs,
    is_unnoticed,
    iterate,
    load_entry,
    load_last_entry,
    name_of,
    pending_seed,
    position_of,
    reader_of,
    unnoticed,
    with_pending,
    with_seeds,
)
from torchdata.datapipes._pipe.state.layout import (
    STATE_VERSION,
    PipeEntry,
    check_checksums,
    checksums_of,
    dump_graph,
    parse_graph,
)
from torchdata.datapipes._pipe.state.record import Beginning, record_of, token_of
from torchdata.datapipes.datapipe import IterDataPipe

__all__ = [
    "STATE_VERSION",
    "fingerprint",
    "forget_state",
    "is_one_to_one",
    "is_restorable",
    "iterate",
    "load_generators",
    "load_state",
    "random_state",
    "save_generators",
    "save_state",
    "set_strictness",
    "state",
    "threads_paused",
]


def threads_paused(pipes: list[Any], patience: float | None = None) -> AbstractContextManager[object]:
    """Returns a context within which the read-ahead threads of pipes are paused.

    Args:
        pipes: the pipes of a graph, with sources before their readers.
        patience: the maximum number of seconds to wait for a thread that is computing an item; None (the default) for
            the `patience` of each pipe.

    Raises:
        TimeoutError: when the context is entered, a thread needs more than `patience` seconds for an item.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> from torchdata.datapipes.state import threads_paused
        >>> source = IterableWrapper(range(3))
        >>> pipe = source.prefetch(2)
        >>> iterator = iter(pipe)
        >>> with threads_paused([source, pipe]):
        ...     first = next(iterator)
        >>> first, list(iterator)
        (0, [1, 2])
    """
    threaded = [pipe for pipe in pipes if type(hooks_of(pipe)).threads_paused is not PipeHooks.threads_paused]
    return _all_paused(threaded, patience) if threaded else nullcontext()


@contextmanager
def _all_paused(pipes: list[Any], patience: float | None) -> Iterator[None]:
    with ExitStack() as stack:
        # Each pipe is paused before its sources. If a source were paused before its reader, the reader's thread would
        # wait for an item of this source, and could not be paused.
        for pipe in reversed(pipes):
            stack.enter_context(pipe.threads_paused(patience))
        yield


def save_state(datapipe: Any, *, described: bool = True) -> dict[str, Any]:
    """Returns the state of the graph that ends in `datapipe`, after the last item that it yielded.

    A random pipe that is read several times in one epoch (`cycle`) has a new seed each time. Each seed is derived from
    the previous seed if a loader reads the graph, or if `set_graph_random_seed` was called. Without a loader and
    without `set_graph_random_seed`, the seeds are drawn from the global random generators, so also save the result of
    `save_generators()`.

    Args:
        datapipe: the last pipe of the graph, or the graph.
        described: whether the state contains checksums and a description of the pipes; True by default. `load_state`
            uses the checksums and the description to recognize damaged states and states of other pipelines. Saving is
            faster with `described=False`, which helps if you save states every second.

    Returns:
        A dict of plain data.

    Raises:
        TypeError: a value in a pipe's state cannot be pickled, a pipe creates pipes while it is iterated, the graph
            contains a random pipe of torch, or the graph ends in a pipe of torch that was not read by `iterate`.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> from torchdata.datapipes.state import load_state, save_state
        >>> pipe = IterableWrapper(range(4)).map(str)
        >>> next(iter(pipe))
        '0'
        >>> state = save_state(pipe)
        >>> fresh = IterableWrapper(range(4)).map(str)
        >>> load_state(fresh, state)
        >>> list(fresh)
        ['1', '2', '3']
    """
    graph = graph_of(datapipe)
    state = dump_graph(save_entries(graph))
    if not described:
        return state
    state["graph"] = fingerprint(graph)
    return {**state, "checksums": checksums_of(state)}


def save_entries(datapipe: Any) -> list[PipeEntry]:
    graph = graph_of(datapipe)
    with threads_paused(graph.pipes):
        return entries_of(graph)


def entries_of(graph: Graph) -> list[PipeEntry]:
    """Returns a `PipeEntry` for each pipe of a graph. The caller must have paused the read-ahead threads of the
    pipes."""
    if not is_torchs(graph.end):
        return _Saving(graph).entries()
    # A set comprehension calls `has_begun` for every PyTorch pipe, whereas `any` would stop early. `has_begun` raises
    # an error if a pipe's state cannot be saved.
    if True in {has_begun(pipe) for pipe in graph if is_torchs(pipe)} and is_unnoticed(graph.end):
        raise unnoticed(graph.end)
    *sources, _, last = _Saving(Graph(reader_of(graph.end))).entries()
    return [*sources, last._replace(type=name_of(graph.end))]


def fingerprint(datapipe: Any) -> Fingerprint:
    """Describes the class, sources and arguments of each pipe of a graph, sources first.

    `save_state` stores the fingerprint in the state under `"graph"`. `load_state` compares the fingerprint in the state
    with the fingerprint of the graph, and rejects a state of another graph.

    Args:
        datapipe: the last pipe of the graph, or the graph.

    Returns:
        A list with a dict for each pipe.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> from torchdata.datapipes.state import fingerprint
        >>> [entry["class"] for entry in fingerprint(IterableWrapper(range(3)).batch(2))]
        ['torchdata.datapipes.iter.IterableWrapper', 'torchdata.datapipes.iter.Batcher']
    """
    graph = graph_of(datapipe)
    record = record_of(graph.end)
    if record.fingerprint is None or len(record.fingerprint) != len(graph):
        record.fingerprint = _fingerprint(graph, begun=True)
    return record.fingerprint


class _Saving:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.end, self.pipes = graph, graph.end, graph.pipes
        self._in_use = self._find_in_use(alone=True)

    # -- iterations in use ---------------------------------------------------------------------------------------

    def _find_in_use(self, *, alone: bool) -> set[int]:
        """Returns the ids of the pipes that a resumed run must continue to read.

        Args:
            alone: whether to include the main pipe of a split such as `fork`. A child that has not begun may read the
                main pipe later.
        """
        used = {id(self.end)} if self._has_begun(self.end) else set()
        for reader in reversed(self.pipes):  # readers precede their sources
            hooks = hooks_of(reader)
            if alone and hooks._resumes_alone() and self._has_begun(reader):
                used.add(id(reader))
            if id(reader) not in used or has_finished(reader):
                continue
            in_use = hooks._sources_in_use()
            for source in self.graph.sources(reader) if in_use is None else in_use:
                if self._is_read_by(reader, source):
                    used.add(id(source))
        return used

    def _has_begun(self, pipe: Any) -> bool:
        record = record_of(pipe)
        return has_begun(pipe) if is_torchs(pipe) else record.stamp > 0 and record.loaded is None

    def _is_read_by(self, reader: Any, source: Any) -> bool:
        """Returns whether the running iteration of `reader` reads the running iteration of `source`."""
        if not self._has_begun(source):
            return False
        reads = hooks_of(reader)._reads_in_pass(source)
        if reads is not None:
            return reads
        if is_torchs(reader):
            return True
        if is_torchs(source):
            beginning = record_of(reader).beginning
            return beginning is None or beginning.torchs.get(id(source)) != source._valid_iterator_id
        return record_of(source).stamp > record_of(reader).stamp

    # -- pipes to replay -----------------------------------------------------------------------------------------

    def _to_replay(self) -> list[Any]:
        """Returns the pipes to replay. The direct and indirect sources of a replayed pipe are left out, because they
        are replayed together with it."""
        replayed = [
            pipe
            for pipe in self.pipes
            if id(pipe) in self._in_use
            and not is_restorable(pipe)
            and isinstance(pipe, IterDataPipe)
            and not has_finished(pipe)
        ]
        if not replayed:
            return []
        if id(self.end) not in {id(pipe) for pipe in replayed} and self._must_replay_all(replayed):
            return [self.end]
        below = self.graph.below(replayed)
        return [pipe for pipe in replayed if id(pipe) not in below]

    def _must_replay_all(self, replayed: list[Any]) -> bool:
        """Returns whether the whole graph must be replayed instead of only the pipes in `replayed`. A replay of the
        whole graph is necessary if a pipe that is not in `replayed` reads the same source as a pipe in `replayed`, as
        with the children of a `fork`. A replay of the whole graph is also necessary if the states of the global random
        generators have changed, because a user function of any pipe may have drawn numbers."""
        beginning = record_of(self.end).beginning
        if beginning is None:
            return False
        if beginning.whole or any(map(is_torchs, replayed)) or beginning.moved != save_generators():
            return True
        below, ids = self.graph.below(replayed), {id(pipe) for pipe in replayed}
        return any(
            id(source) in below
            for pipe in self.pipes
            if id(pipe) not in below and id(pipe) not in ids
            for source in self.graph.sources(pipe)
        )

    # -- entries ---------------------------------------------------------------------------------------------------

    def entries(self) -> list[PipeEntry]:
        found: dict[int, PipeEntry] = {}
        for pipe in self._to_replay():
            if is_torchs(pipe):
                raise unnoticed(pipe)
            beginning = record_of(pipe).beginning
            if beginning is not None:
                found |= self._replayed(pipe, beginning)
        for pipe in self.pipes:
            if id(pipe) in self._in_use and id(pipe) not in found:
                found |= hooks_of(pipe)._entries_of_sources()
        return [found.get(id(pipe)) or self._entry(pipe) for pipe in self.pipes]

    def _replayed(self, pipe: Any, beginning: Beginning) -> dict[int, PipeEntry]:
        self._check_grown(pipe, beginning)
        entries: dict[int, PipeEntry] = {}
        began = record_of(pipe).stamp
        may_be_left = id(pipe) not in self._find_in_use(alone=False)
        for each, entry, raw in beginning.parts:
            if isinstance(each, IterDataPipe) and not is_torchs(each) and record_of(each).stamp < began:
                entry, raw = entry_at_beginning(each)  # `pipe` has not begun this source yet
            if raw is not None:
                entry = entry._replace(state=to_plain(raw, name_of(each)))
            later = None if is_torchs(each) or record_of(each).stamp < began else pending_seed(each)
            if later is not None and later != entry.seed:
                entry = entry._replace(later=later)
            left = initial_entry(each) if may_be_left else entry.left
            entries[id(each)] = entry._replace(ahead=None, left=left)
        drop, seconds = token_of(pipe).yielded - beginning.yielded, time.monotonic() - beginning.since
        own = entries[id(pipe)]._replace(drop=drop, seconds=seconds)
        if pipe is self.end and (beginning.whole or beginning.moved != save_generators()):
            own = own._replace(generators=beginning.generators)
            for each, *_ in beginning.parts:
                passes = beginning.passes.get(id(each))
                ahead = None if passes is None or record_of(each).stamp < began else hooks_of(each)._read_ahead(passes)
                if ahead is not None and each is pipe:
                    own = own._replace(ahead=list(ahead))
                elif ahead is not None:
                    entries[id(each)] = entries[id(each)]._replace(ahead=list(ahead))
        entries[id(pipe)] = own._replace(finished=True) if has_finished(pipe) else own
        return entries

    def _check_grown(self, pipe: Any, beginning: Beginning) -> None:
        before = {id(each) for each, *_ in beginning.parts}
        grown = [name_of(each) for each in self.graph.at(pipe) if id(each) not in before] or record_of(pipe).grown
        if grown:
            raise TypeError(
                f"the state of {name_of(pipe)} cannot be saved, because while it is iterated it makes pipes and keeps "
                f"them in its attributes: {', '.join(grown)}. The pipeline that loads the state does not have them. "
                "Make them in __init__, or keep them in local variables"
            )

    def _entry(self, pipe: Any) -> PipeEntry:
        if is_torchs(pipe):
            return PipeEntry(name_of(pipe))
        record = record_of(pipe)
        if record.loaded is not None:
            return with_pending(pipe, record, record.loaded)
        if not isinstance(pipe, IterDataPipe):  # a map-style pipe has no position, but may have a state
            if not is_restorable(pipe):
                return PipeEntry(name_of(pipe))
            return with_seeds(PipeEntry(name_of(pipe), restores=True, state=position_of(pipe)), record)
        # Until a user-defined pipe without `reset` yields an item, its attributes may contain the position of an
        # earlier iteration.
        is_stale = token_of(pipe).yielded == 0 and not can_reset(type(pipe))
        if id(pipe) not in self._in_use or not is_restorable(pipe) or is_stale:
            entry = initial_entry(pipe)
            if id(pipe) in self._in_use and has_finished(pipe):
                entry = entry._replace(restores=True, yielded=token_of(pipe).yielded, finished=True)
            if not record.skipped:
                return entry
            return entry._replace(skipped=record.skipped)  # the counts are kept even if the iteration has ended
        finished, state = has_finished(pipe), position_of(pipe)
        seeds = record.seed, record.seeded or None
        return PipeEntry(name_of(pipe), True, token_of(pipe).yielded, finished, state, *seeds, record.skipped or None)


def beginning_entries(graph: Graph) -> list[PipeEntry]:
    """Returns a `PipeEntry` for the next iteration of each pipe, which may resume from a loaded state."""
    return [initial_entry(pipe) for pipe in graph]


def is_one_to_one(datapipe: Any) -> bool:
    """Returns whether a pipe's class declares by `one_to_one` that each item depends only on one item of the source.

    A subclass that overrides `__iter__` must declare `one_to_one` again.

    Args:
        datapipe: the pipe.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> from torchdata.datapipes.state import is_one_to_one
        >>> is_one_to_one(IterableWrapper(range(3)).map(str)), is_one_to_one(IterableWrapper(range(3)).batch(2))
        (True, False)
    """
    kind = type(datapipe)
    return bool(getattr(datapipe, "one_to_one", False)) and depth_of(kind, "one_to_one") <= depth_of(kind, "__iter__")


def load_state(datapipe: Any, state: dict[str, Any], *, strict: bool = True, allow_pickle: bool = True) -> None:
    """Loads a state into the graph that ends in `datapipe`, so that `iter(datapipe)` resumes at the saved position.

    A state can be loaded several times. If a state contains pickled values, loading it may run any code: load only
    states that you trust, or pass `allow_pickle=False`.

    Args:
        datapipe: the last pipe of the graph, or the graph.
        state: a result of `save_state`.
        strict: whether to raise an error if a pipe's argument differs from the saved graph, or if a source yields
            different items when it is reread; True by default.
        allow_pickle: whether values that require pickle are unpickled; True by default. If `allow_pickle` is False, a
            state that contains pickled values raises an error.

    Raises:
        ValueError: the state has another version, belongs to another graph, is damaged, or must not be unpickled.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> from torchdata.datapipes.state import load_state, save_state
        >>> pipe, other = IterableWrapper("abc"), IterableWrapper("abc")
        >>> next(iter(pipe))
        'a'
        >>> load_state(other, save_state(pipe))
        >>> list(other)
        ['b', 'c']
    """
    entries, graph = parse_graph(state, allow_pickle), graph_of(datapipe)
    if state.get("checksums") is not None:
        check_checksums(state)
    _require_same_pipes(graph, entries)
    described = state.get("graph") if strict else None
    other = "" if described is None else difference(described, _fingerprint(graph, begun=True), "this one")
    if other:
        raise ValueError(
            f"the state was saved from another pipeline: {other}. Build the same pipeline, or pass strict=False to "
            "load the state anyway"
        )
    if not strict:
        set_strictness(graph, False)
    load_entries(graph, entries)


def _require_same_pipes(graph: Graph, entries: Sequence[PipeEntry]) -> None:
    saved, found = [entry.type for entry in entries], [*map(name_of, graph)]
    if saved != found:
        raise ValueError(
            f"the state was saved from another pipeline: it holds {saved}, but this pipeline is {found} "
            "(sources first); build the same pipeline before loading its state"
        )


def set_strictness(datapipe: Any, is_strict: bool) -> None:
    """Sets whether sources of the graph compare reread items with the original items.

    Args:
        datapipe: the last pipe of the graph, or the graph.
        is_strict: whether the sources compare reread items, and raise an error if an item differs.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> from torchdata.datapipes.state import set_strictness
        >>> pipe = IterableWrapper(iter("abc"))
        >>> set_strictness(pipe, False)
        >>> list(pipe)
        ['a', 'b', 'c']
    """
    for pipe in graph_of(datapipe).pipes:
        hooks_of(pipe)._compare(is_strict)


def load_entries(datapipe: Any, entries: Sequence[PipeEntry]) -> None:
    graph = graph_of(datapipe)
    _require_same_pipes(graph, entries)
    with threads_paused(graph.pipes):
        for pipe, entry in zip(graph, entries, strict=True):
            load_entry(pipe, entry)
        if is_torchs(graph.end):
            load_last_entry(graph.end, entries[-1])
