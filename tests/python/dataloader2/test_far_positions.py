"""Resuming near the end of a file reads no more bytes than resuming near its beginning."""

import io
import multiprocessing
import pickle
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

pytest.importorskip("torch", reason="nodes and StatefulDataLoader need PyTorch")

from torchdata._engine import snapshots
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.utils import StreamWrapper
from torchdata.nodes import IterableWrapper as Node
from torchdata.nodes import Loader, ParallelMapper
from torchdata.stateful_dataloader import StatefulDataLoader, _cadence

SIZE, NEAR, FAR = 1800, 100, 1500
reads = multiprocessing.get_context("fork").Value("q", 0)
context = "fork"


def count(number: int) -> None:
    with reads:
        reads.value += number


class CountedFile(io.RawIOBase):
    def __init__(self, offset: int = 0) -> None:
        self._file = io.BytesIO(b"".join(b"%06d\r\n" % number for number in range(SIZE)))
        self._file.seek(offset)

    def __reduce__(self) -> Any:
        return CountedFile, (self.tell(),)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), 512))
        buffer[: len(data)] = data
        count(len(data))
        return len(data)


def opened(path: str) -> tuple[str, Any]:
    return path, CountedFile()


class CountedText:
    def open(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(CountedFile(), newline="")


def opened_as_text(path: str) -> tuple[str, Any]:
    recipe = CountedText()
    return path, StreamWrapper(recipe.open(), recipe=recipe)


def text_lines() -> Any:
    return IterableWrapper(["a file"]).map(opened_as_text).readlines(return_path=False).map(int)


def lines() -> Any:
    return IterableWrapper(["a file"]).map(opened).readlines(return_path=False).map(int)


def of_pipe(pipe: Any, workers: int) -> Any:
    service = MultiProcessingReadingService(workers, multiprocessing_context=context) if workers else None
    return DataLoader2(pipe.sharding_filter(), reading_service=service)


def stateful(data: Any, workers: int) -> Any:
    return StatefulDataLoader(
        data, batch_size=None, num_workers=workers, multiprocessing_context=context if workers else None
    )


def mapped(node: Any, workers: int) -> Any:
    return Loader(ParallelMapper(node, int, workers, method="process", multiprocessing_context=context))


def node(data: Any, workers: int) -> Any:
    return mapped(Node(data), workers) if workers else Loader(Node(data))


LOADERS: dict[str, Callable[[int], Any]] = {
    "DataLoader2 over a file": lambda workers: of_pipe(lines(), workers),
    "DataLoader2 over a text file": lambda workers: of_pipe(text_lines(), workers),
    "StatefulDataLoader over a file": lambda workers: stateful(lines().sharding_filter(), workers),
    "StatefulDataLoader over a text file": lambda workers: stateful(text_lines().sharding_filter(), workers),
    "nodes over a file": lambda workers: node(lines(), workers),
    "nodes over a text file": lambda workers: node(text_lines(), workers),
}


def reads_to_resume(make: Callable[[], Any], at: int) -> int:
    loader = make()
    iterator = iter(loader)
    received = next(islice(iterator, at - 1, None))
    state = pickle.dumps(loader.state_dict())
    del iterator
    end(loader)
    later = make()
    later.load_state_dict(pickle.loads(state))
    before = reads.value
    item = next(iter(later))
    assert item >= received, "positions were not restored"
    end(later)  # A running worker could still read items during the next count.
    return int(reads.value) - before


def end(loader: Any) -> None:
    if hasattr(loader, "shutdown"):
        loader.shutdown()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", LOADERS)
def test_reads_to_resume_do_not_grow_with_the_position(
    name: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SECONDS", 0.0)
    monkeypatch.setattr(snapshots, "FACTOR", 0.0)  # takes a snapshot after each item
    monkeypatch.setattr(_cadence, "_COSTLY", 1e9)  # makes a StatefulDataLoader take a snapshot after each item, too
    near, far = (reads_to_resume(lambda: LOADERS[name](workers), at) for at in (NEAR, FAR))
    assert 0 < far <= near + 3600  # Files are read in blocks, and workers read items ahead.
