"""BatchAsyncMapper limits concurrency, has its own event loop, reports errors, and works inside a running loop."""

import asyncio
import contextvars
import functools
import gc
import subprocess
import sys
import threading
import warnings
from typing import Any

import pytest

from resuming import with_state
from stream_checks import open_files
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.state import save_state


class Watch:
    def __init__(self) -> None:
        self.loops: list[asyncio.AbstractEventLoop] = []
        self.threads: set[int] = set()
        self.running = self.most = 0

    async def __call__(self, item: int) -> int:
        loop = asyncio.get_running_loop()
        if loop not in self.loops:
            self.loops.append(loop)
        self.threads.add(threading.get_ident())
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(5):
            await asyncio.sleep(0)
        self.running -= 1
        return -item


@pytest.mark.parametrize(("batch_size", "limit", "most"), [(8, 3, 3), (8, 32, 8), (3, 5, 3), (1, 9, 1)])
def test_calls_of_a_batch_run_at_once_up_to_the_limit_in_one_loop_that_is_closed_at_the_end(
    batch_size: int, limit: int, most: int
) -> None:
    watch = Watch()
    pipe = IterableWrapper(range(20)).async_map_batches(watch, batch_size, max_concurrency=limit)
    before = open_files()
    for _ in range(2):
        iterator = iter(pipe)
        assert list(iterator) == [-item for item in range(20)]
        assert open_files() == before
    assert watch.most == most
    assert len(watch.loops) == 2
    assert all(loop.is_closed() for loop in watch.loops)
    assert watch.threads == {threading.get_ident()}


def test_the_event_loop_of_the_calling_thread_is_kept() -> None:
    policy = asyncio.get_event_loop_policy()
    mine = policy.new_event_loop()
    policy.set_event_loop(mine)
    try:
        assert list(IterableWrapper(range(3)).async_map_batches(Watch(), 2)) == [0, -1, -2]
        assert policy.get_event_loop() is mine
        assert not mine.is_closed()
    finally:
        policy.set_event_loop(None)
        mine.close()


@pytest.mark.parametrize("flatten", [True, False])
def test_an_abandoned_iterator_closes_its_loop_and_ends_asynchronous_generators(flatten: bool) -> None:
    ended: list[int] = []
    generators: list[Any] = []

    async def numbers(item: int) -> Any:
        try:
            yield item
            yield item
        finally:
            await asyncio.sleep(0)
            ended.append(item)

    async def first(item: int) -> int:
        generator = numbers(item)
        generators.append(generator)
        async for number in generator:
            return number
        raise AssertionError

    before = open_files()
    pipe = IterableWrapper(range(9)).async_map_batches(first, 2, flatten=flatten)
    iterator = iter(pipe)
    assert next(iterator) == (0 if flatten else [0, 1])
    assert open_files() > before
    del iterator
    assert open_files() == before
    assert sorted(ended) == [0, 1]


def test_the_first_exception_is_raised_unchanged_and_the_other_calls_are_cancelled() -> None:
    cancelled: list[int] = []

    async def function(item: int) -> int:
        if item == 3:
            raise LookupError("three")
        try:
            await asyncio.sleep(0 if item < 2 else 60)
        except asyncio.CancelledError:
            cancelled.append(item)
            raise
        return item

    pipe = IterableWrapper(range(6)).async_map_batches(function, 2)
    iterator = iter(pipe)
    assert [next(iterator), next(iterator)] == [0, 1]
    with pytest.raises(LookupError, match="three") as caught:
        next(iterator)
    assert cancelled == [2]
    assert any("BatchAsyncMapper" in note for note in caught.value.__notes__)
    assert list(pipe.header(2)) == [0, 1]


def test_batches_run_in_a_loop_of_another_thread_within_a_running_event_loop() -> None:
    watch = Watch()
    pipe = IterableWrapper(range(7)).async_map_batches(watch, 3)
    context = contextvars.ContextVar("context", default=0)

    async def seen(item: int) -> int:
        return context.get()

    async def main() -> list[Any]:
        context.set(5)
        head = []
        for item in pipe:
            head.append(item)
            if len(head) == 4:
                break
        await asyncio.sleep(0)
        with pytest.raises(TypeError):
            list(IterableWrapper(["x"]).async_map_batches(watch, 1))
        return [head, list(pipe), list(IterableWrapper([1]).async_map_batches(seen, 1))]

    before = open_files()
    assert asyncio.run(main()) == [[0, -1, -2, -3], [-item for item in range(7)], [5]]
    assert len(watch.loops) == 3
    assert threading.get_ident() not in watch.threads
    assert open_files() == before


