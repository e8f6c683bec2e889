"""If several processes use the same cache, each file is created by one process while other processes wait."""

import contextlib
import errno
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

from cache_checks import archives, cached, content, content_after_a_kill, is_free, made, names
from process_checks import has_exited, loader, nothing_is_left, wait_for
from torchdata.dataloader2.adapter import CacheTimeout
from torchdata.dataloader2.error import WorkerExitedError
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.iter.disk_cache import locks
from torchdata.datapipes.iter.disk_cache import section as _cache_section
from torchdata.datapipes.iter.streams import atomic_files as _atomic_files

__all__ = ["nothing_is_left"]

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def start():
    processes = []

    def run(function, *args):
        process = FORK.Process(target=function, args=args, daemon=True)
        process.start()
        processes.append(process)
        return process

    yield run
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join(120)
        process.close()


def finished(process):
    process.join(120)
    return process.exitcode


class Results:
    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()

    def note(self, name, lines=()):
        part = self.folder / f".{name}"
        part.write_text("\n".join(lines))
        part.rename(self.folder / name)

    def has(self, name):
        return (self.folder / name).exists()

    def of(self, name):
        return (self.folder / name).read_text().split()


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path / "results")


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "files"
    path.mkdir()
    return path


def logging_maker(results):
    def maker(path):
        with open(results.folder / "log", "a") as log:
            log.write(f"{os.path.basename(path)}\n")
        return path, [b"content ", b"of ", os.path.basename(path).encode()]

    return maker


def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)


def test_many_processes_make_each_file_once_and_all_yield_all(folder, results, start):
    wanted = [str(i) for i in range(40)]

    def run(number):
        order = wanted if number % 2 else wanted[::-1]
        between = (lambda pipe: pipe.prefetch(3)) if number == 3 else (lambda pipe: pipe)
        results.note(f"{number}", names(cached(folder, order, logging_maker(results), between)))

    workers = [start(run, number) for number in range(5)]
    assert [finished(worker) for worker in workers] == [0] * 5
    for number in range(5):
        assert results.of(f"{number}") == (wanted if number % 2 else wanted[::-1])
    assert sorted(results.of("log")) == sorted(wanted)
    assert content(folder) == made(*wanted), "no lock or temporary file is left"


@pytest.fixture
def no_locks(monkeypatch):
    def unsupported(*args):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(locks.fcntl, "flock", unsupported)


@pytest.mark.parametrize("locking", ["with locks", "without locks"])
@pytest.mark.filterwarnings("ignore:The on-disk cache cannot lock files")
def test_no_reader_ever_sees_a_part_of_a_file(folder, start, locking, request):
    if locking == "without locks":
        request.getfixturevalue("no_locks")

    def write(number):
        def maker(path):
            return path, (bytes([number]) * 4096 for _ in range(64))

        for _ in range(20):
            list(cached(folder, "a", maker, extra_check_fn=lambda path: False))

    writers = [start(write, number) for number in range(3)]
    seen = 0
    while any(writer.is_alive() for writer in writers):
        with contextlib.suppress(FileNotFoundError):
            found = (folder / "a").read_bytes()
            assert len(found) == 64 * 4096
            assert len(set(found)) == 1
            seen += 1
    assert seen
    assert [finished(writer) for writer in writers] == [0] * 3
    assert sorted(os.listdir(folder)) == ["a"]


def before_the_temporary_file(path, patch):
    kill_self()


def in_the_middle(path, patch):
    def pieces():
        yield b"half"
        kill_self()

    return path, pieces()


def before_the_sync(path, patch):
    patch("fsync", lambda fd: kill_self())
    return path, b"never seen"


def before_the_rename(path, patch):
    patch("replace", lambda old, new: kill_self())
    return path, b"never seen"


def after_the_rename(path, patch):
    def replace(old, new):
        os.rename(old, new)
        kill_self()

    patch("replace", replace)
    return path, f"content of {os.path.basename(path)}".encode()


MOMENTS = [before_the_temporary_file, in_the_middle, before_the_sync, before_the_rename, after_the_rename]


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
def test_a_killed_writer_blocks_no_process_and_another_process_creates_the_file(
    folder, results, start, monkeypatch, moment
):
    def kill_itself():
        class Patched:
            def __getattr__(self, name):
                return patches.get(name) or getattr(os, name)

        patches = {}
        _atomic_files.os = Patched()
        list(cached(folder, "abc", lambda path: moment(path, patches.__setitem__)))

    assert finished(start(kill_itself)) == -signal.SIGKILL
    assert names(cached(folder, "abc", logging_maker(results), timeout=0)) == ["a", "b", "c"]
    assert results.of("log") == (["b", "c"] if moment is after_the_rename else ["a", "b", "c"])
    assert content_after_a_kill(folder) == made("a", "b", "c")
    assert len(os.listdir(folder)) == 3 + (moment is after_the_rename), "at most an empty lock file is left"


