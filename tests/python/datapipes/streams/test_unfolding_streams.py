"""Pipes over streams that yield several items per input, or that read ahead, resume exactly and leave no file open."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stream_checks import check_restore, open_files
from torchdata.datapipes.iter import FileLister, FileOpener


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_bytes(b"".join(b"%d-%d\n" % (number, line) for line in range(number)))
    return tmp_path


def opened(folder: Path) -> Any:
    return FileOpener(FileLister(str(folder)), mode="rb")


def lines(pair: tuple[str, Any]) -> Iterator[bytes]:
    """Yields the lines of a stream lazily, so that the stream is only partly read while lines are yielded."""
    for line in pair[1]:
        yield bytes(line)
    pair[1].close()


def read(pair: tuple[str, Any]) -> bytes:
    with pair[1] as stream:
        return bytes(stream.read())


BUILDS: dict[str, Callable[[Path], Any]] = {
    "flatmap_lines": lambda folder: opened(folder).flatmap(lines),
    "map_batches_lines": lambda folder: opened(folder).map_batches(lambda pairs: map(read, pairs), 2),
    "batch_unbatch": lambda folder: opened(folder).batch(2).unbatch(),
    "mux": lambda folder: opened(folder).mux(opened(folder)),
    "shuffled_lines": lambda folder: opened(folder).shuffled_flatmap(lines, buffer_size=2).set_seed(1),
    "shuffled_lines_off": lambda folder: opened(folder).shuffled_flatmap(lines).set_shuffle(False),
    "shuffled_pairs": lambda folder: opened(folder).batch(2).shuffled_flatmap(buffer_size=2).set_seed(1),
    "threads_reading": lambda folder: opened(folder).threadpool_map(read, scheduled_tasks=2, max_workers=2),
    "threads_opening": lambda folder: FileLister(str(folder)).threadpool_map(
        lambda path: next(iter(FileOpener([path], mode="rb"))), scheduled_tasks=3, max_workers=2
    ),
}


@pytest.mark.parametrize("name", BUILDS)
def test_every_position_is_restored_and_no_file_stays_open(name: str, folder: Path) -> None:
    assert len(check_restore(lambda: BUILDS[name](folder), seeded="set_seed" in dir(BUILDS[name](folder)))) >= 5
    gc.collect()


@pytest.mark.parametrize("name", [name for name in BUILDS if not name.startswith("threads")])
def test_a_deleted_iterator_leaves_no_file_open(name: str, folder: Path) -> None:
    pipe, before = BUILDS[name](folder), open_files()
    for position in range(6):
        items = iter(pipe)
        for _ in range(position):
            next(items, None)
        del items
        assert open_files() == before, position


@pytest.mark.parametrize("name", [name for name in BUILDS if name.startswith("threads")])
def test_a_deleted_iterator_with_threads_leaves_no_file_open_once_they_have_ended(name: str, folder: Path) -> None:
    before = open_files()
    pipe = BUILDS[name](folder)
    for position in range(6):
        iterator = iter(pipe)
        for _ in range(position):
            next(iterator, None)
        del iterator
        deadline = time.monotonic() + 10
        while open_files() != before:
            assert time.monotonic() < deadline, position
            time.sleep(0.002)


@pytest.mark.parametrize("name", BUILDS)
def test_a_newer_iteration_is_left_alone_by_an_older_one_that_is_dropped(name: str, folder: Path) -> None:
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
