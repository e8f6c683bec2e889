"""Several on-disk caches in one process can be saved exactly at every position, even in a loader with adapters."""

import os
import pickle
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cache_checks import Maker, archives, cached, content, is_free, made, names, no_lock_is_left, unsharded
from random_graphs.users import Passing
from resuming import with_state
from stream_checks import open_files
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.adapter import CacheTimeout
from torchdata.dataloader2.graph import list_dps, traverse_dps
from torchdata.datapipes.iter import EndOnDiskCacheHolder, IterableWrapper
from torchdata.datapipes.iter.disk_cache import locks
from torchdata.datapipes.state import save_state

__all__ = ["no_lock_is_left"]


def test_a_branch_does_not_wait_for_the_buffered_items_of_another_branch_in_its_thread(tmp_path):
    left = cached(tmp_path, "abc", between=lambda pipe: pipe.batch(3).unbatch())
    right = cached(tmp_path, "bca", timeout=5)
    assert [names(pair) for pair in left.zip(right)] == [["a", "b"], ["b", "c"], ["c", "a"]]
    assert content(tmp_path) == made("a", "b", "c")


def test_two_branches_that_unpack_the_same_archives_do_not_wait_for_each_other(tmp_path):
    expected = [f"{key}.{i}" for key in "ab" for i in range(3)]
    both = archives(tmp_path, "ab").zip(archives(tmp_path, "ab"))
    assert [names(pair) for pair in both] == [[name, name] for name in expected]
    assert sorted(content(tmp_path)) == sorted([*expected, "a.torchdata_list", "b.torchdata_list"])


def test_the_lock_of_a_file_that_is_being_written_is_kept_though_its_data_waits_for_another_section(tmp_path):
    def maker(path):
        def pieces():
            with pytest.raises(TimeoutError):
                list(cached(tmp_path, "b", timeout=0))
            kept.append(not is_free(tmp_path / "a"))
            yield b"content of a"

        return path, pieces()

    kept = []
    held = locks.acquire(str(tmp_path / "b"))
    assert names(cached(tmp_path, "a", maker)) == ["a"]
    held.release()
    assert kept == [True]
    assert content(tmp_path) == made("a")


def test_threads_that_need_the_same_files_create_each_once(tmp_path):
    maker, wanted = Maker(), [str(i) for i in range(20)]
    pipes = [cached(tmp_path, wanted, maker) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(names, pipes)) == [wanted] * 4
    assert sorted(maker.made) == sorted(wanted)


BETWEEN = {
    "alone": lambda pipe: pipe,
    "in batches": lambda pipe: pipe.batch(3).unbatch(),
    "shuffled": lambda pipe: pipe.shuffle(buffer_size=3).set_seed(1),
    "read ahead": lambda pipe: pipe.prefetch(2),
    "without state": Passing,
}


@pytest.mark.parametrize(("between", "there"), [*((between, "bc") for between in BETWEEN.values()), (Passing, "")])
def test_a_cold_cache_is_restored_at_every_position(tmp_path, between, there):
    def build(folder):
        folder.mkdir(exist_ok=True)
        return cached(folder, "abcdef", between=between)

    def prepared(name):
        list(cached(tmp_path / name, there)) if there else None
        return build(tmp_path / name)

    whole = names(prepared("whole"))
    assert sorted(whole) == list("abcdef")
    for position in range(7):
        folder = tmp_path / f"at {position}"
        pipe = prepared(folder.name)
        paths = iter(pipe)
        head = names(next(paths) for _ in range(position))
        running = pickle.dumps(save_state(pipe))
        del paths
        abandoned = pickle.dumps(save_state(pipe))
        for state in (running, abandoned):  # When the second state is loaded, all files already exist.
            restored = with_state(build(folder), pickle.loads(state))
            tail = names(restored)
            assert sorted(head + tail) == list("abcdef"), "nothing is lost or repeated"
            if between is not BETWEEN["shuffled"]:
                assert head + tail == whole
        assert content(folder) == made(*"abcdef")
        assert names(restored) == list("abcdef"), "the next epoch has all items"


