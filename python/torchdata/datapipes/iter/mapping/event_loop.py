"""The event loop of an iteration of `async_map_batches`, which calls a coroutine function for the items of a batch.

The event loop is created with the first batch, and closed when the pipe's iterator ends or is dropped. The event loop
runs in the thread that requests a batch. If the requesting thread is already running an event loop, the pipe's event
loop runs in a separate thread for each batch.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def _outside_running_loop(function: Callable[[], T], interrupt: Callable[[], Any]) -> T:
    """Calls `function` in this thread or, if this thread is running an event loop, in a new thread.

    If Ctrl-C interrupts the wait for the new thread, calls `interrupt` and waits for the end of `function`.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function()
    with ThreadPoolExecutor(1, "torchdata-event-loop") as pool:
        future = pool.submit(function)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                interrupt()
            raise
        finally:
            del future  # the error in the future and this frame must not form a reference cycle


def _close(runner: asyncio.Runner, process: int) -> None:
    if process == os.getpid():  # a forked child must not use its parent's selector
        _outside_running_loop(runner.close, lambda: None)


class EventLoop:
    def __init__(self, max_concurrency: int) -> None:
        self._max_concurrency = max_concurrency
        # With a loop factory, `asyncio.Runner` leaves the thread's current event loop unchanged.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self._process = os.getpid()
        # Unlike `__del__`, the finalizer runs at interpreter exit while asyncio is available.
        self._finalizer = weakref.finalize(self, _close, self._runner, self._process)

    def run(self, function: Callable[[Any], Awaitable[Any]], items: list[Any]) -> list[Any]:
        if self._process != os.getpid():
            raise RuntimeError(
                "this iterator of BatchAsyncMapper belongs to the parent process, where its event loop is; create a "
                "new iterator in the forked child"
            )
        self._runner.get_loop()  # copies this thread's context variables, even if another thread runs the loop
        return _outside_running_loop(lambda: self._runner.run(self._gathered(function, items)), self._cancel)

    async def _gathered(self, function: Callable[[Any], Awaitable[Any]], items: list[Any]) -> list[Any]:
        self._task = asyncio.current_task()
        if self._cancelled:  # the batch was canceled before the task existed
            raise asyncio.CancelledError
        slots = asyncio.Semaphore(self._max_concurrency)

        async def call(item: Any) -> Any:
            async with slots:
                return await function(item)

        tasks = [asyncio.ensure_future(call(item)) for item in items]
        try:
            return await asyncio.gather(*tasks)
        finally:
            self._task = None
            left = [task for task in tasks if not task.done()]
            for task in left:
                task.cancel()
            # If this code did not wait for the canceled calls, they would continue to run during the next batch.
            await asyncio.gather(*left, return_exceptions=True)

    def _cancel(self) -> None:
        """Cancels the calls of the current batch, which run in another thread."""
        self._cancelled = True
        task = self._task
        if task is not None:
            self._runner.get_loop().call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        self._finalizer()