def test_a_process_that_waits_for_a_killed_writer_continues_at_once(folder, results, start):
    def wait():
        def maker(path):
            results.note(f"made {os.path.basename(path)}")
            return logging_maker(results)(path)

        results.note("got", names(cached(folder, "ab", maker)))

    writer = hanging_writer(folder, results, start)
    waiter = start(wait)
    wait_for(lambda: results.has("made b"))  # the waiting process creates other files meanwhile
    assert not results.has("made a")
    writer.kill()
    assert finished(waiter) == 0
    assert results.of("got") == ["a", "b"]
    assert results.of("log") == ["b", "a"]
    assert content(folder) == made("a", "b")


def hanging_writer(folder, results, start):
    def hang():
        def maker(path):
            results.note("writing")
            time.sleep(600)

        list(cached(folder, "a", maker))

    writer = start(hang)
    wait_for(lambda: results.has("writing"))
    return writer


def test_a_writer_that_takes_too_long_is_reported_with_file_lock_and_remedy(folder, results, start):
    writer = hanging_writer(folder, results, start)
    pipe = cached(folder, "ab", timeout=0.2)
    for _ in range(2):
        with pytest.raises(TimeoutError) as caught:
            list(pipe)
        message = str(caught.value)
        assert f"{folder / 'a'}" in message
        assert locks.lock_file_of(str(folder / "a")) in message
        assert "0.2 seconds" in message
        assert "CacheTimeout" in message
    assert (folder / "b").exists(), "the other file was created"
    writer.kill()
    assert names(CacheTimeout(300)(pipe)) == ["a", "b"]
    assert content(folder) == made("a", "b")


def test_a_limited_number_of_items_is_computed_after_a_slow_one(folder, results, start, monkeypatch):
    monkeypatch.setattr(_cache_section, "_AHEAD", 3)

    writer = hanging_writer(folder, results, start)
    wanted = [chr(ord("a") + i) for i in range(26)]
    pipe = cached(folder, wanted, logging_maker(results), timeout=0.1)
    with pytest.raises(TimeoutError):
        list(pipe)
    assert results.of("log") == ["b", "c"]
    writer.kill()
    assert names(CacheTimeout(300)(pipe)) == wanted
    assert content(folder) == made(*wanted)


def test_a_worker_that_is_killed_while_it_writes_leaves_a_cache_that_the_next_loader_completes(folder, results):
    wanted = [str(i) for i in range(10)]

    def deadly(path):
        if path.endswith("5") and not results.has("exited"):
            results.note("exited")
            return in_the_middle(path, None)
        return logging_maker(results)(path)

    def run():
        sharded = IterableWrapper([str(folder / name) for name in wanted]).sharding_filter()
        with loader(sharded.on_disk_cache().map(deadly).end_caching(timeout=5)) as running:
            return names(running)

    with pytest.raises(WorkerExitedError, match="SIGKILL"):
        run()
    assert (folder / "5").exists() is False
    assert run() == wanted
    assert content(folder) == made(*wanted)
    assert len(results.of("log")) == len(wanted), "each file was created once"


def resting_after_one(folder, results, build):
    paths = iter(build())
    results.note("first", names([next(paths)]))
    wait_for(lambda: results.has("go on"))
    results.note("rest", names(paths))


def test_a_partly_unpacked_archive_is_unpacked_by_the_next_process(folder, results, start):
    writer = start(resting_after_one, folder, results, lambda: archives(folder, "ab"))
    wait_for(lambda: results.has("first"))
    expected = [f"{key}.{i}" for key in "ab" for i in range(3)]
    assert names(archives(folder, "ab", timeout=0)) == expected
    results.note("go on")
    assert finished(writer) == 0
    assert results.of("first") + results.of("rest") == expected
    assert sorted(os.listdir(folder)) == sorted([*expected, "a.torchdata_list", "b.torchdata_list"])


def test_the_buffered_files_of_a_process_whose_consumer_pauses_are_created_by_a_process_that_waits(
    folder, results, start
):
    between = lambda pipe: pipe.batch(3).unbatch()  # noqa: E731
    writer = start(resting_after_one, folder, results, lambda: cached(folder, "abc", between=between))
    wait_for(lambda: results.has("first"))
    assert names(cached(folder, "abcd")) == [*"abcd"]
    results.note("go on")
    assert finished(writer) == 0
    assert results.of("first") + results.of("rest") == [*"abc"]
    assert content(folder) == made(*"abcd")


