"""Checks that find likely mistakes in a pipe graph before it runs: `lint`.

The checks inspect the shape of a graph and the types of its pipes, and run nothing. `MultiProcessingReadingService`
runs the checks before it starts workers, and warns about mistakes that would silently duplicate or lose data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from math import gcd
from typing import Any, Literal

from torchdata._reporting import warn_outside
from torchdata.dataloader2.graph import DataPipe
from torchdata.dataloader2.graph.cutting import find_lca_round_robin_sharding_dp
from torchdata.dataloader2.graph.settings import is_sharding, is_shuffler
from torchdata.dataloader2.graph.utils import has_method
from torchdata.datapipes._pipe.checks import check_int, wrong_type
from torchdata.datapipes._pipe.datasets import (
    instance_of,
    is_coordinated,
    is_indexed_only,
    shuffles_itself,
    splits_itself,
)
from torchdata.datapipes._pipe.explaining import ordinal
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.graph.traversal import is_pipe
from torchdata.datapipes.datapipe import MapDataPipe
from torchdata.datapipes.iter.ordering.sharding import SHARDING_PRIORITIES
from torchdata.datapipes.state import is_one_to_one

__all__ = ["DataPipeLintWarning", "Finding", "lint"]

Kind = Literal[
    "mix-before-sharding",
    "no-shuffle-before-sharding",
    "not-sharded",
    "own-order",
    "partly-sharded",
    "sharded-twice",
    "shuffle-after-dispatch",
    "splits-itself",
    "work-before-sharding",
]


class DataPipeLintWarning(UserWarning):
    """The warning that worker processes would duplicate or lose data.

    Example:
        >>> import warnings
        >>> from torchdata.dataloader2.linter import DataPipeLintWarning
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", DataPipeLintWarning)  # stops the program instead
    """


@dataclass(frozen=True)
class Finding:
    """A likely mistake in a pipe graph.

    Args:
        kind: the name of the mistake.
        message: one sentence with the mistake, the pipe and the remedy; `str(finding)` returns it.
        datapipe: the pipe that the finding is about.
        silent: whether the mistake certainly duplicates or loses data without an error. If your own pipes or iterables
            are involved, `silent` is False, because their code may already divide the items among workers.

    Example:
        >>> from torchdata.dataloader2.linter import lint
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> (finding,) = lint(IterableWrapper(range(9)).shuffle().batch(2))
        >>> finding.kind, finding.silent
        ('not-sharded', True)
    """

    kind: Kind
    message: str
    datapipe: DataPipe = field(repr=False, compare=False)
    silent: bool = False

    def __str__(self) -> str:
        return self.message


def lint(datapipe: DataPipe, num_workers: int = 2, *, seeded: bool = False) -> list[Finding]:
    """Finds likely mistakes in a graph that is to run in worker processes.

    `lint` finds items that several workers or no worker would yield, a `sharding_filter` without a `shuffle` before it,
    and expensive functions before the filter. `lint` also finds pipes that mix their inputs in a fixed pattern, such as
    `mux`, before `.sharding_filter().batch(n)`. After the `sharding_filter`, the batches of each worker would not
    contain the inputs in the ratio of this pattern.

    Args:
        datapipe: the last pipe of the graph.
        num_workers: number of worker processes that will run the graph, at least 0; 2 by default. With fewer than 2
            workers, no data can be duplicated.
        seeded: whether you call `DataLoader2.seed`, so that shuffling in the workers is repeatable; False by default.

    Returns:
        The findings, ordered from the sources of the graph to its end; empty if there are none.

    Raises:
        TypeError: `datapipe` is not a pipe, or `num_workers` is not an integer.
        ValueError: `num_workers` is negative.

    Example:
        >>> from torchdata.dataloader2.linter import lint
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> lint(IterableWrapper(range(9)).shuffle().sharding_filter().batch(2))
        []
        >>> [finding.kind for finding in lint(IterableWrapper(range(9)).shuffle().batch(2))]
        ['not-sharded']
    """
    if not is_pipe(datapipe):
        raise wrong_type("lint", "datapipe", "the last pipe of a graph", datapipe)
    num_workers = check_int("lint", "num_workers", num_workers, least=0)
    return [*_Linter(Graph(datapipe), num_workers, seeded).findings()]


def warn_of_silent_findings(graph: Graph, num_workers: int) -> None:
    """Warns, at the line of the user's program, about mistakes that certainly duplicate or lose data without an
    error.
    """
    for finding in _Linter(graph, num_workers, seeded=False).findings():
        if finding.silent:
            warn_outside(str(finding), DataPipeLintWarning)


class _Linter:
    def __init__(self, graph: Graph, num_workers: int, seeded: bool) -> None:
        self.graph = graph
        self.end = graph.end
        self.num_workers = num_workers
        self.seeded = seeded
        self.pipes = graph.pipes
        self.numbers = {id(pipe): number for number, pipe in enumerate(graph, 1)}
        self.sources = {id(pipe): graph.sources(pipe) for pipe in self.pipes}
        self.cut = find_lca_round_robin_sharding_dp(graph)
        self.dispatched = set() if self.cut is None else set(map(id, graph.at(self.cut)))
        self.filters = [pipe for pipe in self.pipes if _divides(pipe) and id(pipe) not in self.dispatched]
        #: The ids of the pipes that run in the main process, because they or their sources must not be replicated.
        self.in_main: set[int] = set()
        for pipe in self.pipes:
            if id(pipe) not in self.dispatched and (
                (has_method(pipe, "is_replicable") and not pipe.is_replicable())
                or any(id(source) in self.in_main for source in self.sources[id(pipe)])
            ):
                self.in_main.add(id(pipe))

    def findings(self) -> Iterator[Finding]:
        found = [*self._unshuffled(), *self._sharded_twice()]
        if self.num_workers > 1:
            found += [*self._shuffled_after_dispatch(), *self._replicated(), *self._split_and_sharded()]
            found += [*self._own_order(), *self._work_before_sharding(), *self._mix_before_sharding()]
        yield from sorted(found, key=lambda finding: self.numbers[id(finding.datapipe)])

    # -- the checks, one for each kind of mistake ---------------------------------------------------

    def _unshuffled(self) -> Iterator[Finding]:
        for pipe in self.pipes:
            if is_sharding(pipe) and not self._shuffled_before(pipe):
                later = any(is_shuffler(reader) and self._reads(reader, pipe) for reader in self.pipes)
                mixed = ", and the later `shuffle` mixes only the items of one worker" if later else ""
                yield Finding(
                    "no-shuffle-before-sharding",
                    f"{self._label(pipe)}: no `shuffle` comes before this filter, so each worker and rank receives the "
                    f"same items in every epoch{mixed}; put `.shuffle()` before `.sharding_filter()`",
                    pipe,
                )

    def _sharded_twice(self) -> Iterator[Finding]:
        sharding = [pipe for pipe in self.pipes if is_sharding(pipe)]
        for first, second in combinations(sharding, 2):  # sources precede their readers
            groups = {_group(first), _group(second)}
            if self._reads(second, first) and (None in groups or len(groups) == 1):
                yield Finding(
                    "sharded-twice",
                    f"{self._label(second)}: the items have already passed {self._label(first)}, so each worker or "
                    "rank would receive only a part of its share, and other items would be lost (a loader raises an "
                    "error); remove one of the two filters",
                    second,
                )

    def _shuffled_after_dispatch(self) -> Iterator[Finding]:
        if self.cut is None or self.seeded or is_shuffler(self.cut) or self._shuffled_before(self.cut):
            return
        for pipe in self.pipes:
            in_workers = id(pipe) not in self.dispatched | self.in_main
            if in_workers and is_shuffler(pipe) and self._reads(pipe, self.cut):
                yield Finding(
                    "shuffle-after-dispatch",
                    f"{self._label(pipe)}: the pipe shuffles after `sharding_round_robin_dispatch` and without a seed, "
                    f"so each of {self.num_workers} workers mixes only its own items, which are the same in every "
                    "epoch, in an order that no later run repeats; put `.shuffle()` before the dispatch, or set a seed "
                    "with `DataLoader2.seed` (and pass seeded=True to `lint`)",
                    pipe,
                )

    def _replicated(self) -> Iterator[Finding]:
        """Finds pipes that yield the same items in all workers, and pipes that join sharded and unsharded inputs."""
        own: dict[int, bool] = {}
        for pipe in self.pipes:
            if id(pipe) in self.dispatched:
                own[id(pipe)] = True
            elif id(pipe) not in self.in_main:
                inputs = _inputs(self.sources[id(pipe)])
                divided = [source for source in inputs if own.get(id(source))]
                own[id(pipe)] = bool(divided) or _divides(pipe) or _splits_itself(pipe)
                if 0 < len(divided) < len(inputs) and not _divides(pipe):
                    yield from self._partly_sharded(pipe, divided[0], [s for s in inputs if not own.get(id(s))])
        for branch in self._ends_in_workers():
            if not own[id(branch)]:
                source = self.graph.at(branch).pipes[0]
                silent = self._known(self.graph.at(branch).pipes)
                condition = "" if silent else " (unless your own pipe or iterable divides the items)"
                yield Finding(
                    "not-sharded",
                    f"{self._label(source)}: no later pipe divides the items among the workers{condition}, so each of "
                    f"{self.num_workers} workers yields all items, and every item is yielded {self.num_workers} times; "
                    "put `.sharding_filter()` after this pipe (after `.shuffle()`, if there is one) or "
                    "`.sharding_round_robin_dispatch()`; with a filter and `DataLoader2(..., splits=64)`, the order "
                    "does not depend on the number of workers",
                    source,
                    silent,
                )

    def _split_and_sharded(self) -> Iterator[Finding]:
        for pipe in self.filters:
            for source in self._upstream(pipe):
                if _splits_itself(source):
                    kind = type(source.iterable).__name__
                    loses = is_coordinated(source.iterable)
                    wrong = "each of {} workers reads all items and keeps its share"
                    if loses:
                        wrong = "each of {} workers keeps only a share of its part, and other items are lost"
                    yield Finding(
                        "splits-itself",
                        f"{self._label(pipe)}: the {kind} in {self._label(source)} already divides its items among "
                        f"workers, so with this filter {wrong.format(self.num_workers)}; remove the filter, or with "
                        "ranks replace it by `.sharding_filter(SHARDING_PRIORITIES.DISTRIBUTED)`, so that each worker "
                        "reads only its own part",
                        pipe,
                        loses,
                    )

    def _own_order(self) -> Iterator[Finding]:
        for pipe in self.filters:
            for source in self._upstream(pipe):
                iterable = vars(source).get("iterable")
                if (
                    id(source) not in self.dispatched
                    and not is_pipe(iterable)
                    and not _splits_itself(source)
                    and shuffles_itself(iterable)
                ):
                    kind = getattr(iterable, "__name__", type(iterable).__name__)
                    yield Finding(
                        "own-order",
                        f"{self._label(pipe)}: {kind} in {self._label(source)} seems to shuffle, and each of "
                        f"{self.num_workers} workers reads all of its items; unless all workers read the same order, "
                        "some items are yielded twice and others never (a loader raises an error if it detects this); "
                        "shuffle with the pipe `.shuffle()` or with a seed that all workers share, or replace the "
                        "filter by `.sharding_round_robin_dispatch()`",
                        source,
                    )

    def _work_before_sharding(self) -> Iterator[Finding]:
        for pipe in self.filters:
            if id(pipe) in self.in_main:
                continue
            before = [one for one in self._upstream(pipe) if id(one) not in self.dispatched and _calls_users(one)]
            if before:
                called = ", ".join(sorted({_function_name(one) for one in before}))
                yield Finding(
                    "work-before-sharding",
                    f"{self._label(pipe)}: {called} comes before the filter, so each of {self.num_workers} workers "
                    f"calls {called} for all items, and then drops the items of the other workers; put "
                    f"`.sharding_filter()` before `.map({called})`, unless {called} takes almost no time",
                    pipe,
                )

    def _mix_before_sharding(self) -> Iterator[Finding]:
        for pipe in self.filters:
            if not any(_name(reader) == "Batcher" and self._reads(reader, pipe) for reader in self.pipes):
                continue
            mix, period = self._fixed_mix(pipe)
            if mix is not None and gcd(period, self.num_workers) > 1 and vars(pipe).get("_block", 1) % period:
                where = f"directly after {_name(mix)}" if _name(mix) in _SIDE_BY_SIDE else "into each of its inputs"
                yield Finding(
                    "mix-before-sharding",
                    f"{self._label(pipe)}: {self._label(mix)} mixes its inputs in a pattern of {period} items, and "
                    f"each worker keeps one of every {self.num_workers} items, so the batches of a worker do not have "
                    f"the ratio of the mix; put `.sharding_filter()` {where}, or pass the adapter "
                    f"`ShardingPolicy(block={period})` to the loader",
                    pipe,
                )

    def _partly_sharded(self, pipe: Any, divided: Any, whole: list[Any]) -> Iterator[Finding]:
        name = type(pipe).__name__
        sharded, other = self._label(divided), self._label(whole[0])
        silent = _is_ours(pipe) and self._known([each for one in whole for each in self.graph.at(one)])
        if name in _LOOKING_UP:
            looked_up = getattr(pipe, "ref_datapipe", None)
            if divided is not looked_up:
                return  # each worker looks up its own items in the complete other input, which is correct
            silent = False  # the pipe itself raises an error for an item without a match
            effect = (
                f"each of {self.num_workers} workers looks up all items of the input {other} in its own share of "
                f"{sharded}, and finds no partner that is in another worker's share; shard the first input, and do "
                "not shard the second input"
            )
        elif name in _SIDE_BY_SIDE:
            effect = (
                f"each of {self.num_workers} workers pairs its own share of {sharded} with the first items of {other}, "
                "which is not sharded, so items are paired that do not belong together, and others are lost; put "
                f"`.sharding_filter()` after {name} instead"
            )
        else:
            silent = silent and name in _ONE_BY_ONE
            effect = (
                f"the input {other} is not sharded, whereas {sharded} is, so each of {self.num_workers} workers yields "
                f"all items of {other}, and they are yielded {self.num_workers} times; put `.sharding_filter()` after "
                f"{name} instead, or into each input"
            )
        yield Finding("partly-sharded", f"{self._label(pipe)}: {effect}", pipe, silent)

    # -- questions about the graph -----------------------------------------------------------------

    def _upstream(self, pipe: Any) -> list[Any]:
        """The result includes indirect sources, but not the given pipe itself."""
        return [source for source in self.graph.at(pipe) if source is not pipe]

    def _reads(self, reader: Any, pipe: Any) -> bool:
        return id(pipe) in self.graph.below([reader])

    def _fixed_mix(self, pipe: Any) -> tuple[Any, int]:
        """Returns the pipe before `pipe` that mixes its inputs in a fixed pattern, and the length of the pattern."""
        unfolded = False
        while len(sources := self.sources[id(pipe)]) == 1:
            [pipe] = sources
            sides = self.sources[id(pipe)]
            if _name(pipe) in _IN_TURN or (unfolded and _name(pipe) in _SIDE_BY_SIDE):
                sizes = [vars(side)["batch_size"] if unfolded and _name(side) == "Batcher" else 1 for side in sides]
                return pipe, sum(sizes)
            if _name(pipe) in _UNFOLDING:
                unfolded = True
            elif not is_one_to_one(pipe):
                break
        return None, 0

    def _shuffled_before(self, pipe: Any) -> bool:
        waiting, opened = [pipe], {id(pipe)}
        while waiting:
            sources = self.sources[id(waiting.pop())]
            if not sources:
                return False
            new = [s for s in sources if not _orders(s) and id(s) not in opened]
            opened.update(map(id, new))
            waiting.extend(new)
        return True

    def _ends_in_workers(self) -> list[Any]:
        ends = {id(s): s for p in self.pipes if id(p) in self.in_main for s in self.sources[id(p)]}
        if id(self.end) not in self.in_main:
            ends = {id(self.end): self.end}
        return [pipe for pipe in ends.values() if id(pipe) not in self.in_main | self.dispatched]

    def _known(self, pipes: list[Any]) -> bool:
        """Returns True only if all pipes are certainly finite and certainly do not divide their items among workers."""
        return all(
            _is_ours(pipe)
            and not (type(pipe).__name__ == "Cycler" and getattr(pipe, "count", 0) is None)
            and _is_plain(getattr(pipe, "iterable", None))
            and not any(map(_is_foreign, vars(pipe).values()))
            for pipe in pipes
        )

    def _label(self, pipe: Any) -> str:
        """Returns, for example, `Mapper (2nd of 3 pipes)`."""
        return f"{_name(pipe)} ({ordinal(self.numbers[id(pipe)])} of {len(self.pipes)} pipes)"


#: `_ONE_BY_ONE`: pipes that yield each item of their inputs separately. `_SIDE_BY_SIDE`: pipes that yield tuples with
#: one item of each input.
_ONE_BY_ONE = {"Concater", "Multiplexer", "MultiplexerLongest", "SampleMultiplexer"}
_SIDE_BY_SIDE = {"Zipper", "ZipperLongest"}
#: `_IN_TURN`: pipes that take an item of each input in turn. `_UNFOLDING`: pipes that yield the members of each item.
#: `_LOOKING_UP`: pipes that join items with the same key.
_IN_TURN = {"Multiplexer", "MultiplexerLongest"}
_UNFOLDING = {"FlatMapper", "UnBatcher"}
_LOOKING_UP = {"IterKeyZipper", "MapKeyZipper"}

_MAPPING = {"Mapper", "ThreadPoolMapper", "BatchMapper", "BatchAsyncMapper"}


def _calls_users(pipe: Any) -> bool:
    """Returns whether the pipe calls a user's function; built-in functions are ignored, because they are fast."""
    function = vars(pipe).get("fn")
    module = str(getattr(function, "__module__", None) or "builtins").partition(".")[0]
    return type(pipe).__name__ in _MAPPING and module not in ("torchdata", "builtins", "_operator", "functools")


