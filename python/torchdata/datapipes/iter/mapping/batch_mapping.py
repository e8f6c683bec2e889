"""Pipes that apply a function to batches, or concurrently to the items of a batch: BatchMapper, BatchAsyncMapper."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

from torchdata._native import BatchIterator
from torchdata.datapipes._pipe.checks import (
    BATCH_SIZE,
    check_callable,
    check_int,
    check_output_col,
    check_size,
    check_source,
    length_of,
    no_length,
    with_type,
)
from torchdata.datapipes._pipe.columns import on_columns, replacing_columns
from torchdata.datapipes._pipe.unfolding import Unfolding
from torchdata.datapipes.datapipe import IterDataPipe, T_co

__all__ = ["BatchAsyncMapper", "BatchMapper"]


class BatchMapper(Unfolding, IterDataPipe[T_co]):
    """Applies a function to batches of items and yields the members of its results one after another.

    Args:
        datapipe: the pipe to read.
        fn: a function from a list of items to an iterable, which may have more or fewer members.
        batch_size: the number of items per batch (the last batch may have fewer).
        input_col: the parts of the items that `fn` receives: None (the default) for the list of items; an index or key
            for a list of the values in this column; a list or tuple of indices or keys for a list that contains, for
            each item, a list of its values in these columns.

    Raises:
        TypeError: `fn` is not a function, or `batch_size` is not an integer; or, while iterating, the result of `fn` is
            not iterable.
        AssertionError: `batch_size` is not positive.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> def normalised(batch):
        ...     return [number / sum(batch) for number in batch]
        >>> list(IterableWrapper([1, 3, 2, 2]).map_batches(normalised, batch_size=2))
        [0.25, 0.75, 0.5, 0.5]
    """

    def __init__(
        self, datapipe: Iterable[Any], fn: Callable[[list[Any]], Any], batch_size: int, input_col: Any = None
    ) -> None:
        self.datapipe = check_source("BatchMapper", datapipe)
        check_callable("BatchMapper", "fn", fn)
        self.fn = fn
        self.batch_size = check_size("BatchMapper", "batch_size", batch_size, BATCH_SIZE)
        self.input_col = input_col

    def __iter__(self) -> Iterator[T_co]:
        return self._unfold(BatchIterator(iter(self.datapipe), self.batch_size, False, list), self._result)

    def _result(self, batch: list[Any]) -> Iterable[Any]:
        columns = self.input_col
        if isinstance(columns, (list, tuple)):
            batch = [[item[column] for column in columns] for item in batch]
        elif columns is not None:
            batch = [item[columns] for item in batch]
        result = self.fn(batch)
        if not hasattr(type(result), "__iter__") and not hasattr(type(result), "__getitem__"):
            raise TypeError(f"BatchMapper: fn must return an iterable, but returned {with_type(result)}")
        return result  # type: ignore[no-any-return]

    def __len__(self) -> int:
        raise no_length(self, "BatchMapper's length relies on the output of its function")


def _is_coroutine_function(function: Any) -> bool:
    method = vars(type(function)).get("__call__")  # `function` may be a callable object
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(method)


class BatchAsyncMapper(Unfolding, IterDataPipe[Any]):
    """Applies a coroutine function concurrently to the items of a batch, and yields the results in the items' order.

    Each iteration has its own event loop, which runs while a batch is processed and is closed when the iteration ends.
    The event loop runs in the thread that iterates the pipe. If the iterating thread already runs an event loop (as in
    a notebook), the pipe's event loop runs in another thread, while the iterating thread waits. If a call raises an
    exception, the exception is raised unchanged, and all other calls of the batch are canceled.

    Args:
        source_datapipe: the pipe to read.
        async_fn: the function, defined by `async def`.
        batch_size: the number of items per batch (the last batch may have fewer).
        input_col: the parts of an item that `async_fn` receives, as for `map`.
        output_col: where the result is stored, as for `map`.
        max_concurrency: maximum number of concurrent calls, 32 by default.
        flatten: whether results are yielded one by one (the default), or as a list for each batch.

    Raises:
        ValueError: `async_fn` is not a coroutine function, `max_concurrency` is not positive, or `input_col` or
            `output_col` is invalid, as for `map`.
        AssertionError: `batch_size` is not positive.
        TypeError: `batch_size` or `max_concurrency` is not an integer.

    Example:
        >>> import asyncio
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> async def fetch(page):
        ...     await asyncio.sleep(0.001)
        ...     return f"page {page}"
        >>> list(IterableWrapper(range(3)).async_map_batches(fetch, batch_size=2))
        ['page 0', 'page 1', 'page 2']
    """

    def __init__(
        self,
        source_datapipe: Iterable[Any],
        async_fn: Callable[..., Awaitable[Any]],
        batch_size: int,
        input_col: Any = None,
        output_col: Any = None,
        max_concurrency: int = 32,
        flatten: bool = True,
    ) -> None:
        name = "BatchAsyncMapper"
        self.source_datapipe = check_source(name, source_datapipe, "source_datapipe")
        if not _is_coroutine_function(async_fn):
            raise ValueError(
                f"{name}: async_fn must be a coroutine function (written with `async def`), but got {async_fn!r} of "
                f"type {type(async_fn).__name__}; use `map` or `threadpool_map` for other functions. Expected "
                f"a corotine function with an async def syntax, but got a {type(async_fn)}"
            )
        self.async_fn = async_fn
        self.batch_size = check_size(name, "batch_size", batch_size, BATCH_SIZE)
        self.input_col = input_col
        self.output_col = check_output_col(name, async_fn, input_col, output_col)
        self.max_concurrency = check_int(name, "max_concurrency", max_concurrency, least=1)
        self._flatten = flatten

    def __iter__(self) -> Iterator[Any]:
        results = self._results(BatchIterator(iter(self.source_datapipe), self.batch_size, False, list))
        return self._unfold(results, lambda batch: batch) if self._flatten else results

    def _results(self, batches: Iterator[list[Any]]) -> Iterator[list[Any]]:
        from torchdata.datapipes.iter.mapping.event_loop import EventLoop

        call = on_columns(self.async_fn, self.input_col)
        with closing(EventLoop(self.max_concurrency)) as loop:
            for batch in batches:
                results = loop.run(call, batch)
                yield results if self.input_col is None else self._replaced(batch, results)

    def _replaced(self, batch: list[Any], results: list[Any]) -> list[Any]:
        each = iter(results)
        replaced = replacing_columns(lambda *columns: next(each), self.input_col, self.output_col)
        return list(map(replaced, batch))

    def __len__(self) -> int:
        items = length_of(self, self.source_datapipe)
        return items if self._flatten else -(-items // self.batch_size)
