"""Saver, HashChecker and JsonParser work with real files and streams."""

import hashlib
import io
import json
import os
import signal
import stat
import subprocess
import sys

import pytest

from stream_checks import check_restore, open_files
from torchdata.datapipes import iter as pipes
from torchdata.datapipes.utils import StreamWrapper
from torchdata.datapipes.utils.names import file_name


def sha256(data):
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("mode", "data"),
    [("w", "text"), ("t", "text"), ("wt", "text"), ("b", b"bytes"), ("wb", bytearray(b"bytes")), ("bw", b"bytes")],
)
def test_data_are_written_to_the_path_and_the_path_is_yielded(tmp_path, mode, data):
    path = str(tmp_path / "new" / "folder" / "file")
    assert list(pipes.IterableWrapper([(path, data)]).save_to_disk(mode=mode)) == [path]
    found = (tmp_path / "new" / "folder" / "file").read_bytes()
    assert found == (data.encode() if isinstance(data, str) else data)


def test_a_key_with_parent_folders_is_not_a_local_path(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    items = pipes.IterableWrapper([("s3://bucket/../../../outside", b"x")])
    for pipe in (items.save_to_disk("wb"), items.save_by_fsspec("wb")):
        with pytest.raises(ValueError, match=r"will not write to 's3://bucket/\.\./\.\./\.\./outside'.*filepath_fn"):
            list(pipe)
    assert os.listdir(tmp_path) == ["here"]
    assert os.listdir(tmp_path / "here") == []
    assert list(items.save_to_disk("wb", filepath_fn=file_name)) == ["outside"]


def test_filepath_fn_returns_the_path_which_may_lie_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pipe = pipes.Saver(
        pipes.IterableWrapper([({"id": 1}, b"one"), ({"id": 2}, b"two")]), "wb", lambda meta: f"{meta['id']}.bin"
    )
    assert list(pipe) == ["1.bin", "2.bin"]
    assert sorted(os.listdir()) == ["1.bin", "2.bin"]
    assert len(pipe) == 2


def test_new_files_get_the_usual_permissions_and_replaced_files_keep_theirs(tmp_path):
    (tmp_path / "old").write_text("before, and longer")
    os.chmod(tmp_path / "old", 0o604)
    list(pipes.Saver([(str(tmp_path / name), "after") for name in ("old", "new")]))
    (tmp_path / "usual").write_text("")
    mode = {name: stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in ("old", "new", "usual")}
    assert mode["old"] == 0o604
    assert mode["new"] == mode["usual"]
    assert (tmp_path / "old").read_text() == "after"


def test_a_read_only_file_is_not_replaced(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("before")
    monkeypatch.setattr(os, "access", lambda *_: False)  # simulates a read-only file for a user other than root
    with pytest.raises(PermissionError, match=r"file"):
        list(pipes.Saver([(str(path), "after")]))
    assert path.read_text() == "before"


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    (tmp_path / "target").write_text("before")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "dangling").symlink_to("new/target")
    list(pipes.Saver([(str(tmp_path / name), name) for name in ("link", "dangling")]))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "link"
    assert (tmp_path / "new" / "target").read_text() == "dangling"


def test_a_device_is_written_to_and_not_replaced():
    assert list(pipes.Saver([(os.devnull, "x")])) == [os.devnull]
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.parametrize("saver", [pipes.Saver, pipes.FSSpecSaver, pipes.IoPathSaver])
@pytest.mark.parametrize("name", ["n" * 255, "\u6f22" * 85], ids=["ascii", "three bytes each"])
def test_names_as_long_as_the_file_system_allows_are_written(tmp_path, saver, name):
    [path] = saver([(str(tmp_path / name), "x")])
    assert os.listdir(tmp_path) == [os.path.basename(path)] == [name]


@pytest.mark.parametrize(("mode", "data"), [("wb", "text"), ("w", b"bytes"), ("wb", None), ("wb", io.BytesIO(b"x"))])
def test_data_that_do_not_fit_the_mode_are_an_error_and_leave_the_old_file(tmp_path, mode, data):
    path = tmp_path / "file"
    path.write_text("before")
    before = open_files()
    with pytest.raises(TypeError) as failure:
        list(pipes.Saver([(str(path), data)], mode))
    assert f"Saver was writing {str(path)!r} in mode {mode!r}." in failure.value.__notes__
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_text() == "before"
    assert open_files() == before


def test_a_file_that_cannot_be_written_raises_an_error_that_names_it_in_each_epoch(tmp_path):
    (tmp_path / "file").write_text("no folder")
    pipe = pipes.Saver(pipes.IterableWrapper([(str(tmp_path / "file" / "below"), "x")]))
    for _ in range(2):
        with pytest.raises(OSError) as failure:  # noqa: PT011
            list(pipe)
        assert any("below" in note for note in failure.value.__notes__)


@pytest.mark.parametrize("items", [["path"], [("a", "b", "c")], [(5, "x")], [(None, "x")]])
def test_an_item_that_is_not_a_pair_of_path_and_data_raises_an_error(items):
    with pytest.raises(TypeError, match="Saver (expects pairs|needs a path)"):
        list(pipes.Saver(items))


def test_a_process_that_is_killed_leaves_no_half_file_under_the_name(tmp_path):
    program = f"""
import os, signal
from torchdata.datapipes.iter import Saver
os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
list(Saver([({str(tmp_path / "file")!r}, "x" * 100_000)]))
"""
    (tmp_path / "file").write_text("before")
    done = subprocess.run([sys.executable, "-c", program], timeout=250)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "file").read_text() == "before"


