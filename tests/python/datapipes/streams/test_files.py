"""FileLister, FileOpener and StreamReader list, open and read files."""

import copy
import io
import os
import pickle

import pytest

from programs import output_of
from refusals import refuses
from stream_checks import check_restore, open_files
from torchdata.datapipes import iter as pipes

NAMES = ["b.txt", "a.txt", "c.png", "sub/x.txt", "sub/deep/y.png", "other/z.txt", "empty/"]


@pytest.fixture
def folder(tmp_path):
    for name in NAMES:
        target = tmp_path / name
        if name.endswith("/"):
            target.mkdir()
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(f"content of {name}\n")
    (tmp_path / "sub" / "link").symlink_to(tmp_path / "other", target_is_directory=True)
    return str(tmp_path)


def relative(folder, paths):
    return [os.path.relpath(path, folder) for path in paths]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, ["a.txt", "b.txt", "c.png"]),
        ({"masks": "*.txt"}, ["a.txt", "b.txt"]),
        ({"masks": ["*.png", "b*"]}, ["b.txt", "c.png"]),
        ({"masks": []}, ["a.txt", "b.txt", "c.png"]),
        ({"recursive": True}, ["a.txt", "b.txt", "c.png", "other/z.txt", "sub/x.txt", "sub/deep/y.png"]),
        ({"recursive": True, "masks": "*.png"}, ["c.png", "sub/deep/y.png"]),
    ],
)
def test_files_are_listed_in_the_order_of_their_names(folder, options, found):
    assert relative(folder, pipes.FileLister(folder, **options)) == found


def test_unordered_listing_finds_the_same_files(folder):
    ordered = list(pipes.FileLister(folder, recursive=True))
    assert sorted(pipes.FileLister(folder, recursive=True, non_deterministic=True)) == sorted(ordered)


