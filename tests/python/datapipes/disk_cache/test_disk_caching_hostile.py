"""The on-disk cache handles unusual file names, malicious files in its folder, and damaged cached files."""

import hashlib
import os
import random
import stat
import warnings
from pathlib import Path

import pytest

from cache_checks import Maker, cached, content, made, names, no_lock_is_left
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.iter.disk_cache.lists import FolderSearch, dumped, is_reserved, read_list
from torchdata.datapipes.iter.disk_cache.locks import lock_file_of
from torchdata.datapipes.iter.disk_cache.record import Record
from torchdata.datapipes.iter.streams.atomic_files import create_new, digest_of_file, temporary_name

__all__ = ["no_lock_is_left"]


def unpacking(folder, files, **options):
    calls = []

    def unpack(path):
        calls.append(path)
        return [(os.path.join(folder, name), data) for name, data in files.items()]

    item = os.path.join(folder, "pack")
    return IterableWrapper([item]).on_disk_cache(**options).flatmap(unpack).end_caching(), calls


def test_a_newline_in_the_name_of_a_member_names_no_other_file(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of the user's")
    folder = tmp_path / "cache"
    name = f"a\n{secret}"
    os.makedirs(folder / os.path.dirname(name))
    pipe, calls = unpacking(folder, {name: b"x", "b\\n\n": b"y", "c\\": b"z"})
    expected = [os.path.join(folder, name), f"{folder}/b\\n\n", f"{folder}/c\\"]
    for _ in range(3):
        assert list(pipe) == expected
    assert len(calls) == 1, "the list names only created files"
    assert str(secret) not in (folder / "pack.torchdata_list").read_text().splitlines()


def test_a_list_of_files_with_any_names_is_read_as_it_was_written(tmp_path):
    rng = random.Random(1)
    alphabet = ["\n", "\\", "n", "\\n", "/", "a", "\r", "é", "\udcff", " ", "\t", "\x85", "\u2028"]
    for _ in range(200):
        members = ["".join(rng.choices(alphabet, k=rng.randint(1, 9))) for _ in range(rng.randint(1, 5))]
        (tmp_path / "list").write_bytes(dumped(members))
        assert read_list(str(tmp_path / "list")) == members


def test_an_incomplete_list_of_files_does_not_count(tmp_path):
    for data in (b"", b"a", b"a\nb", b"a\\\n", b"a\\x\n", b"a\0\n"):
        (tmp_path / "list").write_bytes(data)
        assert read_list(str(tmp_path / "list")) is None
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(1 << 34)
    assert read_list(str(tmp_path / "huge")) is None


@pytest.mark.parametrize(
    "name",
    [
        "pack.torchdata_list",
        "Pack.TorchData_List",
        temporary_name("pack"),
        temporary_name("pack") + "-0123",
        temporary_name("pack", ".lock"),
        f"sub/{temporary_name('pack', '.LOCK')}/x",
    ],
)
def test_a_file_named_like_the_cache_s_own_files_is_refused(tmp_path, name):
    pipe, _ = unpacking(tmp_path, {"fine": b"1", name: b"2"})
    items = iter(pipe)
    assert names([next(items)]) == ["fine"]
    with pytest.raises(
        ValueError, match="EndOnDiskCacheHolder will not write .* reserves such names for its own files"
    ):
        next(items)
    del items
    assert not os.path.exists(tmp_path / name)
    assert is_reserved(name)
    assert not is_reserved("a" + name.replace(os.sep, "-") + ".txt")


def test_a_key_with_parent_folders_is_refused(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    pipe = IterableWrapper(["s3://bucket/../../../out"]).on_disk_cache().map(lambda key: (key, b"x")).end_caching()
    with pytest.raises(ValueError, match="URL contains '..'"):
        list(pipe)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("way", ["absolute", "climbing", "link to a file", "link to a folder", "folder", "pipe"])
def test_a_planted_list_names_only_regular_files_under_the_section_s_folder(tmp_path, way):
    outside, folder = tmp_path / "outside", tmp_path / "cache"
    outside.mkdir()
    folder.mkdir()
    (outside / "secret").write_text("secret")
    (folder / "file").symlink_to(outside / "secret")
    (folder / "link").symlink_to(outside)
    (folder / "sub").mkdir()
    os.mkfifo(folder / "fifo")
    planted = {
        "absolute": outside / "secret",
        "climbing": f"{folder}/../outside/secret",
        "link to a file": folder / "file",
        "link to a folder": folder / "link" / "secret",
        "folder": folder / "sub",
        "pipe": folder / "fifo",
    }[way]
    (folder / "pack.torchdata_list").write_bytes(dumped([str(planted)]))
    pipe, calls = unpacking(folder, {"mine": b"x"})
    for _ in range(2):
        assert list(pipe) == [str(folder / "mine")]
    assert len(calls) == 1
    assert (outside / "secret").read_text() == "secret"


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "socketless file"])
def test_a_list_that_is_not_a_regular_file_does_not_count_and_does_not_hang(tmp_path, kind):
    listed = tmp_path / "pack.torchdata_list"
    (tmp_path / "victim").write_bytes(dumped([str(tmp_path / "victim")]))
    before = (tmp_path / "victim").read_bytes()
    if kind == "pipe":
        os.mkfifo(listed)
    elif kind == "link":
        listed.symlink_to(tmp_path / "victim")
    elif kind == "socketless file":
        listed.touch()
    else:
        listed.mkdir()
    pipe, calls = unpacking(tmp_path, {"mine": b"x"})
    if kind == "folder":
        with pytest.raises(OSError, match=r"pack\.torchdata_list"):
            list(pipe)
    else:
        for _ in range(2):
            assert list(pipe) == [str(tmp_path / "mine")]
        assert len(calls) == 1
        assert stat.S_ISREG(listed.lstat().st_mode)
    assert (tmp_path / "victim").read_bytes() == before


