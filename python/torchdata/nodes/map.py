"""Mapper, ParallelMapper: call a function with each item.

`ParallelMapper` reads an inner node: `_InlineMapper` without workers, or `_ThreadMapper`. The threads of
`_ThreadMapper` call the function, or send the items to processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, Literal, TypeVar

from torchdata._engine.workers.hangs import Survived, check_restarts
from torchdata._observe.stats.counting import Pages
from torchdata.datapipes._pipe.checks import check_callable, check_int
from torchdata.datapipes._pipe.explaining import not_the_end
from torchdata.nodes._fields import StateFields
from torchdata.nodes._functions import Failure, MapEach
from torchdata.nodes._processes import Workers, one_reset
from torchdata.nodes._read_ahead import ReadSource, ThreadedNode
from torchdata.nodes.base_node import Again, BaseNode, PassingNode, T, advance_of, check_node
from torchdata.nodes.batch import Batcher, Unbatcher

__all__ = ["MapOverBatch", "Mapper", "ParallelMapper", "X"]

X = TypeVar("X")

#: The maximum number of items that are read ahead for each process while items are small.
_FOR_EACH = 128


class MapOverBatch(Generic[X, T]):
    """Converts a function of an item to a function of a list of items.

    Args:
        map_fn: the function to call with each member of a list.

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
    """Calls the function in the thread that reads the node. If Ctrl-C interrupts the function, the next call of `next`
    repeats the function call with the same item.
    """

    SOURCE_KEY = "source"
    CUT_OFF_KEY = "cut_off"

    def __init__(self, source: BaseNode[Any], map_fn: Callable[[Any], T]) -> None:
        super().__init__()
        self.source = source
        self.map_fn = map_fn

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        fields = StateFields("Mapper", initial_state)
        self._advance = fields.reset(self.source, self.SOURCE_KEY)
        if self.CUT_OFF_KEY in fields:
            self._advance = Again(self, fields[self.CUT_OFF_KEY])
        super().reset(initial_state)

    def next(self) -> T:
        item = self._advance()
        try:
            return self.map_fn(item)
        except StopIteration as error:
            raise not_the_end("map_fn of Mapper", error) from error
        except Exception:
            raise
        except BaseException:
            self._advance = Again(self, item)
            raise

    def get_state(self) -> dict[str, Any]:
        state = {self.SOURCE_KEY: self.source.state_dict()}
        return {**state, self.CUT_OFF_KEY: self._advance.item} if isinstance(self._advance, Again) else state


class _ThreadMapper(ThreadedNode[T]):
    _of_a_run: ClassVar[frozenset[str]] = frozenset({"_advance", "_run", "_workers", "_pages"})

    #: The worker processes, which keep running when the node is reset.
    _workers: Workers | None = None
    _pages: Pages | None = None

    def __init__(self, mapper: ParallelMapper[T]) -> None:
        super().__init__(mapper.source, mapper.snapshot_frequency)
        self._called = "ParallelMapper"
        self.map_fn, self.in_order, self.num_workers = mapper.map_fn, mapper.in_order, (count := mapper.num_workers)
        #: A function that starts the worker processes; None if threads call `map_fn`.
        self.processes: Callable[..., Workers] | None = None
        self.limits = {"limit": mapper.max_concurrent or 2 * count}
        if mapper.method == "process":
            how = mapper.multiprocessing_context, Survived.chosen(mapper), mapper.timeout or None
            self.processes = partial(Workers, self.map_fn, count, *how)
            if mapper.max_concurrent is None:
                self.limits["grows_to"] = _FOR_EACH * count

    def _begin(self, state: dict[str, Any] | None) -> ReadSource:
        options: dict[str, Any] = {"in_order": self.in_order, **self.limits}
        with one_reset():
            if self.processes is None:
                return ReadSource(self, [self.map_fn] * self.num_workers, state, **options)
            workers = self._workers
            if workers is None or not workers.serve_on:
                self._end_workers()
                workers = self._workers = self.processes(pages=self._pages)
            run = ReadSource(self, [], state, workers=workers.functions, **options)
            workers.serve(run.work.queue)
            return run

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        if self.processes is not None and self._workers is None:
            self._close_run()  # another thread has shut down the processes meanwhile

    def _repeats(self) -> bool:
        return self.in_order or self.num_workers == 1

    def shutdown(self) -> None:
        self._end_workers()
        super().shutdown()

    def _end_workers(self) -> None:
        # `_workers` is cleared first, because a run that `reset` starts in another thread must not use workers that are
        # being shut down.
        workers, self._workers = self._workers, None
        self._close_run()
        if workers is not None:
            workers.shutdown()