def test_a_process_creates_the_files_of_its_buffer_before_it_waits(folder, results, start, monkeypatch):
    monkeypatch.setattr(_cache_section, "_AHEAD", 3)

    def run():
        pipe = cached(folder, "abcdefgh", logging_maker(results), lambda pipe: pipe.batch(7).unbatch())
        results.note("got", names(pipe))

    writer = hanging_writer(folder, results, start)
    waiter = start(run)
    wait_for(lambda: (folder / "b").exists())  # Once "b" exists, only the file "a" is missing in the batch.
    wait_for(lambda: is_free(folder / "c"))
    assert names(cached(folder, "c", timeout=0)) == ["c"]
    writer.kill()
    assert finished(waiter) == 0
    assert results.of("got") == [*"abcdefgh"]
    assert content(folder) == made(*"abcdefgh")


ANY_SECTION = [
    lambda pipe: pipe,
    lambda pipe: pipe.batch(3).unbatch(),
    lambda pipe: pipe.prefetch(3),
    lambda pipe: pipe.shuffle(buffer_size=4),
    lambda pipe: pipe.filter(lambda path: True).batch(2).unbatch().prefetch(2),
]


@pytest.mark.parametrize("seed", range(3))
def test_processes_with_any_sections_and_orders_all_get_all_though_some_are_killed(
    folder, results, start, monkeypatch, seed
):
    monkeypatch.setattr(_cache_section, "_AHEAD", 2)
    chance = random.Random(seed)
    wanted = [str(i) for i in range(12)]

    def run(number, order, between):
        results.note(f"{number}", names(cached(folder, order, between=between, timeout=60)))

    processes = [
        start(run, number, chance.sample(wanted, len(wanted)), chance.choice(ANY_SECTION)) for number in range(4)
    ]
    wait_for(lambda: (folder / chance.choice(wanted)).exists())
    processes[0].kill()
    assert [finished(process) for process in processes[1:]] == [0] * 3
    assert all(sorted(results.of(f"{number}")) == sorted(wanted) for number in range(1, 4))
    assert names(cached(folder, [*wanted, "last"])) == [*wanted, "last"]
    assert content_after_a_kill(folder) == made(*wanted, "last")


def test_processes_whose_branches_hold_each_other_s_files_both_end(folder, results, start):
    def run(number, held, wanted):
        holding = iter(cached(folder, held, between=lambda pipe: pipe.batch(3).unbatch()))
        first = next(holding)
        results.note(f"begun {number}")
        wait_for(lambda: results.has(f"begun {1 - number}"))
        paths = list(cached(folder, wanted, timeout=60))
        results.note(f"{number}", names([first, *holding, *paths]))

    both = [start(run, 0, "abc", "fed"), start(run, 1, "def", "cba")]
    assert [finished(process) for process in both] == [0, 0]
    assert [results.of("0"), results.of("1")] == [[*"abcfed"], [*"defcba"]]
    assert content(folder) == made(*"abcdef")


def test_a_forked_child_does_not_keep_the_locks_of_its_exited_parent(folder, results, start):
    def lock_and_fork():
        assert locks.acquire(str(folder / "a")) is not None
        child = os.fork()
        if child == 0:
            assert not locks._held
            results.note("forked", [f"{os.getpid()}"])
            time.sleep(600)
        results.note("parent")
        time.sleep(600)

    parent = start(lock_and_fork)
    wait_for(lambda: results.has("forked") and results.has("parent"))
    child = int(results.of("forked")[0])
    try:
        assert not is_free(folder / "a"), "the child's exit releases no lock of the parent"
        parent.kill()
        wait_for(lambda: parent.exitcode is not None)  # `parent.join()` would also wait for the parent's child.
        assert is_free(folder / "a")
        assert names(cached(folder, "a", timeout=0)) == ["a"]
    finally:
        os.kill(child, signal.SIGKILL)
        wait_for(lambda: has_exited(child))


def test_a_lock_of_a_file_that_was_removed_while_it_was_opened_is_not_trusted(folder, start, monkeypatch):
    path = str(folder / "a")
    held, opened = locks.acquire(path), locks._opened

    def opened_and_removed(file):
        fd = opened(file)
        monkeypatch.undo()
        os.unlink(file)  # Some processes delete their lock file when they release the lock.
        return fd

    held.release()
    monkeypatch.setattr(locks, "_opened", opened_and_removed)
    lock = locks.acquire(path)
    assert finished(start(lambda: os._exit(is_free(path)))) == 0
    lock.release()
    assert os.listdir(folder) == []


def test_a_lock_file_that_another_program_replaces_is_not_touched(folder):
    lock = locks.acquire(str(folder / "a"))
    file = Path(locks.lock_file_of(str(folder / "a")))
    file.unlink()
    file.write_text("of a stranger")
    lock.release()
    assert file.read_text() == "of a stranger"


def test_without_file_locks_threads_exclude_each_other_and_processes_finish(folder, no_locks):
    with pytest.warns(RuntimeWarning, match="the file system has no locks"):
        assert names(cached(folder, "aba", between=lambda pipe: pipe.batch(3).unbatch())) == ["a", "b", "a"]
    assert sorted(os.listdir(folder)) == ["a", "b"]
