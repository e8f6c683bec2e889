"""Sources that resume from a state do not reread earlier items. The tests count the reads."""

import io
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from archive_bytes import tar_of
from resuming import Reads, with_state
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.map import SequenceWrapper
from torchdata.datapipes.state import save_state
from torchdata.datapipes.utils import StreamWrapper

ITEMS, POSITION = 2000, 1900

counter = Reads()


def counted(name: str) -> Callable[..., Any]:
    def method(self: io.BytesIO, *args: Any) -> Any:
        found = getattr(io.BytesIO, name)(self, *args)
        counter.count += found if isinstance(found, int) else len(found)
        return found

    return method


class Counted(io.BytesIO):
    read, read1, readinto, readline, __next__ = map(counted, ("read", "read1", "readinto", "readline", "__next__"))


class CountedItems:
    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> int:
        if index >= ITEMS:
            raise IndexError(index)
        counter.count += 1
        return index


def archive() -> bytes:
    return tar_of((str(number), bytes(600)) for number in range(ITEMS))


LINES = b"".join(b"%d,%s\r\n" % (number, b"x" * 50) for number in range(ITEMS))


class CountedText:
    def __init__(self, newline: str | None) -> None:
        self.newline = newline

    def open(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(Counted(LINES), newline=self.newline)


def of_text(newline: str | None) -> Callable[[], Any]:
    def build() -> Any:
        recipe = CountedText(newline)
        stream = StreamWrapper(recipe.open(), recipe=recipe)
        return IterableWrapper([("name", stream)], deepcopy=False).readlines(return_path=False)

    return build


def of_file(content: Callable[[], bytes], pipe: Callable[[Any], Any]) -> Callable[[], Any]:
    def build() -> Any:
        return pipe(IterableWrapper([("name", Counted(content()))], deepcopy=False))

    return build


def of_items(pipe: Callable[[Any], Any]) -> Callable[[], Any]:
    def build() -> Any:
        return pipe(CountedItems())

    return build


SOURCES = {
    "data read by index": of_items(lambda items: IterableWrapper(items, deepcopy=False)),
    "a map pipe": of_items(lambda items: SequenceWrapper(items, deepcopy=False).to_iter_datapipe()),
    "a shuffled map pipe": of_items(lambda items: SequenceWrapper(items, deepcopy=False).shuffle().set_seed(3)),
    "lines": of_file(lambda: LINES, lambda pipe: pipe.readlines(return_path=False)),
    "lines of text": of_text(None),
    "lines of text whose ends are kept": of_text(""),
    "lines of text that end in carriage returns": of_text("\r"),
    "lines of UTF-16": of_file(
        lambda: LINES.decode().encode("utf-16"),
        lambda pipe: pipe.readlines(return_path=False, decode=True, encoding="utf-16"),
    ),
    "rows of UTF-16": of_file(lambda: LINES.decode().encode("utf-16"), lambda pipe: pipe.parse_csv(encoding="utf-16")),
    "rows": of_file(lambda: LINES, lambda pipe: pipe.parse_csv()),
    "members": of_file(archive, lambda pipe: pipe.load_from_tar().map(lambda pair: (pair[0], pair[1].read()))),
}


@pytest.mark.parametrize("build", SOURCES.values(), ids=SOURCES)
def test_a_source_that_resumes_late_reads_the_rest_and_little_more(build: Callable[[], Any]) -> None:
    counter.since()
    whole = list(build())
    most = counter.since() / 5
    pipe = build()
    iterator = iter(pipe)
    head = list(islice(iterator, POSITION))
    other = with_state(build(), save_state(pipe))
    counter.since()
    assert head + list(other) == whole
    assert 0 < counter.since() < most
