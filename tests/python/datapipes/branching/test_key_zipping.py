"""Pipes that join items by key close unused streams, warn if a buffer is full, and name missing keys."""

import io
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from process_checks import identity
from stream_checks import check_restore, open_files, read
from torchdata.datapipes.iter import FileOpener, IterableWrapper
from torchdata.datapipes.map import SequenceWrapper
from torchdata.datapipes.state import save_state
from torchdata.datapipes.utils import StreamWrapper


def streams_of(keys: str) -> dict[str, StreamWrapper]:
    return {key: StreamWrapper(io.BytesIO()) for key in keys}


def closed(streams: dict[str, StreamWrapper]) -> str:
    return "".join(key for key, stream in streams.items() if stream.closed)


def test_a_full_buffer_drops_its_oldest_item_with_one_warning_and_closes_the_item_s_stream() -> None:
    streams = streams_of("abcdef")
    reference = IterableWrapper(list(streams.items()), deepcopy=False)
    pipe = IterableWrapper("fed").zip_with_iter(reference, identity, itemgetter(0), buffer_size=2)
    with pytest.warns(UserWarning, match="Buffer reaches the upper limit of 2 items") as warned:
        assert [item for item, _ in pipe] == ["f", "e", "d"]
    assert len(warned) == 1
    assert closed(streams) == "abc"


def test_a_buffer_that_is_just_large_enough_causes_no_warning() -> None:
    reference = IterableWrapper([4, 3, 2, 1, 0])
    assert len(list(IterableWrapper(range(5)).zip_with_iter(reference, identity, buffer_size=4))) == 5
    assert len(list(IterableWrapper(range(5)).zip_with_iter(reference, identity, buffer_size=None))) == 5


def test_unrequested_streams_are_closed_when_the_iteration_ends() -> None:
    streams = streams_of("abcd")
    reference = IterableWrapper(list(streams.items()), deepcopy=False)
    pipe = IterableWrapper("ca").zip_with_iter(reference, identity, itemgetter(0))
    assert [item for item, _ in pipe] == ["c", "a"]
    assert closed(streams) == "b"  # The iteration ended before the pipe requested stream d.
    assert save_state(pipe)["pipes"][-1]["state"]["waiting"] == {}


def test_a_buffer_error_names_a_missing_key() -> None:
    pipe = IterableWrapper("abx").zip_with_iter(IterableWrapper("ba"), identity)
    with pytest.raises(BufferError, match=r"No matching key .* for the data 'x'; every key of source_datapipe must be"):
        list(pipe)
    again = IterableWrapper("aa").zip_with_iter(IterableWrapper("ab"), identity)
    with pytest.raises(BufferError, match="'a'"):
        list(again)


def test_a_buffer_error_reports_a_dropped_key() -> None:
    pipe = IterableWrapper("da").zip_with_iter(IterableWrapper("abcd"), identity, buffer_size=1)
    with (
        pytest.warns(UserWarning, match="upper limit of 1 items"),
        pytest.raises(BufferError, match=r"for the data 'a'; 2 items were dropped .* enlarge buffer_size"),
    ):
        list(pipe)


def test_an_error_names_a_key_that_waits_already_and_later_keys_raise_none() -> None:
    with pytest.raises(ValueError, match="Duplicate key is found in ref_datapipe: 'b'"):
        list(IterableWrapper("a").zip_with_iter(IterableWrapper("bba"), identity))
    assert list(IterableWrapper("aa").zip_with_iter(IterableWrapper("aa"), identity)) == [("a", "a")] * 2


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    found = [tmp_path / f"{number}.txt" for number in range(5)]
    for path in found:
        path.write_text(f"content of {path.name}")
    return list(map(str, found))


def joined_files(paths: list[str]) -> Any:
    reference = FileOpener(IterableWrapper([paths[i] for i in (2, 0, 4, 1, 3)]), mode="rb")
    return IterableWrapper(paths).zip_with_iter(reference, identity, itemgetter(0), merge_fn=lambda _, pair: pair)


def test_files_that_wait_are_part_of_the_state_and_closed_when_the_join_is_abandoned(paths: list[str]) -> None:
    items = check_restore(lambda: joined_files(paths))
    assert items == [(path, f"content of {Path(path).name}".encode()) for path in paths]


def test_a_join_that_fails_leaves_no_file_open_and_starts_over(paths: list[str]) -> None:
    before = open_files()
    keys = [paths[0], "missing"]
    pipe = IterableWrapper(keys, deepcopy=False).zip_with_iter(
        FileOpener(IterableWrapper(paths[::-1]), mode="rb"), identity, itemgetter(0), merge_fn=lambda _, pair: pair
    )
    seen = []
    with pytest.raises(BufferError, match="missing"):
        for item in pipe:
            seen.append(read(item))
    assert open_files() == before
    keys[1] = paths[1]
    assert [read(item)[0] for item in pipe] == paths[:2]
    assert [path for path, _ in seen] == paths[:1]
    assert open_files() == before


def test_a_key_that_the_map_pipe_lacks_raises_a_key_error_that_names_item_and_key() -> None:
    with pytest.raises(KeyError, match="key_fn maps 'xb' to 'b'"):
        list(IterableWrapper(["xa", "xb"]).zip_with_map(SequenceWrapper({"a": 1}), itemgetter(1)))
    with pytest.raises(KeyError, match="key_fn maps 7 to 7"):
        list(IterableWrapper([0, 7]).zip_with_map(SequenceWrapper([1]), identity))