def _function_name(pipe: Any) -> str:
    function = vars(pipe)["fn"]
    return str(getattr(function, "__name__", type(function).__name__))


def _name(pipe: Any) -> str:
    return type(pipe).__name__.lstrip("_")


def _inputs(sources: list[Any]) -> list[Any]:
    """Returns the sources that a pipe iterates. If a pipe has iterable sources, its map sources are omitted, because
    their items are only looked up by key."""
    iterated = [source for source in sources if not isinstance(source, MapDataPipe)]
    return iterated or sources


def _orders(pipe: Any) -> bool:
    """Returns whether the pipe determines the order of the items, as shufflers and samplers do."""
    return is_shuffler(pipe) or instance_of(pipe, "torchdata.datapipes.map.combinatorics", "IndexSampler")


def _divides(pipe: Any) -> bool:
    return is_sharding(pipe) and _group(pipe) in (None, SHARDING_PRIORITIES.MULTIPROCESSING)


def _splits_itself(pipe: Any) -> bool:
    iterable = vars(pipe).get("iterable")
    return iterable is not None and not is_pipe(iterable) and splits_itself(iterable)


def _group(pipe: Any) -> Any:
    return vars(pipe).get("sharding_group_filter")


def _is_ours(pipe: Any) -> bool:
    return type(pipe).__module__.partition(".")[0] == "torchdata"


def _is_foreign(value: Any) -> bool:
    names = {cls.__name__ for cls in type(value).__mro__}
    return not is_pipe(value) and not names.isdisjoint(("IterDataPipe", "MapDataPipe", "IterableDataset"))


def _is_plain(iterable: Any) -> bool:
    """Returns False for an iterable of the user's own class, because it may divide its items among workers."""
    return isinstance(iterable, (list, tuple, dict, str, bytes, range, set, frozenset, type(None))) or (
        is_pipe(iterable)
        or is_indexed_only(iterable)
        or type(iterable).__module__.partition(".")[0] in ("numpy", "pandas", "polars", "pyarrow", "torch")
    )


def _check_shuffle_before_sharding(datapipe: DataPipe) -> bool:
    """Returns whether items are shuffled on every path that leads into a sharding pipe."""
    return not any(finding.kind == "no-shuffle-before-sharding" for finding in lint(datapipe))
