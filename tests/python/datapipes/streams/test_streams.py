"""A StreamWrapper delegates to its file, and closes the file together with its children.

Copies of a StreamWrapper reopen the file.
"""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import socket

import pytest

from stream_checks import open_files
from torchdata.datapipes.iter import FileLister, IterableWrapper
from torchdata.datapipes.state import load_state, save_state
from torchdata.datapipes.utils import StreamWrapper, janitor


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "file.txt"
    file.write_bytes("première\nsecond\nthird\n".encode())
    return str(file)


def opened(path, mode="rb", encoding=None):
    [(_, stream)] = IterableWrapper([path]).open_files(mode=mode, encoding=encoding)
    return stream


def test_a_wrapper_passes_on_what_it_lacks():
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


def test_a_parent_without_children_autocloses_at_once():
    parent = StreamWrapper(io.BytesIO(b"p"))
    parent.autoclose()
    assert parent.closed


def test_a_parent_must_be_a_wrapper():
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


@pytest.mark.parametrize(("mode", "encoding"), [("rb", None), ("rt", "utf-8")])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda stream: pickle.loads(pickle.dumps(stream))])
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


def test_a_binary_file_that_was_opened_by_path_needs_no_recipe(path):
    stream = StreamWrapper(open(path, "rb"))  # noqa: SIM115
    stream.read(3)
    assert pickle.loads(pickle.dumps(stream)).read() == stream.read()


def test_a_replaced_file_is_not_reopened(path):
    stream = StreamWrapper(open(path, "rb"))  # noqa: SIM115
    os.rename(path, path + ".old")
    with open(path, "w") as other:
        other.write("something else")
    with pytest.raises(TypeError, match="it does not have a recipe to reopen it"):
        pickle.dumps(stream)


def test_memory_files_are_pickled_by_value_with_their_position():
    stream = StreamWrapper(io.BytesIO(b"abcdef"))
    stream.read(2)
    assert pickle.loads(pickle.dumps(stream)).read() == b"cdef"


def test_a_stream_without_recipe_says_so_when_it_is_pickled():
    left, right = socket.socketpair()
    with left, right:
        stream = StreamWrapper(left.makefile("rb"), name="from the network")
        with pytest.raises(TypeError, match=r"from the network.*recipe=") as failure:
            pickle.dumps(stream)
        assert "read it before" in str(failure.value)
        stream.close()


def test_a_text_stream_that_is_being_iterated_says_that_its_position_is_unknown(path):
    stream = opened(path, "rt", "utf-8")
    next(stream)
    with pytest.raises(TypeError, match="position is not known"):
        pickle.dumps(stream)


def test_a_vanished_file_raises_an_error_on_first_use_of_the_copy(path):
    twin = pickle.loads(pickle.dumps(opened(path)))
    os.remove(path)
    with pytest.raises(FileNotFoundError, match=r"file\.txt"):
        twin.read()


def test_one_state_of_a_shuffler_that_holds_streams_loads_twice(tmp_path):
    for number in range(6):
        (tmp_path / str(number)).write_text(f"content {number}")

    def build():
        return FileLister(str(tmp_path)).open_files(mode="b").shuffle(buffer_size=3).set_seed(1)

    whole = [(path, stream.read()) for path, stream in build()]
    pipe = build()
    items = iter(pipe)
    next(items)
    state = pickle.loads(pickle.dumps(save_state(pipe)))
    for _ in range(2):
        other = build()
        load_state(other, state)
        rest = []
        for path, stream in other:
            with stream:
                rest.append((path, stream.read()))
        assert rest == whole[1:]
