"""Nodes that call a function with each item: Mapper, ParallelMapper.

`ParallelMapper` puts one of three nodes to work: `_InlineMapper`, if there are no workers, `_ThreadMapper` over
threads, or over threads that each speak to a process; and if items are batched for them, `_Unpacker` behind it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar

from torchdata._engine.workers.hangs import Survived, check_on_timeout
from torchdata.datapipes._pipe.checks import check_callable, check_int
from torchdata.nodes._fields import Fields
from torchdata.nodes._functions import Failure, MapEach, not_the_end
from torchdata.nodes._processes import Workers
from torchdata.nodes._read_ahead import ReadSource
from torchdata.nodes._seeds import one_reset
from torchdata.nodes.base_node import Again, BaseNode, T, advance_of, check_node
from torchdata.nodes.batch import Batcher, Unbatcher
from torchdata.nodes.prefetch import ThreadedNode

__all__ = ["MapOverBatch", "Mapper", "ParallelMapper", "X"]

X = TypeVar("X")

#: How many small items are read ahead for each process, at most.
_FOR_EACH = 128


class MapOverBatch(Generic[X, T]):
    """Makes of a function of items one of lists of them.

    Args:
        map_fn: called with each member of a list.

    Example:
        >>> from torchdata.nodes.map import MapOverBatch
        >>> MapOverBatch(str)([1, 2])
        ['1', '2']
    """

    def __init__(self, map_fn: Callable[[X], T]) -> None:
        self.map_fn = map_fn

    def __call__(self, xlist: Sequence[X]) -> Sequence[T]:
        return [self.map_fn(x) for x in xlist]


class _InlineMapper(BaseNode[T]):
    """Calls the function where it is read. An item with which that is cut off (by Ctrl-C) stays for the next call."""

    SOURCE_KEY = "source"
    CUT_OFF_KEY = "cut_off"

    def __init__(self, source: BaseNode[Any], map_fn: Callable[[Any], T]) -> None:
        super().__init__()
        self.source = source
        self.map_fn = map_fn

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        if initial_state is None:
            self.source.reset(None)
            self._advance = advance_of(self.source)
        else:
            fields = Fields("Mapper", initial_state)
            self.source.reset(fields[self.SOURCE_KEY])
            self._advance = advance_of(self.source)
            if self.CUT_OFF_KEY in fields:
                self._advance = Again(self, fields[self.CUT_OFF_KEY])
        super().reset(initial_state)

    def next(self) -> T:
        item = self._advance()
        try:
            return self.map_fn(item)
        except StopIteration as error:
            raise not_the_end("map_fn of Mapper") from error
        except Exception:
            raise
        except BaseException:
            self._advance = Again(self, item)
            raise

    def get_state(self) -> dict[str, Any]:
        state = {self.SOURCE_KEY: self.source.state_dict()}
        return {**state, self.CUT_OFF_KEY: self._advance.item} if isinstance(self._advance, Again) else state


class _ThreadMapper(ThreadedNode[T]):
    """Calls the function in threads, or through them in processes."""

    _of_a_run: ClassVar[frozenset[str]] = frozenset({"_advance", "_run", "_workers"})

    #: The processes; they outlive a run.
    _workers: Workers | None = None

    def __init__(
        self,
        source: BaseNode[Any],
        map_fn: Callable[[Any], T],
        num_workers: int,
        in_order: bool,
        method: str,
        multiprocessing_context: str | None,
        max_concurrent: int | None,
        snapshot_frequency: int,
        survived: Survived,
        timeout: float | None,
    ) -> None:
        super().__init__(source, snapshot_frequency)
        self._called = "ParallelMapper"
        self.map_fn = map_fn
        self.num_workers = num_workers
        self.in_order = in_order
        self.method = method
        self.multiprocessing_context = multiprocessing_context
        self.max_concurrent = max_concurrent
        self.survived, self.timeout = survived, timeout

    def _begin(self, state: dict[str, Any] | None) -> ReadSource:
        with one_reset():
            return self._begin_run(state)

    def _begin_run(self, state: dict[str, Any] | None) -> ReadSource:
        options = {"in_order": self.in_order, "limit": self.max_concurrent or 2 * self.num_workers}
        if self.method == "thread":
            return self._begin_with([self.map_fn] * self.num_workers, state, **options)
        workers = self._workers  # which another thread may take away at any time: see `reset`
        if workers is None or not workers.serve_on:
            self._end_workers()
            context = self.multiprocessing_context
            workers = self._workers = Workers(self.map_fn, self.num_workers, context, self.survived, self.timeout)
        if self.max_concurrent is None:
            options["grows_to"] = _FOR_EACH * self.num_workers
        run = self._begin_with([], state, several=workers.functions, **options)
        workers.serve(run.queue)
        return run

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        if self.method == "process" and self._workers is None:
            self._close_run()  # another thread has shut them down since they were there

    def _repeats(self) -> bool:
        return self.in_order or self.num_workers == 1

    def shutdown(self) -> None:
        self._end_workers()  # which also ends the calls in them
        super().shutdown()

    def _end_workers(self) -> None:
        workers, self._workers = self._workers, None  # before the run is looked for, as `reset` does it the other way
        self._close_run()
        if workers is not None:
            workers.shutdown()


class _Unpacker(Unbatcher[T]):
    """Yields the members of lists of results, and raises the errors among them, each at its place."""

    def next(self) -> T:
        item: Any = super().next()
        if type(item) is Failure:
            error: BaseException = item.raisable()
            del item
            try:
                raise error
            finally:
                del error
        return item  # type: ignore[no-any-return]


class ParallelMapper(BaseNode[T]):
    """Calls a function with each item, in several threads or processes.

    One of the threads at a time reads the source. An error of the function comes in the place of its result, with the
    traceback of where it was raised; the results after it can still be read.

    A saved state counts the items that were yielded. After a load, items that were under way are read again, and the
    function is called with them again. Out of order, a loaded state yields exactly the items that were not yielded, in
    any order. Over a source that is out of order itself, `in_order` is taken for true and `snapshot_frequency` for 1.

    Processes live from the first `reset` until `shutdown()`, or until the node is dropped. They are joined by the
    engine of this package: arrays cross in shared memory, one copy each way. A process that dies is a
    `WorkerExitedError` (of `torchdata.dataloader2.error`), which names it; the next `reset` starts new ones. Where no
    item comes of them for a minute, a `RuntimeWarning` says which one has its item longest, and where it stands.
    Each process first seeds torch, NumPy and `random` as torch's workers do: with a base seed plus its number.
    The base seed follows from torch's global generator, so `torch.manual_seed` before the first `reset` repeats it.
    Which process gets which item may depend on timing if there are several. A process that replaces another one has a
    seed of its own.

    Args:
        source: the node to read.
        map_fn: called with each item. In threads, it must be safe to call from several at once; in processes, it must
            be picklable unless they are forked (lambdas and local functions are).
        num_workers: threads or processes; with 0 the function is called where the node is read.
        in_order: whether results come in the source's order. If not, they come as they are ready.
        method: `"thread"` or `"process"`.
        multiprocessing_context: how processes start: `"fork"`, `"spawn"` or `"forkserver"`; None for Python's default.
        max_concurrent: most items that are taken from the source and not yet yielded; at most `num_workers`. None for
            twice as many as that; over processes, up to 128 times as many while items and results are small (numbers,
            short strings, tuples of such): one more for each eight that were yielded. Such items go to the processes
            several at a time, those that are there.
        snapshot_frequency: how many items there are from one saved state of the source to the next, as for
            `Prefetcher`; with `prebatch`, how many batches.
        prebatch: how many items go to a worker together. Worth it if items are small; None for one by one.
        on_worker_exit: what becomes of a process that dies: "error" raises; "restart" puts another one in its place,
            with a `RuntimeWarning`, and gives it the item that the dead one had. The third death at the same item
            raises all the same.
        timeout: seconds within which a process is to give the result for an item; None (or 0) for ever. With threads it
            means nothing: a thread cannot be ended.
        on_timeout: what is done then: "error" raises `TimeoutError` in the place of the result; "restart" kills the
            process, with a `RuntimeWarning` that brings its Python stacks, and gives the item to another one, as
            `on_worker_exit="restart"` does. By itself it does not do that for processes that die otherwise. A process
            has twice as long for an item for each that was killed at it, and a minute at least while it starts.
        patience: with `on_timeout="restart"`, the seconds that a process has which works: its threads have run, or have
            waited for a processor, for a tenth of the time at least. None: `timeout`, as all others.

    Raises:
        TypeError: `source` is no node, `map_fn` no function, or a number no integer.
        ValueError: a number is out of its range, or `method`, `multiprocessing_context` or `on_worker_exit` is
            unknown, or `on_timeout`, or that is "restart" without a `timeout`.

    Example:
        >>> from torchdata.nodes import IterableWrapper, ParallelMapper
        >>> list(ParallelMapper(IterableWrapper(["a", "bc"]), len, num_workers=2))
        [1, 2]
    """

    IT_STATE_KEY = "it_state"

    def __init__(
        self,
        source: BaseNode[X],
        map_fn: Callable[[X], T],
        num_workers: int,
        in_order: bool = True,
        method: Literal["thread", "process"] = "thread",
        multiprocessing_context: str | None = None,
        max_concurrent: int | None = None,
        snapshot_frequency: int = 1,
        prebatch: int | None = None,
        *,
        on_worker_exit: Literal["error", "restart"] = "error",
        timeout: float | None = None,
        on_timeout: Literal["error", "restart"] = "error",
        patience: float | None = None,
    ) -> None:
        super().__init__()
        name = "ParallelMapper"
        self.source: BaseNode[Any] = check_node(name, "source", source)
        check_callable(name, "map_fn", map_fn)
        self.map_fn: Callable[[Any], Any] = map_fn
        self.num_workers = check_int(name, "num_workers", num_workers, least=0)
        self.in_order = in_order
        if method not in ("thread", "process"):
            raise ValueError(f'{name}: method must be "thread" or "process", but got {method!r}')
        self.method = method
        self.multiprocessing_context = multiprocessing_context
        if on_worker_exit not in ("error", "restart"):
            raise ValueError(f"{name}: on_worker_exit must be 'error' or 'restart', but got {on_worker_exit!r}")
        self.on_worker_exit = on_worker_exit
        if timeout is not None and not (isinstance(timeout, (int, float)) and 0 <= timeout < math.inf):
            raise ValueError(f"{name}: timeout must be a number of seconds or None, but got {timeout!r}")
        check_on_timeout(name, on_timeout, timeout, patience)
        self.timeout, self.on_timeout, self.patience = timeout, on_timeout, patience
        self.max_concurrent = max_concurrent
        if max_concurrent is not None:
            check_int(name, "max_concurrent", max_concurrent, least=1)
            if 0 < self.num_workers < max_concurrent:
                raise ValueError(
                    f"{name}: max_concurrent must be at most num_workers={num_workers}, but got {max_concurrent}; "
                    "None stands for twice as many"
                )
        self.snapshot_frequency = check_int(name, "snapshot_frequency", snapshot_frequency, least=0)
        self.prebatch = None if prebatch is None else check_int(name, "prebatch", prebatch, least=1)
        #: The node whose items the function is called with.
        self._of_items = self.source
        if self.prebatch is not None:
            self.map_fn = MapEach(self.map_fn)
            self.source = Batcher(self.source, self.prebatch, drop_last=False)
        mapper: BaseNode[Any]
        if self.num_workers == 0:
            mapper = _InlineMapper(self.source, self.map_fn)
        else:
            mapper = _ThreadMapper(
                self.source,
                self.map_fn,
                self.num_workers,
                in_order,
                method,
                multiprocessing_context,
                max_concurrent,
                self.snapshot_frequency,
                Survived.chosen(on_worker_exit, timeout, on_timeout, patience),
                timeout or None,
            )
        self._it: BaseNode[T] = mapper if self.prebatch is None else _Unpacker(mapper)

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """See `BaseNode.reset`. Threads of the last run end after the calls that they are in.

        Raises:
            TimeoutError: the source has been busy with one item for a minute.
            OSError: the system has no room for the processes.
        """
        state = None if initial_state is None else Fields("ParallelMapper", initial_state).state(self.IT_STATE_KEY)
        self._it.reset(state)  # type: ignore[arg-type]
        self._advance = advance_of(self._it)
        super().reset(initial_state)

    def next(self) -> T:
        """See `BaseNode.next`."""
        item: T = self._advance()
        return item

    def _reader(self) -> Callable[[], Any]:
        return self._advance if type(self).next is ParallelMapper.next else self.next

    def get_state(self) -> dict[str, Any]:
        """See `BaseNode.get_state`."""
        return {self.IT_STATE_KEY: self._it.state_dict()}

    def shutdown(self) -> None:
        """See `BaseNode.shutdown`. Waits for calls that are under way in threads, for some seconds at most."""
        self._it.shutdown()

    def __len__(self) -> int:
        """How many items an epoch has.

        Raises:
            TypeError: the source has no length.
        """
        return len(self._of_items)


def Mapper(source: BaseNode[X], map_fn: Callable[[X], T]) -> ParallelMapper[T]:
    """Calls a function with each item, where the node is read: a `ParallelMapper` without workers.

    Args:
        source: the node to read.
        map_fn: called with each item.

    Raises:
        TypeError: `source` is no node, or `map_fn` no function.

    Example:
        >>> from torchdata.nodes import IterableWrapper, Mapper
        >>> list(Mapper(IterableWrapper([1, 2]), str))
        ['1', '2']
    """
    return ParallelMapper(source, map_fn, num_workers=0)
