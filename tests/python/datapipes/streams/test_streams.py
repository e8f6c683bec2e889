"""A StreamWrapper delegates to its file, and closes the file together with its children."""

import copy
import gc
import io
import os
import pickle
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stream_checks import check_restore, open_files
from torchdata.datapipes.iter import FileLister, FileOpener, IterableWrapper
from torchdata.datapipes.utils import StreamWrapper, janitor


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "file.txt"
    file.write_bytes("première\nsecond\nthird\n".encode())
    return str(file)


def opened(path, mode="rb", encoding=None):
    [(_, stream)] = IterableWrapper([path]).open_files(mode=mode, encoding=encoding)
    return stream


def test_a_wrapper_delegates_the_attributes_that_it_lacks():
    stream = StreamWrapper(io.BytesIO(b"one\ntwo\n"), name="memory")
    assert stream.readline() == b"one\n"
    assert list(stream) == [b"two\n"]
    assert "memory" in repr(stream)
    assert "getvalue" in dir(stream)
    with pytest.raises(AttributeError):
        _ = stream.no_such_thing


def test_iterating_keeps_an_otherwise_unreferenced_wrapper_open(path):
    lines = iter(opened(path))
    gc.collect()
    assert len(list(lines)) == 3


def test_a_with_block_and_garbage_both_close_the_file(path):
    before = open_files()
    with opened(path) as stream:
        assert open_files() == before + 1
    assert stream.closed
    assert open_files() == before
    stream = opened(path)
    del stream
    assert open_files() == before


def test_closing_twice_is_closing_once():
    class Counted(io.BytesIO):
        closings = 0

        def close(self):
            Counted.closings += 1
            super().close()

    stream = StreamWrapper(Counted())
    stream.close()
    stream.close()
    assert Counted.closings == 1


def test_a_parent_with_autoclose_closes_with_its_last_child():
    parent = StreamWrapper(io.BytesIO(b"p"))
    first, second = (StreamWrapper(io.BytesIO(b"c"), parent) for _ in range(2))
    parent.autoclose()
    assert parent.child_counter == 2
    first.close()
    assert not parent.closed
    second.close()
    assert parent.closed
    childless = StreamWrapper(io.BytesIO(b"p"))
    childless.autoclose()
    assert childless.closed
    with pytest.raises(RuntimeError, match="Parent stream should be StreamWrapper"):
        StreamWrapper(io.BytesIO(), io.BytesIO())


def test_close_streams_and_janitor_reach_into_structures():
    streams = [StreamWrapper(io.BytesIO()) for _ in range(4)]
    StreamWrapper.close_streams({"a": [streams[0], (streams[1],)]})
    janitor(("path", streams[2]))
    assert [stream.closed for stream in streams] == [True, True, True, False]


def test_unclosed_streams_are_listed_while_debugging(monkeypatch):
    monkeypatch.setattr(StreamWrapper, "debug_unclosed_streams", True)
    stream = StreamWrapper(io.BytesIO())
    assert stream in StreamWrapper.session_streams
    stream.close()
    assert stream not in StreamWrapper.session_streams


@pytest.mark.parametrize(
    ("mode", "encoding", "copied"),
    [("rb", None, copy.deepcopy), ("rt", "utf-8", lambda stream: pickle.loads(pickle.dumps(stream)))],
)
def test_a_copy_has_the_position_of_the_original(path, mode, encoding, copied):
    whole = opened(path, mode, encoding).read()
    for position in range(len(whole) + 1):
        stream = opened(path, mode, encoding)
        assert stream.read(position) == whole[:position]
        twin = copied(copied(stream))
        assert twin.read() == whole[position:]
        assert stream.read() == whole[position:]


def test_a_copy_opens_its_file_on_first_use(path):
    before = open_files()
    stream = pickle.loads(pickle.dumps(opened(path)))
    assert open_files() == before
    assert "file.txt" in repr(stream)
    stream.read(1)
    assert open_files() == before + 1
    stream.close()
    assert open_files() == before


def test_a_closed_stream_stays_closed_in_its_copy(path):
    stream = opened(path)
    stream.close()
    twin = pickle.loads(pickle.dumps(stream))
    assert twin.closed
    pending = pickle.loads(pickle.dumps(opened(path)))
    pending.close()
    with pytest.raises(ValueError, match="closed stream"):
        pending.read()


