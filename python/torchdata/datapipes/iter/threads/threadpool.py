"""Pipes that call the user's function in threads: ThreadPoolMapper.

The thread that iterates the pipe reads the source, submits a bounded number of items to a thread pool (see `pool`), and
takes the results in order.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import current_thread, main_thread
from typing import Any, ClassVar, overload

from torchdata._importing import loaded
from torchdata._reporting import warn_outside
from torchdata._threads import Work
from torchdata.datapipes._pipe.checks import (
    POSITIVE,
    check_callable,
    check_int,
    check_optional_int,
    check_output_col,
    check_source,
)
from torchdata.datapipes._pipe.columns import replacing_columns
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.item_by_item import SameLength
from torchdata.datapipes._pipe.state.declared import fits, state
from torchdata.datapipes._pipe.state.hooks import hooks_of
from torchdata.datapipes.datapipe import IterDataPipe, R, T, T_co
from torchdata.datapipes.iter.threads.pool import Pool

__all__ = ["ThreadPoolMapper"]


_END = object()
_EXCHANGING = "torchdata.datapipes._pipe.exchanging"
_DRAWS = (
    "ThreadPoolMapper: while its threads call the function, numbers are drawn from the global random generators, which "
    "belong to the running shard. The items therefore depend on the timing and on the number of workers. Draw these "
    "numbers in a later `map`, or from a generator that each call seeds"
)


class _Results(Iterator[Any]):
    """Yields the results of a pool. Dropping this iterator closes the pool.

    While the consumer processes a result, the threads work on up to `ahead` submitted items.
    """

    __slots__ = ("_ahead", "_is_watched", "_pool", "_source")

    #: Declares that this iterator can continue after an exception; see `_pipe/skipping.py`.
    outlives_errors = True

    def __init__(self, source: Iterator[Any], pool: Pool, ahead: int, is_watched: bool) -> None:
        self._pool = pool
        self._is_watched = is_watched
        self._source = source
        self._ahead = ahead

    def __next__(self) -> Any:
        pool = self._pool
        if pool.rest is not None:
            pool.resume()
        if not pool.work.is_inherited:
            self._read_ahead(self._ahead)
            if not len(pool):
                self._end()
        before = self._generators()
        pool.wait()
        if before and before != self._generators():
            warn_outside(_DRAWS, RuntimeWarning)
        # The next item is submitted only after `pool.wait()`, so that Ctrl-C during the wait loses no item.
        self._read_ahead(self._ahead + 1)
        take = pool.take
        del self, pool  # a stored error refers to this frame, which would keep these objects alive
        return take()

    def _generators(self) -> Sequence[bytes]:
        """Returns a copy of the memory of the global random generators, which changes if the pool's threads draw
        numbers. The result is empty if the pipe does not warn of drawn numbers, or if threads outside the pool may also
        draw numbers."""
        exchanging = loaded(_EXCHANGING) if self._is_watched else None
        return () if exchanging is None or current_thread() is not main_thread() else exchanging.exchanged_generators()

    def _read_ahead(self, wanted: int) -> None:
        pool = self._pool
        while self._ahead and len(pool) < wanted and pool.source_error is None and not pool.closed:
            try:
                item = next(self._source, _END)
            except Exception as error:
                pool.source_error = error
                return
            if item is _END:
                self._ahead = 0
                return
            pool.submit(item)

    def _end(self) -> None:
        error, self._pool.source_error = self._pool.source_error, None
        if error is None:
            self.close()
            raise StopIteration
        del self
        try:
            raise error
        finally:
            del error

    def close(self) -> None:
        """Closes the pool. The threads of the pool end after their current calls."""
        self._pool.close()

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At interpreter exit, the pool is already closed. `_is_finalizing` is a default argument, because global
        # variables may be None at interpreter exit.
        if not _is_finalizing():
            self._pool.close()


class ThreadPoolMapper(SameLength, IterDataPipe[T_co]):
    """Applies a function to every item, or to columns of it, in several threads. Results keep the source's order.

    Use threads if the function waits (for files or a network) or releases the GIL. An exception is raised at the
    position of its result, and does not prevent reading later results. The thread that iterates this pipe reads the
    source. Numbers from the global random generators depend on the timing of the threads, so draw them in a later
    `map`.

    A state contains the results that are ready, and the items without a result. Saving a state waits for running calls
    of `fn`, because a call may modify the item that the state contains. If the items are numbers, strings or bytes,
    saving a state does not wait, and a resumed run repeats the calls that were running.

    Args:
        source_datapipe: the pipe to read.
        fn: the function. The function must be safe to call from several threads at once.
        input_col: the parts of an item that `fn` receives, as for `map`.
        output_col: where the result is stored, as for `map`.
        scheduled_tasks: maximum number of items in the pool, including finished results, while the consumer uses a
            result; 128 by default. To keep all threads busy, `scheduled_tasks` must exceed `max_workers`.
        max_workers: maximum number of threads; by default 4 more than the number of processors, and at most 32.
        **threadpool_kwargs: further arguments of `concurrent.futures.ThreadPoolExecutor`: `thread_name_prefix`,
            `initializer` and `initargs`.

    Raises:
        TypeError: `fn` is not a function, `scheduled_tasks` or `max_workers` is not an integer, or `threadpool_kwargs`
            has an unknown argument.
        ValueError: `scheduled_tasks` or `max_workers` is not positive, or `input_col` or `output_col` is invalid, as
            for `map`.
        TimeoutError: when a state is saved, a running call of `fn` does not end within a minute.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(["a", "bc", "def"]).threadpool_map(len, max_workers=2))
        [1, 2, 3]
    """

    _pool: Pool | None = state(saved=False)
    _restored: dict[str, Any] | None = state(items=True, saved=False)

    #: The maximum number of seconds that saving a state waits for running calls.
    patience: ClassVar[float] = 60.0

    tuning: ClassVar[frozenset[str]] = frozenset({"max_workers", "scheduled_tasks", "threadpool_kwargs"})

    @overload
    def __init__(
        self: ThreadPoolMapper[R],
        source_datapipe: Iterable[T],
        fn: Callable[[T], R],
        input_col: None = None,
        output_col: None = None,
        scheduled_tasks: int = 128,
        max_workers: int | None = None,
        **threadpool_kwargs: Any,
    ) -> None: ...

    @overload
    def __init__(
        self: ThreadPoolMapper[Any],
        source_datapipe: Iterable[Any],
        fn: Callable[..., Any],
        input_col: Any,
        output_col: Any = None,
        scheduled_tasks: int = 128,
        max_workers: int | None = None,
        **threadpool_kwargs: Any,
    ) -> None: ...

    def __init__(
        self,
        source_datapipe: Iterable[Any],
        fn: Callable[..., Any],
        input_col: Any = None,
        output_col: Any = None,
        scheduled_tasks: int = 128,
        max_workers: int | None = None,
        **threadpool_kwargs: Any,
    ) -> None:
        name = "ThreadPoolMapper"
        self.datapipe = check_source(name, source_datapipe, "source_datapipe")
        check_callable(name, "fn", fn)
        self.fn = fn
        self.input_col = input_col
        self.output_col = check_output_col(name, fn, input_col, output_col)
        self.scheduled_tasks = check_int(
            name, "scheduled_tasks", scheduled_tasks, least=1, words=POSITIVE.format("scheduled_tasks")
        )
        self.max_workers = check_optional_int(name, "max_workers", max_workers, least=1)
        self.threadpool_kwargs = _checked_options(name, threadpool_kwargs)

    def __iter__(self) -> Iterator[T_co]:
        self._close_pool()
        fn = self.fn if self.input_col is None else replacing_columns(self.fn, self.input_col, self.output_col)
        workers = self.max_workers or min(32, (os.cpu_count() or 1) + 4)
        # At most `scheduled_tasks + 1` items are in the pool, so more threads would be idle.
        pool = Pool(fn, min(workers, self.scheduled_tasks + 1), **{**_OPTIONS, **self.threadpool_kwargs})
        is_alone = not any(hooks_of(pipe)._may_have_threads() for pipe in Graph(self) if pipe is not self)
        results = _Results(iter(self.datapipe), pool, self.scheduled_tasks, is_alone)
        if self._restored is not None:
            state, self._restored = self._restored, None
            pool.source_error = state["error"]
            pool.restore(state["tasks"])
        self._pool = pool
        return results

    def reset(self) -> None:
        """Ends the threads of the last iteration, after their current calls."""
        self._close_pool()
        super().reset()

    def _threads_at_work(self) -> Work | None:
        return None if self._pool is None or self._pool.work.is_inherited else self._pool.work

    def _close_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def state_dict(self) -> dict[str, Any]:
        if self._restored is not None:
            return self._restored
        if self._pool is None or self._pool.work.is_inherited:
            return {"tasks": [], "error": None}
        return {"tasks": self._pool.entries(self.patience), "error": self._pool.source_error}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not fits(state_dict, {"tasks": [(str, object)], "error": BaseException | None}) or not fits(
            [content for kind, content in state_dict["tasks"] if kind not in ("item", "result")], [BaseException]
        ):
            raise TypeError("its tasks or its error do not have the form that this pipe saves")
        self._close_pool()
        self._restored = state_dict

    def _load_lasting_state(self, lasting: dict[str, Any]) -> None:
        self._close_pool()  # calls in the pool's threads would continue to draw random numbers
        super()._load_lasting_state(lasting)


_OPTIONS: dict[str, Any] = {"thread_name_prefix": "torchdata-threadpool", "initializer": None, "initargs": ()}


def _checked_options(pipe: str, options: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(options.keys() - _OPTIONS.keys())
    if unknown:
        raise TypeError(
            f"{pipe}: got an unexpected keyword argument {unknown[0]!r}; besides its own, it takes {list(_OPTIONS)}"
        )
    check_callable(pipe, "initializer", options.get("initializer"), optional=True)
    if not isinstance(options.get("initargs", ()), (tuple, list)):
        raise TypeError(f"{pipe}: initargs must be a tuple, but got {options['initargs']!r}")
    if not isinstance(options.get("thread_name_prefix", ""), str):
        raise TypeError(f"{pipe}: thread_name_prefix must be a string, but got {options['thread_name_prefix']!r}")
    return options
