"""Within one process, the on-disk cache stores items, checks files, and deletes unfinished files."""

import hashlib
import io
import os
from pathlib import Path

import pytest

from cache_checks import Maker, archives, cached, content, made, members, names, no_lock_is_left
from programs import output_of
from stream_checks import open_files
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.iter.disk_cache import locks, section
from torchdata.datapipes.iter.streams.atomic_files import temporary_name
from torchdata.datapipes.utils import StreamWrapper

__all__ = ["no_lock_is_left"]


def test_files_are_created_once_and_their_paths_are_yielded_in_the_order_of_the_source(tmp_path):
    maker = Maker()
    pipe = cached(tmp_path, ["b", "a", "c"], maker)
    assert [list(pipe), list(pipe)] == [[str(tmp_path / name) for name in "bac"]] * 2
    assert maker.made == ["b", "a", "c"]
    assert content(tmp_path) == made("a", "b", "c")


def test_a_repeated_path_is_created_once_and_existing_files_keep_their_position(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    maker = Maker()
    pipe = IterableWrapper(["v", "new/w", "x", "v"]).on_disk_cache().map(maker).end_caching()
    assert list(pipe) == ["v", "new/w", "x", "v"], "relative paths, new folders and a folder that exists"
    assert maker.made == ["v", "w"]
    maker = Maker()
    assert names(cached(tmp_path, ["a", "b", "a", "a"], maker)) == ["a", "b", "a", "a"]
    assert maker.made == ["a", "b"]
    batched = cached(tmp_path, ["c", "d", "c"], maker, lambda pipe: pipe.batch(3).unbatch())
    assert names(batched) == ["c", "d", "c"]
    assert names(cached(tmp_path, ["e", "b", "f", "d"], maker)) == ["e", "b", "f", "d"]
    assert maker.made == ["a", "b", "c", "d", "e", "f"]
    section = cached(tmp_path, "aghb", between=lambda pipe: pipe.header(1))
    assert names(section) == ["a", "g", "b"], "a section that ends early creates no further files"


def test_the_section_starts_when_it_is_needed_and_reads_no_further(tmp_path):
    maker = Maker()
    paths = iter(cached(tmp_path, ["a", "b", "c"], maker))
    assert maker.made == []
    next(paths)
    assert maker.made == ["a"]


def test_a_function_returns_one_path_or_several_paths(tmp_path):
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
    assert calls == ["p", "q", "p"], "an item with a missing file passes the section again"
    assert sorted(content(tmp_path)) == ["p/x", "p/y", "q/x", "q/y"], "no list files are written"


def test_the_end_of_a_section_uses_its_own_function_or_the_function_of_the_start(tmp_path):
    def path_of(name):
        return tmp_path / name

    for options in ({"filepath_fn": path_of}, {"same_filepath_fn": True}):
        pipe = IterableWrapper(["a"]).on_disk_cache(path_of).map(lambda name: (name, b"x"))
        assert list(pipe.end_caching(**options)) == [str(tmp_path / "a")]
        (tmp_path / "a").unlink()


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
    assert names(archives(tmp_path, "ab", unpack)) == expected, "a deleted member is created again"
    assert len(calls) == 3
    assert names(archives(tmp_path, "cacbd", unpack)) == [f"{k}.{i}" for k in "cacbd" for i in range(3)]


def test_a_list_appears_only_when_all_its_files_are_there(tmp_path):
    paths = iter(archives(tmp_path, "ab"))
    for _ in range(3):
        next(paths)
    assert not (tmp_path / "a.torchdata_list").exists(), "the end of the archive was not reached"
    assert names([next(paths)]) == ["b.0"]
    assert (tmp_path / "a.torchdata_list").exists()
    del paths
    assert not (tmp_path / "b.torchdata_list").exists()
    assert names(archives(tmp_path, "ab")) == [f"{key}.{i}" for key in "ab" for i in range(3)]


def test_a_folder_represents_its_files_once_all_of_them_exist(tmp_path):
    def unpack(path):
        return [(f"{path}/{i}", b"x") for i in range(3)]

    wanted = ["0", "1", "2"]
    for stop in range(4):
        running = iter(archives(tmp_path, ["folder"], unpack))
        assert names(next(running) for _ in range(stop)) == wanted[:stop]
        if stop:
            other = archives(tmp_path, ["folder"], unpack)
            assert other.cache_holder.found((str(tmp_path / "folder"),)) is None, "the folder is incomplete"
        del running
    for _ in range(2):
        assert names(archives(tmp_path, ["folder"], unpack)) == wanted
    assert sorted(content(tmp_path)) == ["folder.torchdata_list", "folder/0", "folder/1", "folder/2"]


def test_an_unannounced_file_next_to_an_announced_one_raises_an_error(tmp_path):
    def one_of_each(path):
        return [(path, b"x"), (path + ".more", b"y")]

    with pytest.raises(RuntimeError, match=r"either all or none.*"):
        list(archives(tmp_path, "a", one_of_each))


def test_members_from_a_thread_that_reads_ahead_are_refused_because_their_file_is_unknown(tmp_path):
    pipe = IterableWrapper([str(tmp_path / "a")]).on_disk_cache().flatmap(members).prefetch(2).end_caching()
    with pytest.raises(RuntimeError, match="read ahead in a thread"):
        list(pipe)


def test_several_paths_of_one_item_must_equal_the_created_paths(tmp_path):
    def twice(name):
        return [str(tmp_path / name / "x"), str(tmp_path / name / "y")]

    pipe = IterableWrapper(["p"]).on_disk_cache(twice).map(lambda name: (str(tmp_path / name / "z"), b""))
    with pytest.raises(RuntimeError, match="either all or none"):
        list(pipe.end_caching())
    assert content(tmp_path) == {}


def test_items_that_the_section_drops_yield_nothing_and_block_no_process(tmp_path):
    pipe = cached(tmp_path, "abcd", between=lambda pipe: pipe.filter(lambda path: path[-1] in "bd"))
    for _ in range(2):
        assert names(pipe) == ["b", "d"]
    assert names(cached(tmp_path, "abcd")) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("between", ["in batches", "shuffled", "read ahead", "filtered"])
def test_sections_that_read_far_ahead_lose_nothing(tmp_path, monkeypatch, between):
    monkeypatch.setattr(section, "_AHEAD", 2)
    monkeypatch.setattr(section, "_LOCKED", 2)
    wanted = [str(i) for i in range(40)]
    far = {
        "in batches": lambda pipe: pipe.batch(16).unbatch(),
        "shuffled": lambda pipe: pipe.shuffle(buffer_size=30).set_seed(1),
        "read ahead": lambda pipe: pipe.prefetch(16),
        "filtered": lambda pipe: pipe.filter(lambda path: int(os.path.basename(path)) % 7 == 0),
    }[between]
    for there in ([], ["3", "4", "5", "30"]):
        folder = tmp_path / f"{len(there)}"
        list(cached(folder, there))
        maker = Maker()
        found = names(cached(folder, [*wanted, *wanted], maker, far))
        kept = wanted if between != "filtered" else [n for n in wanted if int(n) % 7 == 0 or n in there]
        assert sorted(found) == sorted(kept * 2)
        assert set(maker.made) == set(kept) - set(there)
        if between != "shuffled":
            assert found == kept * 2
        assert content(folder) == made(*kept)


def test_an_endless_source_continues_even_if_a_batch_never_fills(tmp_path):
    section = IterableWrapper([str(tmp_path / name) for name in "ab"]).cycle().on_disk_cache()
    paths = iter(section.batch(3).unbatch().map(Maker()).end_caching())
    assert names(next(paths) for _ in range(5)) == [*"ababa"]


def test_pipes_that_change_the_order_also_change_the_order_in_which_files_are_created(tmp_path):
    pipe = cached(tmp_path, "abcdef", between=lambda pipe: pipe.shuffle(buffer_size=3).set_seed(1))
    plain = IterableWrapper("abcdef").shuffle(buffer_size=3).set_seed(1)
    assert names(pipe) == list(plain) != list("abcdef")
    assert names(pipe) == list("abcdef")


@pytest.mark.parametrize("skip_read", [False, True])
def test_data_may_be_whole_in_pieces_or_a_stream(tmp_path, skip_read):
    streams = [StreamWrapper(io.BytesIO(b"stream")), io.BytesIO(b"file")]
    kinds = [b"bytes", bytearray(b"array"), memoryview(b"view"), [b"pie", b"ces"], (b"x" for _ in range(3)), *streams]
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


def test_errors_name_items_that_are_not_pairs_or_have_no_path(tmp_path):
    with pytest.raises(TypeError, match=r"expects pairs of path and data, but got 'x'"):
        list(cached(tmp_path, ["a"], lambda path: "x"))
    with pytest.raises(TypeError, match=r"expects paths of files as str, but got 3 of type int; "):
        list(cached(tmp_path, ["a"], lambda path: (3, b"")))
    with pytest.raises(TypeError, match=r"OnDiskCacheHolder expects paths .* got b'a'"):
        list(IterableWrapper([b"a"]).on_disk_cache().map(Maker()).end_caching())
    with pytest.raises(ValueError, match="returned no path for 'a'"):
        list(IterableWrapper(["a"]).on_disk_cache(lambda name: []).map(Maker()).end_caching())


def sums(folder, kind="sha256", **contents):
    return {str(folder / name): hashlib.new(kind, text.encode()).hexdigest() for name, text in contents.items()}


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_file_with_another_checksum_is_recreated(tmp_path, kind):
    hashes = sums(tmp_path, kind, t="grün")
    text = cached(tmp_path, "t", lambda path: (path, ["gr", "ün"]), mode="t", hash_dict=hashes, hash_type=kind)
    assert names(text) == ["t"]
    (tmp_path / "t").unlink()
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


def test_a_file_without_a_checksum_in_the_dictionary_raises_an_error(tmp_path):
    with pytest.raises(RuntimeError, match=r"Unspecified hash for file .*/a"):
        list(cached(tmp_path, "a", hash_dict={}))
    assert content(tmp_path) == {}


def test_a_file_that_the_users_check_refuses_is_recreated(tmp_path):
    (tmp_path / "a").write_text("")
    (tmp_path / "b").write_text("good")
    list(cached(tmp_path, "ab", extra_check_fn=os.path.getsize))
    assert content(tmp_path) == {**made("a"), "b": "good"}


def test_a_source_or_a_pipe_that_raises_leaves_nothing_and_the_next_epoch_continues(tmp_path):
    broken = [True]

    def pieces():
        yield b"begun"
        raise ConnectionError("broke off")

    def maker(path):
        if broken and path.endswith("b"):
            raise KeyError("broken")
        return (path, pieces()) if broken and path.endswith("c") else Maker()(path)

    pipe = cached(tmp_path, "abc", maker)
    with pytest.raises(KeyError, match="broken"):
        list(pipe)
    with pytest.raises(ConnectionError):
        list(cached(tmp_path, "c", maker))
    assert content(tmp_path) == made("a")
    broken.clear()
    assert names(pipe) == ["a", "b", "c"]


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
    assert any("the unfinished file was deleted" in note for note in caught.value.__notes__)
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


def test_a_file_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path):
    assert output_of(FULL_DISK, tmp_path / "a") == "File too large []\n"