def test_binary_files_that_were_opened_by_path_and_files_in_memory_need_no_recipe(path):
    for stream in (StreamWrapper(open(path, "rb")), StreamWrapper(io.BytesIO(b"abcdef"))):  # noqa: SIM115
        stream.read(3)
        assert pickle.loads(pickle.dumps(stream)).read() == stream.read()
    stream = StreamWrapper(open(path, "rb"))  # noqa: SIM115
    os.rename(path, path + ".old")
    with open(path, "w") as other:
        other.write("something else")
    with pytest.raises(TypeError, match="it does not have a recipe to reopen it"):
        pickle.dumps(stream)


def test_pickling_a_stream_without_recipe_raises_an_error_that_explains_it():
    left, right = socket.socketpair()
    with left, right:
        stream = StreamWrapper(left.makefile("rb"), name="from the network")
        with pytest.raises(TypeError, match=r"from the network.*recipe=") as failure:
            pickle.dumps(stream)
        assert "read it before" in str(failure.value)
        stream.close()


def test_a_text_stream_that_is_being_iterated_has_no_known_position(path):
    stream = opened(path, "rt", "utf-8")
    next(stream)
    with pytest.raises(TypeError, match="position is not known"):
        pickle.dumps(stream)


def test_a_vanished_file_raises_an_error_on_first_use_of_the_copy(path):
    twin = pickle.loads(pickle.dumps(opened(path)))
    os.remove(path)
    with pytest.raises(FileNotFoundError, match=r"file\.txt"):
        twin.read()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_bytes(b"".join(b"%d-%d\n" % (number, line) for line in range(number)))
    return tmp_path


def files_of(folder: Path) -> Any:
    return FileOpener(FileLister(str(folder)), mode="rb")


def lines(pair: tuple[str, Any]) -> Iterator[bytes]:
    for line in pair[1]:
        yield bytes(line)
    pair[1].close()


def read(pair: tuple[str, Any]) -> bytes:
    with pair[1] as stream:
        return bytes(stream.read())


BUILDS: dict[str, Callable[[Path], Any]] = {
    "flatmap_lines": lambda folder: files_of(folder).flatmap(lines),
    "map_batches_lines": lambda folder: files_of(folder).map_batches(lambda pairs: map(read, pairs), 2),
    "batch_unbatch": lambda folder: files_of(folder).batch(2).unbatch(),
    "mux": lambda folder: files_of(folder).mux(files_of(folder)),
    "shuffled_lines": lambda folder: files_of(folder).shuffled_flatmap(lines, buffer_size=2).set_seed(1),
    "shuffled_lines_off": lambda folder: files_of(folder).shuffled_flatmap(lines).set_shuffle(False),
    "shuffled_pairs": lambda folder: files_of(folder).batch(2).shuffled_flatmap(buffer_size=2).set_seed(1),
    "threads_reading": lambda folder: files_of(folder).threadpool_map(read, scheduled_tasks=2, max_workers=2),
    "threads_opening": lambda folder: FileLister(str(folder)).threadpool_map(
        lambda path: next(iter(FileOpener([path], mode="rb"))), scheduled_tasks=3, max_workers=2
    ),
}


@pytest.mark.parametrize("name", BUILDS)
def test_every_position_is_restored_and_no_file_stays_open(name: str, folder: Path) -> None:
    assert len(check_restore(lambda: BUILDS[name](folder), seeded="set_seed" in dir(BUILDS[name](folder)))) >= 5
    gc.collect()


@pytest.mark.parametrize("name", BUILDS)
def test_a_deleted_iterator_leaves_no_file_open(name: str, folder: Path) -> None:
    pipe, before = BUILDS[name](folder), open_files()
    for position in range(6):
        items = iter(pipe)
        for _ in range(position):
            next(items, None)
        del items
        assert open_files() == before, position


@pytest.mark.parametrize("name", BUILDS)
def test_dropping_an_older_iteration_does_not_change_a_newer_one(name: str, folder: Path) -> None:
    pipe = BUILDS[name](folder)
    keep = [item if isinstance(item, bytes) else read(item) for item in pipe]
    older = iter(pipe)
    next(older)
    newer = iter(pipe)
    first = next(newer)
    del older
    gc.collect()
    rest = [first, *newer]
    assert sorted(item if isinstance(item, bytes) else read(item) for item in rest) == sorted(keep)