BLOBS = {"a.bin": b"alpha\n" * 9, "b.bin": b"", "c.bin": bytes(range(256)) * 9000}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("hashed")
    for name, content in BLOBS.items():
        (root / name).write_bytes(content)
    return root


def sums(folder, tool):
    lines = subprocess.run([tool, *sorted(folder.iterdir())], capture_output=True, text=True, check=True).stdout
    return {path: digest for digest, path in (line.split("  ") for line in lines.splitlines())}


@pytest.mark.parametrize(("hash_type", "tool"), [("sha256", "sha256sum"), ("md5", "md5sum")])
def test_streams_with_the_right_hash_are_rewound(folder, hash_type, tool):
    def build():
        files = pipes.FileLister(str(folder)).open_files(mode="b")
        return files.check_hash(sums(folder, tool), hash_type)

    assert [content for _, content in check_restore(build)] == [*BLOBS.values()]


def test_a_bare_stream_is_yielded_in_a_wrapper_and_other_data_unchanged():
    items = [("bytes", b"\xffx"), ("array", bytearray(b"x")), ("text", "été")]
    hashes = {"bytes": sha256(b"\xffx"), "array": sha256(b"x").upper(), "text": sha256("été".encode())}
    pipe = pipes.HashChecker(pipes.IterableWrapper(items), hashes)
    assert list(pipe) == items
    assert len(pipe) == 3
    wrapped = StreamWrapper(io.BytesIO(b"x"))
    pipe = pipes.HashChecker([("a", io.BytesIO(b"x")), ("a", wrapped)], {"a": sha256(b"x")})
    (_, first), (_, second) = pipe
    assert isinstance(first, StreamWrapper)
    assert first.read() == b"x"
    assert second is wrapped


@pytest.mark.parametrize(
    ("expected", "hash_type", "message"),
    [
        (
            sha256(b"other"),
            "sha256",
            r"sha256 hash .* of '.*a\.bin' does not match the expected hash .*; delete the file",
        ),
        (sha256(b"other"), "md5", r"md5 hash .* of '.*a\.bin'.*md5' has 32 digits"),
        (None, "md5", r"Unspecified hash for file '.*a\.bin'; add it"),
    ],
)
def test_a_wrong_hash_raises_an_error_that_names_pipe_and_path_and_closes_the_file(
    folder, expected, hash_type, message
):
    before = open_files()
    path = str(folder / "a.bin")
    pipe = pipes.FileOpener([path], mode="b").check_hash({path: expected} if expected else {}, hash_type)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=f"HashChecker.*{message}"):
            list(pipe)
        assert open_files() == before