def test_absolute_paths_are_yielded_on_demand(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert list(pipes.FileLister("sub", abspath=True)) == [os.path.join(folder, "sub", "x.txt")]
    assert list(pipes.FileLister("sub")) == ["sub/x.txt"]
    assert list(pipes.FileLister("a.txt", abspath=True)) == [os.path.join(folder, "a.txt")]


def test_roots_come_from_a_list_or_a_pipe_and_may_be_files(folder):
    roots = [os.path.join(folder, name) for name in ("sub", "a.txt", "empty")]
    found = ["sub/x.txt", "a.txt"]
    assert relative(folder, pipes.FileLister(roots)) == found
    assert relative(folder, pipes.IterableWrapper(roots).list_files()) == found


def test_a_missing_root_raises_an_error_that_names_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere") as failure:
        list(pipes.FileLister(str(tmp_path / "nowhere")))
    assert any("FileLister" in note for note in failure.value.__notes__)


@pytest.mark.parametrize(
    "make",
    [
        pipes.FileLister,
        pipes.FileOpener,
        pipes.TarArchiveLoader,
        pipes.ZipArchiveLoader,
        pipes.RarArchiveLoader,
        pipes.Bz2FileLoader,
        pipes.TFRecordLoader,
    ],
)
def test_the_length_is_the_length_that_the_user_declared(make):
    assert len(make([], length=7)) == 7
    with pytest.raises(TypeError, match="valid length"):
        len(make([]))
    with pytest.raises(ValueError, match="length"):
        make([], length=-2)
    with pytest.raises(TypeError, match="length"):
        make([], length="7")


test_wrong_arguments_are_refused_by_the_constructor = refuses(
    (lambda: pipes.FileLister(5), TypeError, "FileLister"),
    (lambda: pipes.FileLister(".", masks=5), TypeError, "masks"),
    (lambda: pipes.FileOpener(["a"], mode="w"), ValueError, "Invalid mode"),
    (lambda: pipes.FileOpener(["a"], mode="rb", encoding="utf-8"), ValueError, "encoding"),
    (lambda: pipes.FileOpener("a.txt"), TypeError, "wrap it"),
    (lambda: pipes.FileOpener(3), TypeError, "FileOpener"),
    (lambda: pipes.StreamReader([], chunk=0), ValueError, "chunk"),
    (lambda: pipes.StreamReader([], chunk="1"), TypeError, "chunk"),
)


@pytest.mark.parametrize(
    ("mode", "encoding", "content"),
    [("b", None, b"\xe9"), ("rb", None, b"\xe9"), ("r", "latin-1", "é"), ("t", "latin-1", "é")],
)
def test_files_are_opened_in_the_mode_asked_for(tmp_path, mode, encoding, content):
    (tmp_path / "a.txt").write_bytes(b"\xe9")
    [(path, stream)] = pipes.FileOpener([str(tmp_path / "a.txt")], mode=mode, encoding=encoding)
    assert (path, stream.read()) == (str(tmp_path / "a.txt"), content)


def test_opening_an_invalid_or_missing_path_raises_an_error(tmp_path):
    with pytest.raises(TypeError, match="string type for pathname"):
        list(pipes.FileOpener([5]))
    for path, error in ((str(tmp_path / "absent"), FileNotFoundError), (str(tmp_path), IsADirectoryError)):
        with pytest.raises(error, match=path) as failure:
            list(pipes.FileOpener([path]))
        assert f"FileOpener cannot open {path!r}." in failure.value.__notes__


def test_opening_many_files_keeps_one_open(folder):
    before = open_files()
    for _ in pipes.FileLister(folder, recursive=True).open_files():
        assert open_files() <= before + 2


def test_a_shuffle_buffer_of_open_files_is_restored(folder):
    check_restore(
        lambda: pipes.FileLister(folder, recursive=True).open_files().shuffle(buffer_size=3).set_seed(1), seeded=True
    )


@pytest.mark.parametrize(("chunk", "mode"), [(None, "b"), (None, "t"), (1, "b"), (5, "t"), (1000, "b")])
def test_streams_are_read_whole_or_in_chunks_and_restored_within(folder, chunk, mode):
    def build():
        return pipes.FileLister(folder).open_files(mode=mode).read_from_stream(chunk=chunk)

    items = check_restore(build)
    joined: dict[str, str] = {}
    for path, content in items:
        text = content.decode() if mode == "b" else content
        assert len(text) <= (chunk or 10**6)
        joined[os.path.basename(path)] = joined.get(os.path.basename(path), "") + text
    assert joined == {name: f"content of {name}\n" for name in ("a.txt", "b.txt", "c.png")}
    streams = [("a", io.StringIO("abc")), ("b", io.StringIO("")), ("c", io.StringIO("de"))]
    found = check_restore(lambda: pipes.IterableWrapper(streams).read_from_stream(chunk=chunk))
    assert len(found) == sum(-(-length // (chunk or 10)) for length in (3, 2)), "an empty stream yields nothing"


def test_items_that_are_not_pairs_of_path_and_stream_are_refused():
    for item in ("path", ("path",), (1, io.BytesIO())):
        with pytest.raises(TypeError, match="StreamReader expects"):
            list(pipes.StreamReader([item]))


def test_an_error_while_reading_names_the_path(tmp_path):
    (tmp_path / "bad").write_bytes(b"\xff\xff")
    with pytest.raises(UnicodeDecodeError) as failure:
        list(pipes.FileOpener([str(tmp_path / "bad")], mode="t", encoding="utf-8").read_from_stream())
    assert any("bad" in note and "StreamReader" in note for note in failure.value.__notes__)


def test_a_pipe_in_the_middle_of_a_file_is_copied_without_it(folder):
    pipe = pipes.FileLister(folder).open_files().read_from_stream(chunk=3)
    items = iter(pipe)
    first = next(items)
    for twin in (copy.deepcopy(pipe), pickle.loads(pickle.dumps(pipe))):
        assert next(iter(twin)) == first
    assert next(items) != first


def test_no_warning_about_open_files_at_any_exit():
    script = """
from torchdata.datapipes.iter import FileLister
pipe = FileLister("/etc", "host*").open_files(mode="b").read_from_stream(chunk=1)
items = iter(pipe)
next(items)
other = iter(FileLister("/etc", "host*").open_files())
kept = next(other)
"""
    output_of(script, options=["-X", "dev", "-W", "error"])