def test_members_elsewhere_are_recreated_with_a_warning_unless_the_folder_is_named(tmp_path):
    lists, files = tmp_path / "lists", tmp_path / "files"

    def section(**options):
        made_of = IterableWrapper([str(lists / "pack")]).on_disk_cache(**options)
        return made_of.map(lambda path: calls.append(path) or (str(files / "a"), b"x")).end_caching()

    calls = []
    for times in (1, 2):
        with pytest.warns(RuntimeWarning, match=r"is outside of '.*lists'.*on_disk_cache\(folder=\.\.\.\)"):
            assert list(section()) == [str(files / "a")]
        assert len(calls) == times
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert list(section(folder=tmp_path)) == [str(files / "a")]
    assert len(calls) == 3
    with pytest.raises(TypeError, match="OnDiskCacheHolder: folder must be a path, but got 3"):
        IterableWrapper([]).on_disk_cache(folder=3)


def test_folders_that_are_reached_by_links_and_relative_paths_are_the_same_folder(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    within = FolderSearch("link")
    for path in ("link/a", "real/a", f"{tmp_path}/real/a", "link/../real/a"):
        (tmp_path / "real" / "a").touch()
        assert within(path)
    assert not within("a")
    assert not within("link")
    for _ in range(2):
        pipe, calls = unpacking("link", {"a": b"x"})
        assert list(pipe) == ["link/a"]
    assert calls == []


@pytest.mark.parametrize("how", ["hash_dict", "extra_check_fn"])
@pytest.mark.parametrize("folder_item", [False, True])
def test_damaged_members_are_recreated_like_single_files(tmp_path, how, folder_item):
    files = {f"{'pack/' if folder_item else ''}{name}": f"content of {name}".encode() for name in "abc"}
    paths = {os.path.join(tmp_path, name): data for name, data in files.items()}
    options = {
        "hash_dict": {"hash_dict": {path: hashlib.sha256(data).hexdigest() for path, data in paths.items()}},
        "extra_check_fn": {"extra_check_fn": lambda path: Path(path).read_bytes() == paths[path]},
    }[how]
    pipe, calls = unpacking(tmp_path, files, **options)
    assert list(pipe) == list(pipe) == [*paths]
    assert len(calls) == 1
    victim = tmp_path / [*files][1]
    victim.write_bytes(b"damaged")
    assert list(pipe) == [*paths]
    assert victim.read_bytes() == paths[str(victim)]
    assert len(calls) == 2
    planted = tmp_path / os.path.dirname(next(iter(files))) / "planted"
    planted.write_bytes(b"not of the dictionary")
    (tmp_path / "pack.torchdata_list").write_bytes(dumped([*paths, str(planted)]))
    if how == "hash_dict":
        assert list(pipe) == [*paths]
    else:
        with pytest.raises(KeyError):
            list(pipe)


def test_a_link_under_a_predictable_name_does_not_truncate_a_file(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "cache"
    folder.mkdir()
    # The cache writes the marker file of the archive `pack` to a file of this name first, and then renames the file.
    (folder / temporary_name("pack")).symlink_to(victim)
    (folder / temporary_name("a")).symlink_to(victim)
    pipe, _ = unpacking(folder, {"pack/x": b"new"})
    assert list(pipe) == [f"{folder}/pack/x"]
    assert names(cached(folder, ["a"])) == ["a"]
    for name in ("create", "mark"):
        (folder / name).symlink_to(victim)
    create_new(str(folder / "create")).close()
    os.makedirs(folder / "sub")
    (folder / temporary_name("sub")).symlink_to(victim)
    Record("item", (str(folder / "sub"),), "missing").mark_unfinished(str(folder / "sub" / "x"))
    assert victim.read_text() == "precious"
    assert victim.stat().st_mode & 0o777 == 0o644


def test_a_dangling_link_as_a_marker_marks_a_folder_as_unfinished(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / temporary_name("a")).symlink_to("nowhere")
    with pytest.raises((IsADirectoryError, OSError)):
        list(cached(tmp_path, ["a"]))


def test_a_named_pipe_instead_of_a_file_counts_as_missing_and_does_not_hang(tmp_path):
    digests = {str(tmp_path / "a"): hashlib.sha256(b"content of a").hexdigest()}
    for options in ({}, {"hash_dict": digests}):
        os.mkfifo(tmp_path / "a")
        maker = Maker()
        assert names(cached(tmp_path, ["a"], maker, **options)) == ["a"]
        assert maker.made == ["a"]
        assert content(tmp_path) == made("a")
        (tmp_path / "a").unlink()
    os.mkfifo(tmp_path / "b")
    with pytest.raises(OSError, match="not a regular file"):
        digest_of_file(str(tmp_path / "b"), "sha256")


@pytest.mark.parametrize("kind", ["pipe", "link", "dangling link", "folder"])
def test_another_object_instead_of_the_lock_file_is_ignored_with_a_warning(tmp_path, kind):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    victim.chmod(0o600)
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o777)
    lock = Path(lock_file_of(str(folder / "a")))
    if kind == "pipe":
        os.mkfifo(lock)
    elif kind == "folder":
        lock.mkdir()
    else:
        lock.symlink_to(victim if kind == "link" else tmp_path / "new")
    with pytest.warns(RuntimeWarning, match="cannot lock files in .* or its name is already in use"):
        assert names(cached(folder, ["a"])) == ["a"]
    assert victim.read_text() == "precious"
    assert victim.stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "new").exists()


def test_lists_in_the_form_of_torchdata_0_9_are_read(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(name)
    (tmp_path / "pack.torchdata_list").write_text(f"{tmp_path}/a\n{tmp_path}/b\n")
    pipe, calls = unpacking(tmp_path, {"c": b"x"})
    assert names(pipe) == ["a", "b"]
    assert calls == []
