"""In threads, after copying and in forked children, loaders behave as docs/guides/threads.md states."""

import asyncio
import copy
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.nodes import IterableWrapper as Items
from torchdata.nodes import Loader, Mapper, ParallelMapper
from torchdata.stateful_dataloader import StatefulDataLoader

COUNT = 60
DEADLINE = 30.0


def slowly(item: int) -> int:
    time.sleep(0.001)
    return item


class Numbers:
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return slowly(index)


class Generated(IterDataPipe[int]):
    """A pipe that yields from a generator, which raises an error if two threads run it at the same time."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        for item in range(self.count):
            yield slowly(item)


def _stateful(**options: Any) -> Any:
    return StatefulDataLoader(Numbers(), batch_size=None, **options)


def _nodes(**options: Any) -> Any:
    return Loader(ParallelMapper(Items(range(COUNT)), slowly, 2, **options))


FORKED = {"num_workers": 2, "multiprocessing_context": "fork"}
FAMILIES: dict[str, Callable[[], Any]] = {
    "DataLoader2": lambda: DataLoader2(Generated(COUNT)),
    "DataLoader2 with a thread": lambda: DataLoader2(IterableWrapper(range(COUNT)).map(slowly).prefetch(4)),
    "DataLoader2 with workers": lambda: DataLoader2(
        IterableWrapper(range(COUNT)).sharding_filter().map(slowly),
        reading_service=MultiProcessingReadingService(2, "fork"),
    ),
    "StatefulDataLoader": _stateful,
    "StatefulDataLoader with workers": lambda: _stateful(**FORKED),
    "StatefulDataLoader with persistent workers": lambda: _stateful(**FORKED, persistent_workers=True),
    "nodes": lambda: Loader(Mapper(Items(range(COUNT)), slowly)),
    "nodes with threads": _nodes,
    "nodes with processes": lambda: _nodes(method="process", multiprocessing_context="fork"),
}
WORKERS = [name for name in FAMILIES if "workers" in name or "processes" in name]
ENDED = [name for name in FAMILIES if name.startswith("DataLoader2") or name in WORKERS or "threads" in name]


def end(loader: Any) -> None:
    if isinstance(loader, StatefulDataLoader):
        if (shutdown := getattr(loader._iterator, "_shutdown_workers", None)) is not None:
            shutdown()
    else:
        loader.shutdown()


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Iterator[Any]:
    loader = FAMILIES[request.param]()
    yield loader
    end(loader)


def families(*names: str) -> Any:
    return pytest.mark.parametrize("made", names or FAMILIES, indirect=True)


class Reader(threading.Thread):
    def __init__(self, iterator: Any) -> None:
        super().__init__(daemon=True)
        self.iterator, self.got, self.error = iterator, list[int](), None
        self.start()

    def run(self) -> None:
        try:
            for item in self.iterator:
                self.got.append(int(item))
        except Exception as error:
            self.error = error

    def come_to(self, count: int) -> None:
        deadline = time.monotonic() + DEADLINE
        while len(self.got) < count:
            assert self.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def ended(self) -> str:
        self.join(DEADLINE)
        assert not self.is_alive(), "the loop hangs"
        return "" if self.error is None else str(self.error)


def in_child(function: Callable[[], Any]) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(int(DEADLINE))
        try:
            shown = repr(function())
        except BaseException as error:
            shown = f"{type(error).__name__}: {error}"
        os.write(writer, shown.encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        shown = pipe.read()
    os.waitpid(child, 0)
    return shown


@families()
def test_threads_that_share_an_iterator_get_each_item_once_between_them(made: Any) -> None:
    iterator = iter(made)
    readers = [Reader(iterator) for _ in range(3)]
    assert [reader.ended() for reader in readers] == ["", "", ""]
    assert sorted(item for reader in readers for item in reader.got) == list(range(COUNT))


@families()
def test_a_cancelled_asyncio_call_loses_only_its_own_item(made: Any) -> None:
    iterator, started = iter(made), threading.Event()
    first = next(iterator)

    def ask() -> int:
        started.set()
        return int(next(iterator))

    async def read() -> list[int]:
        loop, got = asyncio.get_running_loop(), [int(first)]
        with ThreadPoolExecutor(2) as threads:
            given_up = loop.run_in_executor(threads, ask)
            await loop.run_in_executor(None, started.wait)
            lost = asyncio.shield(given_up)
            lost.cancel()
            end = object()
            while (item := await loop.run_in_executor(threads, next, iterator, end)) is not end:
                got.append(int(item))
            return [*got, await given_up]

    assert sorted(asyncio.run(read())) == list(range(COUNT))


@families(*ENDED)
def test_a_loop_next_to_a_shutdown_gets_an_error(made: Any) -> None:
    reader = Reader(iter(made))
    reader.come_to(5)
    end(made)
    assert "shut down" in reader.ended()
    assert len(reader.got) < COUNT


@families()
def test_a_loop_next_to_iter_gets_an_error_or_continues_and_the_new_epoch_is_complete(made: Any) -> None:
    reader = Reader(iter(made))
    reader.come_to(5)
    assert sorted(int(item) for item in made) == list(range(COUNT))
    if isinstance(made, StatefulDataLoader) and not made.persistent_workers:
        assert reader.ended() == ""
        assert sorted(reader.got) == list(range(COUNT)), "each iterator has its own epoch"
    else:
        assert "iter(" in reader.ended() or "another iterator has been created" in reader.ended()


@families()
def test_threads_can_begin_epochs_at_the_same_time(made: Any) -> None:
    readers = [Reader(made) for _ in range(2)]
    whole = [reader.got for reader in readers if reader.ended() == ""]
    assert whole, "the last iterator reads its whole epoch"
    assert sorted(whole[-1]) == list(range(COUNT))


@families(*ENDED)
def test_threads_that_shut_down_at_once_all_return_when_it_is_done(made: Any) -> None:
    iterator = iter(made)
    next(iterator)
    with ThreadPoolExecutor(4) as threads:
        for ended in [threads.submit(end, made) for _ in range(4)]:
            ended.result(DEADLINE)


@families()
def test_a_state_in_another_thread_is_one_of_a_moment_between_two_items(made: Any) -> None:
    reader = Reader(iter(made))
    reader.come_to(5)
    before = len(reader.got)
    state = made.state_dict()
    after = len(reader.got)
    assert reader.ended() == ""
    other = copy.copy(made)
    other.load_state_dict(state)
    rest = [int(item) for item in other]
    end(other)
    assert COUNT - after - 1 <= len(rest) <= COUNT - before
    assert sorted(rest) == sorted(reader.got[COUNT - len(rest) :])


EXITS = """
import gc, json, os, signal, sys, threading
sys.path.insert(0, {folder!r})
import test_threads_copies_forks as table
gc.freeze()  # children then exit faster
statuses = {{}}
for name in table.FAMILIES:
    child = os.fork()
    if child == 0:
        signal.alarm(int(table.DEADLINE))
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(1, 2)
        break
    statuses[name] = os.waitpid(child, 0)[1]