def test_a_stream_that_cannot_rewind_raises_an_error_before_it_is_read(folder):
    path = str(folder / "a.bin")
    for rewind in (True, False):
        with subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as process:
            pipe = pipes.HashChecker([(path, process.stdout)], {path: sha256(BLOBS["a.bin"])}, rewind=rewind)
            if rewind:
                with pytest.raises(io.UnsupportedOperation, match=r"a\.bin'; pass rewind=False"):
                    list(pipe)
                assert process.stdout.read() == BLOBS["a.bin"]
            else:
                [(name, stream)] = pipe
                assert (name, stream.read()) == (path, b""), "the stream is at its end"


def test_a_stream_open_as_text_raises_an_error(folder):
    path = str(folder / "a.bin")
    with pytest.raises(TypeError, match=r"a\.bin' is open as text; open it with mode='b'"):
        list(pipes.FileOpener([path], mode="t").check_hash({path: sha256(BLOBS["a.bin"])}))


def test_a_large_stream_is_not_read_at_once():
    class Zeros(io.RawIOBase):
        left, largest = 64 << 20, 0

        def readable(self):
            return True

        def read(self, size=-1):
            Zeros.largest = max(self.largest, size if size >= 0 else self.left)
            data = bytes(min(size, self.left))
            self.left -= len(data)
            return data

    digest = hashlib.sha256()
    for _ in range(64):
        digest.update(bytes(1 << 20))
    assert len(list(pipes.HashChecker([("z", Zeros())], {"z": digest.hexdigest()}, rewind=False))) == 1
    assert 0 < Zeros.largest <= 1 << 20


@pytest.mark.parametrize("mode", ["b", "t"])
def test_json_files_are_parsed_and_restored(tmp_path, mode):
    values = [{"a": [1, None, "é"]}, [], "text", 1.5, None]
    for number, value in enumerate(values):
        (tmp_path / f"{number}.json").write_text(json.dumps(value))
    build = lambda: pipes.FileLister(str(tmp_path)).open_files(mode=mode).parse_json_files()  # noqa: E731
    assert [value for _, value in check_restore(build)] == values


def test_options_are_passed_to_json():
    pipe = pipes.JsonParser([("a", io.StringIO('{"x": 1.5}'))], parse_float=str, object_pairs_hook=list)
    assert list(pipe) == [("a", [("x", "1.5")])]


@pytest.mark.parametrize("text", ["", '{"a": 1', "[1, 2]]", "{'a': 1}", "nul"])
@pytest.mark.parametrize("mode", ["b", "t"])
def test_an_error_names_path_and_position_of_invalid_json(tmp_path, text, mode):
    (tmp_path / "bad.json").write_text(text)
    before = open_files()
    pipe = pipes.FileLister(str(tmp_path)).open_files(mode=mode).parse_json_files()
    for _ in range(2):
        with pytest.raises(json.JSONDecodeError, match=r"JsonParser cannot parse '.*bad\.json': .*line 1 column"):
            list(pipe)
        assert open_files() == before


def test_json_that_is_nested_too_deeply_or_does_not_decode_raises_a_value_error_that_names_the_path():
    for text, message in (
        (b"[" * 200_000, r"JsonParser cannot parse 'deep\.json': it is nested too deeply"),
        (b'{"a":' * 200_000, r"JsonParser cannot parse 'deep\.json': it is nested too deeply"),
        (b'"\xff\xff"', r"deep\.json', read by JsonParser"),
    ):
        with pytest.raises(ValueError, match=message):
            list(pipes.IterableWrapper([("deep.json", io.BytesIO(text))]).parse_json_files())