class _Unpacker(Unbatcher[T]):
    """Yields the members of lists of results, and raises the errors of `Failure` members."""

    def next(self) -> T:
        item: Any = super().next()
        if item.__class__ is Failure:  # a call of `type` could be interrupted by Ctrl-C
            error: BaseException = item.raisable()
            del item
            try:
                raise error
            finally:
                del error
        return item  # type: ignore[no-any-return]


class ParallelMapper(PassingNode[T]):
    """Calls a function with each item, in several threads or processes.

    Only one thread at a time reads the source. An error of `map_fn` is raised instead of its result, with the original
    traceback. Later results can still be read after an error.

    A state contains the position after the yielded items. When a state is loaded, items that were read but not yet
    yielded are reread, and `map_fn` is called with these items again. With `in_order=False`, a resumed node yields, in
    any order, exactly the results that had not been yielded when the state was saved. If the source may have a
    different order when it is reread, `in_order=False` has no effect, and `snapshot_frequency` is always 1.

    Processes run from the first `reset` until `shutdown()`, or until the node is deleted. Arrays are sent to and from
    processes in shared memory, with one copy in each direction. If a process exits, the node raises a
    `WorkerExitedError` (of `torchdata.dataloader2.error`), and the next `reset` starts new processes. If the processes
    return no result for a minute, a `RuntimeWarning` names the process with the oldest item, and shows the stack of
    this process. Like PyTorch's workers, each process first seeds torch, NumPy and `random` with the sum of a base seed
    and its own number. The base seed is derived from torch's global generator, so `torch.manual_seed` before the first
    `reset` makes the seeds reproducible. With several processes, timing may determine which process computes an item. A
    process that replaces another process has a new number, and therefore a new seed.

    Args:
        source: the node to read.
        map_fn: a function of an item, which several threads may call at the same time. With processes that are not
            forked, the function must be picklable (lambdas and local functions are supported).
        num_workers: the number of threads or processes; 0 calls the function in the thread that reads the node.
        in_order: whether results keep the source's order; True by default. With `in_order=False`, results are yielded
            once they are ready.
        method: `"thread"` (the default) or `"process"`.
        multiprocessing_context: the start method of processes: `"fork"`, `"spawn"` or `"forkserver"`; None for Python's
            default.
        max_concurrent: the maximum number of items that the node has read from the source but not yet yielded; it must
            not exceed `num_workers`. By default (None), `max_concurrent` is twice `num_workers`. With processes, the
            default of `max_concurrent` grows while items and results are small (numbers, short strings, and tuples of
            these). For small items, the default of `max_concurrent` grows by one for every eight yielded items, up to
            128 times `num_workers`. Several small items are sent in one message.
        snapshot_frequency: the number of items (with `prebatch`, of batches) between saved states of the source; see
            `Prefetcher`; 1 by default.
        prebatch: the number of items that a worker receives together; None (the default) for single items. Sending
            several items together saves time if they are small.
        on_worker_exit: what happens if a process exits. "error" (the default) raises `WorkerExitedError`. "restart"
            replaces the process, issues a `RuntimeWarning`, and sends the unfinished items to the new process. If
            processes exit three times at the same item, `WorkerExitedError` is raised.
        timeout: the number of seconds within which a process must return the result for an item; None (or 0) for no
            limit. The timeout does not apply to threads, because a thread cannot be killed.
        on_timeout: what happens after the timeout. "error" (the default) raises `TimeoutError` in the position of the
            result. "restart" kills the process, issues a `RuntimeWarning` with its Python stacks, and gives the item to
            a replacement, as `on_worker_exit="restart"` does. "restart" does not cover processes that exit for other
            reasons. Each kill at the same item doubles the time limit for that item, and a process has at least a
            minute to start.
        patience: with `on_timeout="restart"`, the time limit for busy processes in seconds, instead of `timeout`. A
            process is busy if, in the last `timeout / 2` seconds, its threads were running or waiting for a processor
            for at least a tenth of the time. With `patience=None`, `timeout` applies to all processes.

    Raises:
        TypeError: `source` is not a node, `map_fn` is not a function, or a numeric argument is not an integer.
        ValueError: a numeric argument is out of range; `method`, `multiprocessing_context`, `on_worker_exit` or
            `on_timeout` is unknown; or `on_timeout` is "restart" without a `timeout`.

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
        if timeout is not None and not (isinstance(timeout, (int, float)) and 0 <= timeout < math.inf):
            raise ValueError(f"{name}: timeout must be a number of seconds or None, but got {timeout!r}")
        check_restarts(name, on_worker_exit, on_timeout, timeout, patience)
        self.on_worker_exit = on_worker_exit
        self.timeout, self.on_timeout, self.patience = timeout, on_timeout, patience
        self.max_concurrent = max_concurrent
        if max_concurrent is not None:
            check_int(name, "max_concurrent", max_concurrent, least=1)
            if 0 < self.num_workers < max_concurrent:
                raise ValueError(
                    f"{name}: max_concurrent must be at most num_workers={num_workers}, but got {max_concurrent}; None "
                    "means 2 * num_workers"
                )
        self.snapshot_frequency = check_int(name, "snapshot_frequency", snapshot_frequency, least=0)
        self.prebatch = None if prebatch is None else check_int(name, "prebatch", prebatch, least=1)
        #: The user's source of single items. With `prebatch`, `self.source` yields lists of items.
        self._of_items = self.source
        if self.prebatch is not None:
            # Without workers, `MapEach` must not catch KeyboardInterrupt, because `_InlineMapper` repeats the
            # interrupted call with the same list.
            self.map_fn = MapEach(self.map_fn, BaseException if num_workers else Exception)
            self.source = Batcher(self.source, self.prebatch, drop_last=False)
        mapper: BaseNode[Any] = _ThreadMapper(self) if num_workers else _InlineMapper(self.source, self.map_fn)
        self._it: BaseNode[T] = mapper if self.prebatch is None else _Unpacker(mapper)

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Moves the node to the beginning of an epoch, or to the position `initial_state`; see `BaseNode.reset`.
        Threads of the previous run end after their current function calls.

        Raises:
            TimeoutError: the source took more than a minute for one item.
            OSError: the system cannot start the processes.
        """
        state = StateFields("ParallelMapper", initial_state).state(self.IT_STATE_KEY)
        self._it.reset(state)
        self._advance = advance_of(self._it)
        super().reset(initial_state)

    def get_state(self) -> dict[str, Any]:
        return {self.IT_STATE_KEY: self._it.state_dict()}

    def shutdown(self) -> None:
        """Ends all threads and processes. Waits a few seconds for function calls that are running in threads."""
        self._it.shutdown()

    def __len__(self) -> int:
        """Returns the number of items per epoch.

        Raises:
            TypeError: the length of the source is unknown.
        """
        return len(self._of_items)


def Mapper(source: BaseNode[X], map_fn: Callable[[X], T]) -> ParallelMapper[T]:
    """Returns a node that calls a function with each item in the thread that reads the node, like a `ParallelMapper`
    without workers.

    Args:
        source: the node to read.
        map_fn: a function of an item.

    Raises:
        TypeError: `source` is not a node, or `map_fn` is not a function.

    Example:
        >>> from torchdata.nodes import IterableWrapper, Mapper
        >>> list(Mapper(IterableWrapper([1, 2]), str))
        ['1', '2']
    """
    return ParallelMapper(source, map_fn, num_workers=0)