else:
    print(json.dumps(statuses))
    sys.exit()
loader = table.FAMILIES[name]()
iterator = iter(loader)
next(iterator)
def read():
    try:
        for item in __import__("itertools").chain(iterator):
            pass
    except BaseException as error:
        print(f"told: {{error}}", flush=True)
    else:
        print("ended", flush=True)
table.COUNT = 10**6
threading.Thread(target=read, daemon=True).start()
"""


@pytest.fixture(scope="module")
def exits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    folder = tmp_path_factory.mktemp("exits")
    code = EXITS.format(folder=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, stdout=subprocess.PIPE, check=True)
    return {name: (status, (folder / name).read_text()) for name, status in json.loads(done.stdout).items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_daemon_thread_that_reads_at_program_exit_gets_an_error_and_the_program_exits_normally(
    exits: dict[str, tuple[int, str]], name: str
) -> None:
    status, printed = exits[name]
    assert status == 0, printed
    assert "ended" not in printed


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda loader: pickle.loads(pickle.dumps(loader)),
}


@families()
@pytest.mark.parametrize(("way", "begun"), [("copy", False), *((way, True) for way in COPIES)])
def test_a_copy_is_a_loader_of_its_own_that_has_not_begun(made: Any, way: str, begun: bool) -> None:
    if begun:
        iterator = iter(made)
        got = [int(next(iterator))]
    other = COPIES[way](made)
    assert type(other) is type(made)
    assert sorted(int(item) for item in other) == list(range(COUNT))
    end(other)
    del other
    gc.collect()
    rest = [int(item) for item in (iterator if begun else made)]
    assert sorted([*got, *rest] if begun else rest) == list(range(COUNT))


@families()
def test_a_copy_has_the_loaded_state_until_its_first_loop(made: Any) -> None:
    iterator = iter(made)
    for _ in range(COUNT // 2):
        next(iterator)
    state = made.state_dict()
    fresh = copy.copy(made)
    fresh.load_state_dict(state)
    other = copy.deepcopy(fresh)
    rests = [sorted(int(item) for item in loader) for loader in (fresh, other)]
    end(fresh)
    end(other)
    assert rests[0] == rests[1]
    assert len(rests[0]) == COUNT - COUNT // 2


def test_a_copy_of_a_seeded_loader_begins_with_the_epochs_of_its_seed() -> None:
    with DataLoader2(IterableWrapper(range(COUNT)).shuffle()) as loader:
        loader.seed(7)
        first = list(loader)
        with copy.deepcopy(loader) as other:
            assert list(other) == first
            assert list(other) == list(loader)


@families()
def test_a_forked_child_reads_a_copied_iterator_only_if_it_has_neither_threads_nor_processes(
    made: Any, request: pytest.FixtureRequest
) -> None:
    iterator = iter(made)
    next(iterator)
    shown = in_child(lambda: len(list(iterator)))
    if "with" in request.node.callspec.params["made"]:
        assert shown.startswith("RuntimeError: ")
        assert f"process {os.getpid()}" in shown
        assert "child" in shown
    else:
        assert shown == str(COUNT - 1)
    shown = in_child(lambda: (len(list(made)), end(made))[0])
    if request.node.callspec.params["made"] == "DataLoader2 with workers":
        assert shown.startswith(f"RuntimeError: this DataLoader2 belongs to process {os.getpid()}")
    else:
        assert shown == str(COUNT), "the child may begin its own epoch"
    assert sum(1 for _ in iterator) == COUNT - 1, "the parent is not affected"


@families()
def test_an_unstarted_loader_belongs_to_the_forked_child(made: Any) -> None:
    assert in_child(lambda: (len(list(made)), end(made))[0]) == str(COUNT)
    assert sum(1 for _ in made) == COUNT


def test_a_thread_that_reads_recursively_gets_an_error_instead_of_waiting_for_itself() -> None:
    found: list[str] = []
    iterators: list[Any] = []

    def ask(item: int) -> int:
        if item == 2:
            with pytest.raises(RuntimeError) as caught:
                next(iterators[0])
            found.append(str(caught.value))
        return item

    for loader in (DataLoader2(IterableWrapper(range(4)).map(ask)), Loader(Mapper(Items(range(4)), ask))):
        iterators[:] = [iter(loader)]
        assert list(iterators[0]) == [0, 1, 2, 3]
        end(loader)
    assert len(found) == 2
    assert all("is already reading an item" in shown for shown in found)


def test_an_error_in_one_thread_does_not_end_the_others() -> None:
    def fail(item: int) -> int:
        if item == 20:
            raise ValueError("no such item")
        return slowly(item)

    with DataLoader2(IterableWrapper(range(COUNT)).map(fail)) as loader:
        iterator = iter(loader)
        readers = [Reader(iterator) for _ in range(2)]
        shown = sorted(reader.ended() for reader in readers)
    assert shown[1].startswith("no such item")
    assert shown[0].endswith("an error, which another thread received, ended the epoch: ValueError: no such item")
