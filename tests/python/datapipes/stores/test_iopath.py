"""IoPathFileLister, IoPathFileOpener and IoPathSaver work with local files and with user-defined path handlers."""

import os

import pytest
from iopath.common.file_io import HTTPURLHandler, PathHandler, PathManager

from refusals import refuses
from stream_checks import check_restore, read
from torchdata.datapipes.iter import IoPathFileLister, IoPathFileOpener, IoPathSaver, IterableWrapper

NAMES = ["a.txt", "b.txt", "c.png", "été 100%.txt"]


@pytest.fixture
def folder(tmp_path):
    for name in NAMES:
        (tmp_path / name).write_text(f"content of {name}\n")
    (tmp_path / "sub").mkdir()
    return str(tmp_path)


class Elsewhere(PathHandler):
    def _get_supported_prefixes(self):
        return ["else:"]

    def _local(self, path):
        return path.removeprefix("else:")

    def _isfile(self, path, **options):
        return os.path.isfile(self._local(path))

    def _ls(self, path, **options):
        return sorted(os.listdir(self._local(path)), reverse=True)

    def _open(self, path, mode="r", buffering=-1, **options):
        return open(self._local(path), mode)


def test_local_names_are_yielded_in_order_with_the_path_of_their_root(folder):
    assert list(IoPathFileLister(folder)) == [f"{folder}/{name}" for name in sorted([*NAMES, "sub"])]
    assert list(IoPathFileLister(folder + "/", "*.png")) == [f"{folder}/c.png"]


def test_roots_come_from_a_list_or_a_pipe_and_may_be_files(folder):
    roots = [f"{folder}/b.txt", folder]
    found = [f"{folder}/b.txt", f"{folder}/a.txt", f"{folder}/b.txt"]
    assert list(IoPathFileLister(roots, "?.txt")) == found
    assert list(IterableWrapper(roots).list_files_by_iopath(masks="?.txt")) == found


def test_a_handler_lists_opens_and_saves_in_its_own_order(folder):
    names = list(IoPathFileLister(f"else:{folder}", "?.txt", handler=Elsewhere()))
    assert names == [f"else:{folder}/b.txt", f"else:{folder}/a.txt"]
    found = [read(item) for item in IoPathFileOpener(names, handler=Elsewhere())]
    assert found == [(names[0], "content of b.txt\n"), (names[1], "content of a.txt\n")]
    target = f"else:{folder}/new"
    for data in ("one", "two"):  # the second call replaces the file of the first call
        assert list(IoPathSaver([(target, data)], handler=Elsewhere())) == [target]
        with open(f"{folder}/new") as file:
            assert file.read() == data
    check_restore(lambda: IoPathFileLister(f"else:{folder}", handler=Elsewhere()))


def test_a_path_manager_is_used_as_it_is_and_handlers_are_added_to_it(folder):
    manager = PathManager()
    manager.register_handler(Elsewhere())
    assert len(list(IoPathFileLister(f"else:{folder}", pathmgr=manager))) == 5
    other = PathManager()
    pipe = IoPathFileLister(f"else:{folder}", pathmgr=other)
    assert pipe.pathmgr is other
    for missing in (pipe, IoPathFileOpener([f"{folder}/else:"])):
        with pytest.raises(FileNotFoundError) as failure:
            list(missing)
        assert any(type(missing).__name__ in note and "else:" in note for note in failure.value.__notes__)
    pipe.register_handler(Elsewhere())
    assert len(list(pipe)) == 5
    with pytest.raises(KeyError, match="else:"):
        pipe.register_handler(Elsewhere())
    pipe.register_handler(Elsewhere(), allow_override=True)


def test_each_pipe_has_a_path_manager_of_its_own_for_urls():
    pipes = [IoPathFileLister("x"), IoPathFileOpener([]), IoPathSaver([])]
    assert len({id(pipe.pathmgr) for pipe in pipes}) == 3
    for pipe in pipes:
        with pytest.raises(KeyError, match="http"):
            pipe.register_handler(HTTPURLHandler())