def test_tar_archives_are_unpacked_into_the_cache_and_restored_in_the_middle(tmp_path):
    (tmp_path / "data").mkdir()
    for name in "abcdef":
        (tmp_path / "data" / name).write_text(f"content of {name}")
    for archive, inside in (("one", "abc"), ("two", "def")):
        command = ["tar", "-cf", str(tmp_path / f"{archive}.tar"), "-C", str(tmp_path / "data"), *inside]
        subprocess.run(command, check=True, timeout=250)

    def build(folder):
        def target(path):
            return str(folder / Path(path).name)

        tars = IterableWrapper([str(tmp_path / "one.tar"), str(tmp_path / "two.tar")])
        section = tars.on_disk_cache(target).open_files("b").load_from_tar()
        return section.end_caching(filepath_fn=target)

    before = open_files()
    for position in range(7):
        folder = tmp_path / f"at {position}"
        pipe = build(folder)
        paths = iter(pipe)
        head = names(next(paths) for _ in range(position))
        state = pickle.dumps(save_state(pipe))
        del paths, pipe
        assert open_files() == before
        for _ in range(2):
            restored = with_state(build(folder), pickle.loads(state))
            assert head + names(restored) == list("abcdef")
        assert names(restored) == list("abcdef")
        lists = {f"{name}.tar.torchdata_list" for name in ("one", "two")}
        assert content(folder).keys() == {*"abcdef", *lists}
        assert open_files() == before


def test_a_file_that_vanished_after_a_state_was_saved_is_recreated(tmp_path):
    list(cached(tmp_path, "abc"))
    pipe = cached(tmp_path, "abc")
    paths = iter(pipe)
    next(paths)
    state = save_state(pipe)
    (tmp_path / "b").unlink()
    assert names(with_state(cached(tmp_path, "abc"), state)) == ["b", "c"]
    assert content(tmp_path) == made("a", "b", "c")


@unsharded
def test_two_workers_share_a_cache_and_leave_only_its_files(tmp_path):
    wanted = [str(i) for i in range(12)]
    service = MultiProcessingReadingService(2, multiprocessing_context="fork")
    log = tmp_path / "log"

    def maker(path):
        with open(log, "a") as file:
            file.write(f"{os.path.basename(path)}\n")
        return Maker()(path)

    with DataLoader2(cached(tmp_path / "files", wanted, maker), reading_service=service) as loader:
        for _ in range(2):
            assert sorted(names(loader)) == sorted(wanted * 2), "without sharding, each worker yields all items"
        assert content(tmp_path / "files") == made(*wanted)
        next(iter(loader))
    assert sorted(log.read_text().split()) == sorted(wanted), "each file was created once"


@unsharded
def test_two_workers_that_unpack_the_same_archives_in_turn_do_not_block_each_other(tmp_path):
    keys = [str(i) for i in range(3)]

    def unpack(path):
        return [(f"{path}.{i}", b"x") for i in range(40)]

    service = MultiProcessingReadingService(
        2, worker_prefetch_cnt=1, main_prefetch_cnt=1, multiprocessing_context="fork"
    )
    with DataLoader2(archives(tmp_path, keys, unpack), reading_service=service) as loader:
        found = names(loader)
    assert sorted(found) == sorted(f"{key}.{i}" for key in keys for i in range(40) for _ in range(2))


def test_the_adapter_sets_the_time_to_wait_of_every_end(tmp_path):
    pipe = cached(tmp_path, "a").on_disk_cache(lambda path: path + "2").map(lambda p: (p + "2", b"")).end_caching()
    loader = DataLoader2(pipe, CacheTimeout(7))
    ends = [p for p in list_dps(traverse_dps(loader.datapipe)) if isinstance(p, EndOnDiskCacheHolder)]
    assert [end.timeout for end in ends] == [7, 7]
    assert pipe.timeout == 300
