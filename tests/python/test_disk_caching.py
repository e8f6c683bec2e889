"""The on-disk cache in one process: what it yields and writes, checks, bad input, state, and what it leaves behind."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stream_checks import open_files
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.adapter import CacheTimeout, InvalidateCache
from torchdata.dataloader2.graph import list_dps, traverse_dps
from torchdata.datapipes.iter import (
    EndOnDiskCacheHolder,
    FileOpener,
    IterableWrapper,
    IterDataPipe,
    OnDiskCacheHolder,
)
from torchdata.datapipes.iter import _file_locks as locks
from torchdata.datapipes.iter._atomic_files import temporary_name
from torchdata.datapipes.state import load_state, save_state
from torchdata.datapipes.utils import StreamWrapper

#: Two workers that want the same files are what these tests are about.
unsharded = pytest.mark.filterwarnings("ignore:.*nothing between it and the end divides its items")


@pytest.fixture(autouse=True)
def no_claim_is_left():
    yield
    assert not locks._claims
    assert not locks._lock_files


class Maker:
    """Makes the content of files, and remembers for which names."""

    def __init__(self):
        self.made = []

    def __call__(self, path):
        self.made.append(os.path.basename(path))
        return path, f"content of {os.path.basename(path)}".encode()


def cached(folder, names, maker=None, between=lambda pipe: pipe, mode="wb", timeout=300, **options):
    """A cached pipeline over files of a folder, named by themselves."""
    section = IterableWrapper([str(folder / name) for name in names]).on_disk_cache(**options)
    return between(section).map(maker or Maker()).end_caching(mode=mode, timeout=timeout)


def names(paths):
    return [os.path.basename(path) for path in paths]


def content(folder):
    """What is in a folder, name by name."""
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}


def made(*files):
    return {name: f"content of {name}" for name in files}


def test_files_are_made_once_and_their_paths_come_in_the_order_of_the_source(tmp_path):
    maker = Maker()
    pipe = cached(tmp_path, ["b", "a", "c"], maker)
    assert [list(pipe), list(pipe)] == [[str(tmp_path / name) for name in "bac"]] * 2
    assert maker.made == ["b", "a", "c"]
    assert content(tmp_path) == made("a", "b", "c")


def test_files_that_are_there_keep_their_place_among_those_that_are_made(tmp_path):
    list(cached(tmp_path, ["b", "d"]))
    maker = Maker()
    assert names(cached(tmp_path, ["a", "b", "c", "d", "e"], maker)) == ["a", "b", "c", "d", "e"]
    assert maker.made == ["a", "c", "e"]


def test_a_path_that_comes_twice_is_made_once_and_yielded_twice(tmp_path):
    maker = Maker()
    assert names(cached(tmp_path, ["a", "b", "a", "a"], maker)) == ["a", "b", "a", "a"]
    assert maker.made == ["a", "b"]
    batched = cached(tmp_path, ["c", "d", "c"], maker, lambda pipe: pipe.batch(3).unbatch())
    assert names(batched) == ["c", "d", "c"]
    assert maker.made == ["a", "b", "c", "d"]


def test_any_number_of_files_may_be_cached(tmp_path):
    many = [str(i) for i in range(1500)]
    for name in many:
        (tmp_path / name).touch()
    maker = Maker()
    assert names(cached(tmp_path, [*many, "new"], maker)) == [*many, "new"]
    assert maker.made == ["new"]


def test_the_section_starts_when_it_is_needed_and_goes_no_further(tmp_path):
    maker = Maker()
    paths = iter(cached(tmp_path, ["a", "b", "c"], maker))
    assert maker.made == []
    next(paths)
    assert maker.made == ["a"]


def test_a_function_gives_the_paths_and_may_give_several(tmp_path):
    def both(name):
        return [str(tmp_path / name / part) for part in ("x", "y")]

    def lazily(name):
        yield from both(name)

    def parts(name):
        calls.append(name)
        return [(path, path[-1].encode()) for path in both(name)]

    calls = []
    for function in (both, lazily, lambda name: tuple(both(name))):
        pipe = IterableWrapper(["p", "q"]).on_disk_cache(function).flatmap(parts).end_caching()
        assert list(pipe) == [*both("p"), *both("q")]
    assert calls == ["p", "q"]
    (tmp_path / "p" / "y").unlink()
    assert list(pipe) == [*both("p"), *both("q")]
    assert calls == ["p", "q", "p"], "where one of them is missing, the item passes the section again"
    assert sorted(content(tmp_path)) == ["p/x", "p/y", "q/x", "q/y"], "no lists are needed"


def test_the_end_of_a_section_has_a_function_of_its_own_or_takes_that_of_its_beginning(tmp_path):
    def path_of(name):
        return tmp_path / name  # a Path will do

    for options in ({"filepath_fn": path_of}, {"same_filepath_fn": True}):
        pipe = IterableWrapper(["a"]).on_disk_cache(path_of).map(lambda name: (name, b"x"))
        assert list(pipe.end_caching(**options)) == [str(tmp_path / "a")]
        (tmp_path / "a").unlink()


def members(path):
    return [(f"{path}.{i}", f"member {i}".encode()) for i in range(3)]


def archives(folder, keys, unpack=members):
    return IterableWrapper([str(folder / key) for key in keys]).on_disk_cache().flatmap(unpack).end_caching()


def test_files_with_other_paths_than_announced_are_listed_and_found_again(tmp_path):
    calls = []

    def unpack(path):
        calls.append(path)
        return members(path)

    expected = [f"{key}.{i}" for key in "ab" for i in range(3)]
    for _ in range(2):
        assert names(archives(tmp_path, "ab", unpack)) == expected
    assert len(calls) == 2
    listed = (tmp_path / "a.torchdata_list").read_text()
    assert listed == "".join(f"{tmp_path}/a.{i}\n" for i in range(3)), "the list has upstream's form"
    (tmp_path / "a.1").unlink()
    assert names(archives(tmp_path, "ab", unpack)) == expected, "a lost member is made again"
    assert len(calls) == 3
    assert names(archives(tmp_path, "cacbd", unpack)) == [f"{k}.{i}" for k in "cacbd" for i in range(3)]


def test_a_list_appears_only_when_all_its_files_are_there(tmp_path):
    paths = iter(archives(tmp_path, "ab"))
    for _ in range(3):
        next(paths)
    assert not (tmp_path / "a.torchdata_list").exists(), "nobody knows yet that there is no fourth one"
    assert names([next(paths)]) == ["b.0"]
    assert (tmp_path / "a.torchdata_list").exists()
    del paths
    assert not (tmp_path / "b.torchdata_list").exists()
    assert names(archives(tmp_path, "ab")) == [f"{key}.{i}" for key in "ab" for i in range(3)]


def test_a_file_that_was_not_announced_beside_one_that_was_is_an_error(tmp_path):
    def one_of_each(path):
        return [(path, b"x"), (path + ".more", b"y")]

    with pytest.raises(RuntimeError, match=r"let either all or none.*"):
        list(archives(tmp_path, "a", one_of_each))


def test_members_made_by_a_thread_that_reads_ahead_are_refused_as_nobody_knows_whose_they_are(tmp_path):
    pipe = IterableWrapper([str(tmp_path / "a")]).on_disk_cache().flatmap(members).prefetch(2).end_caching()
    with pytest.raises(RuntimeError, match="read ahead in a thread"):
        list(pipe)


def test_items_that_the_section_drops_yield_nothing_and_hold_up_nobody(tmp_path):
    pipe = cached(tmp_path, "abcd", between=lambda pipe: pipe.filter(lambda path: path[-1] in "bd"))
    for _ in range(2):
        assert names(pipe) == ["b", "d"]
    assert names(cached(tmp_path, "abcd")) == ["a", "b", "c", "d"]


def test_a_section_that_ends_by_itself_leaves_the_rest_missing(tmp_path):
    list(cached(tmp_path, "d"))
    assert names(cached(tmp_path, "abcde", between=lambda pipe: pipe.header(2))) == ["a", "b", "d"]


def test_pipes_that_change_the_order_change_it_for_what_is_made(tmp_path):
    pipe = cached(tmp_path, "abcdef", between=lambda pipe: pipe.shuffle(buffer_size=3).set_seed(1))
    plain = IterableWrapper("abcdef").shuffle(buffer_size=3).set_seed(1)
    assert names(pipe) == list(plain) != list("abcdef")
    assert names(pipe) == list("abcdef")


@pytest.mark.parametrize("skip_read", [False, True])
def test_data_may_be_whole_in_pieces_or_a_stream(tmp_path, skip_read):
    streams = [StreamWrapper(io.BytesIO(b"stream")), io.BytesIO(b"file")]
    kinds = [
        b"bytes",
        bytearray(b"array"),
        memoryview(b"view"),
        [b"pie", b"ces"],
        (b"x" for _ in range(3)),
        *streams,
    ]
    pairs = [(str(tmp_path / f"{i}"), data) for i, data in enumerate(kinds)]
    source = IterableWrapper(pairs, deepcopy=False).on_disk_cache(lambda pair: pair[0])
    assert len(list(source.end_caching(skip_read=skip_read))) == 7
    expected = ["bytes", "array", "view", "pieces", "xxx", "stream", "file"]
    assert [content(tmp_path)[f"{i}"] for i in range(7)] == expected
    assert all(stream.closed for stream in streams)


def test_text_is_written_in_text_mode_only(tmp_path):
    def text(path):
        return path, "grün\n"

    for mode in ("t", "wt", "w"):
        list(cached(tmp_path, [mode], text, mode=mode))
        assert (tmp_path / mode).read_text() == "grün\n"
    with pytest.raises(TypeError, match=r"mode 'wb' writes bytes, but the data for .*bad.* is of type str"):
        list(cached(tmp_path, ["bad"], text))
    with pytest.raises(TypeError, match=r"mode 'wt' writes text, .* of type bytes"):
        list(cached(tmp_path, ["bad"], mode="t"))
    with pytest.raises(TypeError, match="of type int"):
        list(cached(tmp_path, ["bad"], lambda path: (path, 3)))
    assert sorted(content(tmp_path)) == ["t", "w", "wt"]


def test_items_that_are_no_pairs_or_have_no_path_are_named(tmp_path):
    with pytest.raises(TypeError, match=r"expects pairs of path and data, but got 'x'"):
        list(cached(tmp_path, ["a"], lambda path: "x"))
    with pytest.raises(TypeError, match=r"expects paths of files as str, but got 3"):
        list(cached(tmp_path, ["a"], lambda path: (3, b"")))
    with pytest.raises(TypeError, match=r"OnDiskCacheHolder expects paths .* got b'a'"):
        list(IterableWrapper([b"a"]).on_disk_cache().map(Maker()).end_caching())
    with pytest.raises(ValueError, match="returned no path for 'a'"):
        list(IterableWrapper(["a"]).on_disk_cache(lambda name: []).map(Maker()).end_caching())


def test_relative_paths_and_folders_that_are_not_there_will_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pipe = IterableWrapper(["here", "new/folder/there"]).on_disk_cache().map(Maker()).end_caching()
    assert list(pipe) == ["here", "new/folder/there"]
    assert sorted(content(tmp_path)) == ["here", "new/folder/there"]


def test_a_directory_that_is_there_counts_as_cached(tmp_path):
    (tmp_path / "folder").mkdir()
    assert names(cached(tmp_path, ["folder"])) == ["folder"]


# Checks -----------------------------------------------------------------------------------------------------------


def sums(folder, kind="sha256", **contents):
    return {
        str(folder / name): hashlib.new(kind, text.encode()).hexdigest() for name, text in contents.items()
    }


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_file_with_another_checksum_is_made_anew(tmp_path, kind):
    (tmp_path / "a").write_text("spoilt")
    hashes = sums(tmp_path, kind, a="content of a", b="content of b")
    maker = Maker()
    pipe = cached(tmp_path, "ab", maker, hash_dict=hashes, hash_type=kind)
    assert [names(pipe), names(pipe)] == [["a", "b"]] * 2
    assert maker.made == ["a", "b"]
    assert content(tmp_path) == made("a", "b")


def test_content_with_another_checksum_is_an_error_and_is_not_saved(tmp_path):
    (tmp_path / "b").write_text("what was there")
    pipe = cached(tmp_path, "ab", hash_dict=sums(tmp_path, a="content of a", b="other"))
    paths = iter(pipe)
    assert names([next(paths)]) == ["a"]
    with pytest.raises(RuntimeError, match=r"The computed hash \w+ of .*/b does not match"):
        next(paths)
    assert content(tmp_path) == {**made("a"), "b": "what was there"}
    with pytest.raises(RuntimeError, match="does not match"):
        list(pipe)


def test_a_file_without_a_checksum_in_the_dictionary_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match=r"Unspecified hash for file .*/a"):
        list(cached(tmp_path, "a", hash_dict={}))
    assert content(tmp_path) == {}


def test_text_is_hashed_as_it_lies_in_the_file(tmp_path):
    hashes = sums(tmp_path, a="grün")
    assert names(cached(tmp_path, "a", lambda path: (path, ["gr", "ün"]), mode="t", hash_dict=hashes)) == [
        "a"
    ]


def test_a_file_that_the_users_check_refuses_is_made_anew(tmp_path):
    (tmp_path / "a").write_text("")
    (tmp_path / "b").write_text("good")
    list(cached(tmp_path, "ab", extra_check_fn=os.path.getsize))
    assert content(tmp_path) == {**made("a"), "b": "good"}


# What goes wrong --------------------------------------------------------------------------------------------------


def test_a_source_or_a_pipe_that_raises_leaves_nothing_and_the_next_epoch_goes_on(tmp_path):
    broken = [True]

    def maker(path):
        if broken and path.endswith("b"):
            raise KeyError("broken")
        return Maker()(path)

    pipe = cached(tmp_path, "abc", maker)
    with pytest.raises(KeyError, match="broken"):
        list(pipe)
    assert content(tmp_path) == made("a")
    broken.clear()
    assert names(pipe) == ["a", "b", "c"]


def test_data_that_breaks_off_leaves_nothing(tmp_path):
    def maker(path):
        def pieces():
            yield b"begun"
            raise ConnectionError("broke off")

        return path, pieces()

    with pytest.raises(ConnectionError):
        list(cached(tmp_path, "a", maker))
    assert content(tmp_path) == {}


def test_a_folder_that_cannot_be_written_into_is_named():
    with pytest.raises(OSError, match=r"/proc/nowhere"):
        list(IterableWrapper(["/proc/nowhere/a"]).on_disk_cache().map(Maker()).end_caching())


def test_a_file_where_a_folder_should_be_and_a_folder_where_a_file_should_be_are_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        list(cached(tmp_path, ["file/a"]))
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder") as caught:
        list(cached(tmp_path, ["folder"], extra_check_fn=os.path.isfile))
    assert any("nothing of it is left" in note for note in caught.value.__notes__)
    assert content(tmp_path) == {"file": ""}


FULL_DISK = """
import os, resource, sys
from torchdata.datapipes.iter import IterableWrapper
path = sys.argv[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
pipe = IterableWrapper([path]).on_disk_cache().map(lambda path: (path, [b"x" * 30_000] * 5)).end_caching()
try:
    list(pipe)
except OSError as error:
    print(error.strerror, os.listdir(os.path.dirname(path)))
"""


def test_a_file_that_the_disk_has_no_room_for_leaves_nothing(tmp_path):
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "a")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "File too large []\n"


def test_what_killed_writers_left_is_cleared_away(tmp_path):
    Path(temporary_name(str(tmp_path / "a"))).write_text("half a fi")
    (tmp_path / locks.LOCK_FILE).touch()
    assert names(cached(tmp_path, "a")) == ["a"]
    assert content(tmp_path) == made("a")


LEFT_HALF_WAY = """
import sys
from torchdata.datapipes.iter import IterableWrapper
paths = [f"{sys.argv[1]}/{name}" for name in "abc"]
pipe = IterableWrapper(paths).on_disk_cache().map(lambda path: (path, b"")).batch(3).unbatch().end_caching()
running = iter(pipe)
next(running)
"""


def test_a_program_that_ends_half_way_leaves_only_files_of_the_cache(tmp_path):
    subprocess.run([sys.executable, "-c", LEFT_HALF_WAY, str(tmp_path)], timeout=60, check=True)
    assert content(tmp_path) == {"a": ""}


def test_an_iterator_left_half_way_gives_its_claims_up(tmp_path):
    pipe = cached(tmp_path, "abcdef", between=lambda pipe: pipe.batch(3).unbatch())
    before = open_files()
    for stop in range(1, 6):
        paths = iter(pipe)
        for _ in range(stop):
            next(paths)
        del paths
        assert not locks._claims
        assert open_files() == before
        assert names(pipe) == list("abcdef")
        for name in "abcdef":
            (tmp_path / name).unlink()
    paths = iter(pipe)  # begun and left before the first item
    del paths
    assert content(tmp_path) == {}


def test_a_read_ahead_section_left_half_way_gives_its_claims_up(tmp_path):
    pipe = cached(tmp_path, "abcdef", between=lambda pipe: pipe.prefetch(2))
    for _ in range(3):
        paths = iter(pipe)
        next(paths)
        del paths
    assert names(pipe) == list("abcdef")


def test_a_section_without_its_end_is_not_iterated():
    section = IterableWrapper(["a"]).on_disk_cache()
    with pytest.raises(RuntimeError, match=r"call `end_caching\(\)` before iteration"):
        list(section.map(len))


def test_the_pipes_of_a_section_may_be_looked_at_without_its_end(tmp_path):
    list(cached(tmp_path, "b"))
    section = IterableWrapper([str(tmp_path / name) for name in "abc"]).on_disk_cache()
    section.map(Maker()).end_caching()
    assert names(section) == ["a", "c"]
    assert not locks._claims


def test_the_forms_give_the_classes():
    section = IterableWrapper(["a"]).on_disk_cache()
    assert type(section) is OnDiskCacheHolder
    assert type(section.map(Maker()).end_caching()) is EndOnDiskCacheHolder


def test_caches_in_turn_each_keep_their_files(tmp_path):
    (tmp_path / "raw").mkdir()
    raw = cached(tmp_path / "raw", "ab")
    opened = raw.on_disk_cache(lambda path: path.replace("raw", "upper")).open_files("b")
    upper = opened.map(lambda pair: (pair[0].replace("raw", "upper"), pair[1].read().upper())).end_caching()
    for _ in range(2):
        assert [Path(path).read_text() for path in upper] == ["CONTENT OF A", "CONTENT OF B"]
    assert sorted(content(tmp_path)) == ["raw/a", "raw/b", "upper/a", "upper/b"]


def test_an_end_needs_a_beginning_of_its_own(tmp_path):
    with pytest.raises(RuntimeError, match="only be invoked once"):
        cached(tmp_path, "a").map(Maker()).end_caching()


# Several in one process -------------------------------------------------------------------------------------------


def test_two_branches_of_a_graph_share_their_files(tmp_path):
    maker = Maker()
    left = cached(tmp_path, "abc", maker, lambda pipe: pipe.batch(2).unbatch())
    right = cached(tmp_path, "cba", maker, lambda pipe: pipe.batch(2).unbatch())
    assert [names(pair) for pair in left.zip(right)] == [["a", "c"], ["b", "b"], ["c", "a"]]
    assert set(maker.made) == {"a", "b", "c"}
    assert content(tmp_path) == made("a", "b", "c")


def test_two_branches_that_unpack_the_same_archives_do_not_wait_for_each_other(tmp_path):
    expected = [f"{key}.{i}" for key in "ab" for i in range(3)]
    both = archives(tmp_path, "ab").zip(archives(tmp_path, "ab"))
    assert [names(pair) for pair in both] == [[name, name] for name in expected]
    assert sorted(content(tmp_path)) == sorted([*expected, "a.torchdata_list", "b.torchdata_list"])


def test_threads_that_want_the_same_files_make_each_once(tmp_path):
    maker, results = Maker(), []
    wanted = [str(i) for i in range(20)]
    pipes = [cached(tmp_path, wanted, maker) for _ in range(4)]
    threads = [threading.Thread(target=lambda pipe=pipe: results.append(names(pipe))) for pipe in pipes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [wanted] * 4
    assert sorted(maker.made) == sorted(wanted)


# State ------------------------------------------------------------------------------------------------------------


class Plain(IterDataPipe):
    """A user's pipe without state: it is replayed."""

    def __init__(self, source):
        self.source = source

    def __iter__(self):
        yield from self.source


BETWEEN = {
    "alone": lambda pipe: pipe,
    "in batches": lambda pipe: pipe.batch(3).unbatch(),
    "shuffled": lambda pipe: pipe.shuffle(buffer_size=3).set_seed(1),
    "read ahead": lambda pipe: pipe.prefetch(2),
    "without state": Plain,
}


@pytest.mark.parametrize("between", BETWEEN.values(), ids=list(BETWEEN))
@pytest.mark.parametrize("there", ["", "bc", "af"])
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
        state = pickle.dumps(save_state(pipe))
        del paths, pipe
        for _ in range(2):  # the second time all files are there already
            restored = build(folder)
            load_state(restored, pickle.loads(state))
            tail = names(restored)
            assert sorted(head + tail) == list("abcdef"), "nothing is lost or repeated"
            if between is not BETWEEN["shuffled"]:
                assert head + tail == whole
        assert content(folder) == made(*"abcdef")
        assert names(restored) == list("abcdef"), "the next epoch is whole"


def test_a_half_unpacked_archive_is_finished_after_a_restore(tmp_path):
    expected = [f"{key}.{i}" for key in "ab" for i in range(3)]
    for position in range(7):
        folder = tmp_path / str(position)
        pipe = archives(folder, "ab")
        paths = iter(pipe)
        head = names(next(paths) for _ in range(position))
        state = pickle.dumps(save_state(pipe))
        del paths
        restored = archives(folder, "ab")
        load_state(restored, pickle.loads(state))
        assert head + names(restored) == expected
        assert (folder / "a.torchdata_list").read_text().count("\n") == 3
        assert (folder / "b.torchdata_list").read_text().count("\n") == 3


def test_a_file_that_vanished_after_a_state_was_saved_is_made_again(tmp_path):
    list(cached(tmp_path, "abc"))
    pipe = cached(tmp_path, "abc")
    paths = iter(pipe)
    next(paths)
    state = save_state(pipe)
    (tmp_path / "b").unlink()
    restored = cached(tmp_path, "abc")
    load_state(restored, state)
    assert names(restored) == ["b", "c"]
    assert content(tmp_path) == made("a", "b", "c")


# With a loader ----------------------------------------------------------------------------------------------------


@unsharded
def test_two_workers_share_a_cache_and_leave_nothing_but_its_files(tmp_path):
    wanted = [str(i) for i in range(12)]
    service = MultiProcessingReadingService(2, multiprocessing_context="fork")
    log = tmp_path / "log"

    def maker(path):
        with open(log, "a") as file:
            file.write(f"{os.path.basename(path)}\n")
        return Maker()(path)

    with DataLoader2(cached(tmp_path / "files", wanted, maker), reading_service=service) as loader:
        for _ in range(2):
            assert sorted(names(loader)) == sorted(wanted * 2), "unsharded, each worker yields all"
        assert content(tmp_path / "files") == made(*wanted)
        next(iter(loader))
    assert sorted(log.read_text().split()) == sorted(wanted), "each file was made once"


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
    pipe = (
        cached(tmp_path, "a")
        .on_disk_cache(lambda path: path + "2")
        .map(lambda p: (p + "2", b""))
        .end_caching()
    )
    loader = DataLoader2(pipe, CacheTimeout(7))
    ends = [p for p in list_dps(traverse_dps(loader.datapipe)) if isinstance(p, EndOnDiskCacheHolder)]
    assert [end.timeout for end in ends] == [7, 7]
    assert pipe.timeout == 300


@unsharded
@pytest.mark.parametrize("workers", [0, 2])
def test_invalidating_makes_every_file_once_more(tmp_path, workers):
    log = tmp_path / "log"

    def maker(path):
        with open(log, "a") as file:
            file.write(os.path.basename(path))
        return path, b"new"

    folder = tmp_path / "files"
    list(cached(folder, "abc"))
    service = MultiProcessingReadingService(workers, multiprocessing_context="fork") if workers else None
    pipe = cached(folder, "abc", maker)
    assert set(names(DataLoader2(pipe, InvalidateCache(on_disk=False)))) == set("abc")
    assert not log.exists()
    with DataLoader2(pipe, InvalidateCache(), service) as loader:
        for _ in range(2):
            assert set(names(loader)) == set("abc")
    assert sorted(log.read_text()) == ["a", "b", "c"]
    assert content(folder) == dict.fromkeys("abc", "new")
    assert names(pipe) == ["a", "b", "c"], "what the loader wrote is good for others"


def test_a_downloaded_file_is_read_as_usual(tmp_path):
    pipe = FileOpener(cached(tmp_path, "ab"), mode="b").read_from_stream()
    assert [text for _, text in pipe] == [b"content of a", b"content of b"]