def test_files_are_opened_in_the_mode_asked_for_and_restored(folder):
    contents = [f"content of {name}\n" for name in NAMES]
    pipe = IoPathFileLister(folder, "*.*").open_files_by_iopath(mode="rt")
    assert [content for _, content in map(read, pipe)] == contents
    build = lambda: IoPathFileLister(folder, ["?.txt", "*.*"]).open_files_by_iopath(mode="rb")  # noqa: E731
    assert [content for _, content in check_restore(build)] == [content.encode() for content in contents]


@pytest.mark.parametrize(("mode", "data"), [("w", "text"), ("wb", bytearray(b"x"))])
def test_data_are_saved_in_new_directories_and_the_path_is_yielded(tmp_path, mode, data):
    target = f"{tmp_path}/new/folder/file"
    assert list(IoPathSaver([("file", data)], mode, lambda name: f"{tmp_path}/new/folder/{name}")) == [target]
    with open(target, "rb") as file:
        assert file.read() == (data.encode() if mode == "w" else data)
    assert os.listdir(os.path.dirname(target)) == ["file"]
    with pytest.raises(TypeError, match=rf"IoPathSaver cannot save '{tmp_path}/bad'.*{mode}.*int"):
        list(IoPathSaver([(f"{tmp_path}/bad", 5)], mode))


def test_an_existing_file_is_not_changed(tmp_path):
    target = tmp_path / "file"
    assert list(IoPathSaver([(str(target), "first"), (str(target), "second")])) == [str(target)] * 2
    assert target.read_text() == "first"


@pytest.mark.parametrize("links", [True, False])
def test_if_two_processes_save_the_same_file_at_once_the_first_wins_and_nothing_is_left(tmp_path, monkeypatch, links):
    target = tmp_path / "file"
    if not links:  # Some file systems have no hard links.

        def refused(*args):
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr("torchdata.datapipes.iter.streams.atomic_files.os.link", refused)

    class Late(IoPathSaver):
        def _write(self, path, data):
            super()._write(path, data)
            if data == "second":
                target.write_text("first")

    list(Late([(str(target), "second")]))
    assert target.read_text() == "first"
    target.unlink()
    list(Late([(str(target), "alone")]))
    assert target.read_text() == "alone"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_that_cannot_be_written_completely_does_not_appear(tmp_path):
    class Breaking(IoPathSaver):
        def _write(self, path, data):
            with open(path, "w") as file:
                file.write(data[:3])
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space") as failure:
        list(Breaking([(f"{tmp_path}/file", "content")]))
    assert any("cannot save" in note and f"{tmp_path}/file" in note for note in failure.value.__notes__)
    assert os.listdir(tmp_path) == []


test_wrong_values_are_refused_with_a_reason = refuses(
    (lambda: IoPathFileLister(5), TypeError, "IoPathFileLister"),
    (lambda: IoPathFileLister("x", pathmgr=5), TypeError, "IoPathFileLister: pathmgr"),
    (lambda: IoPathFileLister("x", handler=5), TypeError, "IoPathFileLister: handler"),
    (lambda: list(IoPathFileLister([5])), TypeError, "IoPathFileLister.*5"),
    (lambda: IoPathFileOpener([], "q"), ValueError, "IoPathFileOpener: mode"),
    (lambda: IoPathSaver("a.txt"), TypeError, "IoPathSaver.*wrap it"),
    (lambda: IoPathSaver([], "r"), ValueError, "IoPathSaver: mode.*'wb'"),
    (lambda: IoPathSaver([], filepath_fn="x"), TypeError, "IoPathSaver: filepath_fn"),
    (lambda: list(IoPathSaver(["x"])), ValueError, "IoPathSaver expects pairs.*'x'"),
)