def test_files_that_killed_writers_left_are_removed(tmp_path):
    Path(temporary_name(str(tmp_path / "a"))).write_text("half a fi")
    Path(locks.lock_file_of(str(tmp_path / "a"))).touch()
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


def test_a_program_that_exits_early_leaves_only_complete_files(tmp_path):
    output_of(LEFT_HALF_WAY, tmp_path)
    assert content(tmp_path) == {"a": ""}


def test_an_abandoned_iterator_releases_its_locks(tmp_path):
    for _ in range(2):
        iter(cached(tmp_path, "ghijkl", between=lambda pipe: pipe.prefetch(2))).__next__()
    assert names(cached(tmp_path, "ghijkl")) == list("ghijkl"), "a section that reads ahead keeps no lock"
    for name in "ghijkl":
        (tmp_path / name).unlink()
    pipe = cached(tmp_path, "abcdef", between=lambda pipe: pipe.batch(3).unbatch())
    before = open_files()
    for stop in range(1, 6):
        paths = iter(pipe)
        for _ in range(stop):
            next(paths)
        del paths
        assert not locks._held
        assert open_files() == before
        assert names(pipe) == list("abcdef")
        for name in "abcdef":
            (tmp_path / name).unlink()
    paths = iter(pipe)  # The loop leaves the new epoch before its first item.
    del paths
    assert content(tmp_path) == {}


def test_a_section_without_end_caching_raises_an_error():
    section = IterableWrapper(["a"]).on_disk_cache()
    with pytest.raises(RuntimeError, match=r"call `end_caching\(\)` before iteration"):
        list(section.map(len))


def test_the_pipes_of_a_section_may_be_looked_at_without_its_end(tmp_path):
    list(cached(tmp_path, "b"))
    section = IterableWrapper([str(tmp_path / name) for name in "abc"]).on_disk_cache()
    section.map(Maker()).end_caching()
    assert names(section) == ["a", "c"]
    assert not locks._held


def test_each_end_caching_needs_its_own_beginning(tmp_path):
    with pytest.raises(RuntimeError, match="only be invoked once"):
        cached(tmp_path, "a").map(Maker()).end_caching()