def test_partial_functions_and_objects_with_an_async_call_are_coroutine_functions() -> None:
    async def scaled(factor: int, item: int) -> int:
        return factor * item

    assert list(IterableWrapper([1, 2]).async_map_batches(functools.partial(scaled, 3), 2)) == [3, 6]
    assert list(IterableWrapper([1, 2]).async_map_batches(Watch(), 2)) == [-1, -2]


def test_columns_are_replaced_or_appended_in_tuples_and_dicts() -> None:
    async def added(left: int, right: int) -> int:
        return left + right

    tuples = IterableWrapper([(1, 2, 3), (4, 5, 6)])
    assert list(tuples.async_map_batches(added, 2, [0, 2])) == [(4, 2), (10, 5)]
    assert list(tuples.async_map_batches(added, 2, [0, 2], -1)) == [(1, 2, 3, 4), (4, 5, 6, 10)]
    dicts = IterableWrapper([{"a": 1, "b": 2}])
    assert list(dicts.async_map_batches(added, 2, ["a", "b"], "c")) == [{"a": 1, "b": 2, "c": 3}]
    pipe = IterableWrapper([{"a": 1}, {"b": 2}]).async_map_batches(Watch(), 2, input_col="a")
    with warnings.catch_warnings(), pytest.raises(KeyError, match="a"):
        warnings.simplefilter("error")
        list(pipe)
    gc.collect()  # An unfinished coroutine would cause a warning.


def test_remaining_results_of_a_batch_are_restored_without_another_call() -> None:
    calls: list[int] = []

    async def function(item: int) -> int:
        calls.append(item)
        return len(calls)

    pipe = IterableWrapper(range(4)).async_map_batches(function, 4)
    iterator = iter(pipe)
    assert next(iterator) == 1
    restored = with_state(IterableWrapper(range(4)).async_map_batches(function, 4), save_state(pipe))
    assert list(restored) == [2, 3, 4]
    assert calls == [0, 1, 2, 3]


def run(program: str) -> tuple[str, str, int]:
    done = subprocess.run([sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, timeout=250)
    return done.stdout, done.stderr, done.returncode


def test_control_c_ends_a_batch_and_the_pipe_can_be_iterated_again() -> None:
    program = (
        "import asyncio, os, signal, threading\n"
        "from torchdata.datapipes.iter import IterableWrapper\n"
        "wait = True\n"
        "async def function(item):\n"
        "    if wait:\n"
        "        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)\n"
        "        try:\n            await asyncio.sleep(60)\n"
        "        finally:\n            print('cleaned up')\n"
        "    return item\n"
        "pipe = IterableWrapper(range(3)).async_map_batches(function, 1)\n"
        "iterator = iter(pipe)\n"
        "try:\n    next(iterator)\nexcept KeyboardInterrupt:\n    print('interrupted')\n"
        "wait = False\n"
        "print(list(pipe), flush=True)\n"
    )
    assert run(program) == ("cleaned up\ninterrupted\n[0, 1, 2]\n", "", 0)


def test_an_interrupted_wait_for_another_threads_loop_cancels_the_batch() -> None:
    program = (
        "import asyncio, os, signal, threading\n"
        "from torchdata.datapipes.iter import IterableWrapper\n"
        "async def function(item):\n"
        "    asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)\n"
        "    try:\n        await asyncio.sleep(60)\n"
        "    finally:\n        print('cleaned up')\n"
        "async def main():\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    try:\n        list(IterableWrapper([1]).async_map_batches(function, 1))\n"
        "    except KeyboardInterrupt:\n        print('interrupted', flush=True)\n"
        "asyncio.run(main())\n"
    )
    assert run(program) == ("cleaned up\ninterrupted\n", "", 0)


@pytest.mark.parametrize("ending", ["", "del iterator", "sys.exit(0)"])
def test_the_interpreter_exits_silently_within_an_iteration(ending: str) -> None:
    program = (
        "import asyncio, sys\nfrom torchdata.datapipes.iter import IterableWrapper\n"
        "async def function(item):\n    return item\n"
        "pipe = IterableWrapper(range(9)).async_map_batches(function, 2)\n"
        f"iterator = iter(pipe)\nnext(iterator)\n{ending}\n"
    )
    assert run(program) == ("", "", 0)
