"""Resuming late in an epoch requires as few reads as resuming early, because snapshots are sent regularly."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

pytest.importorskip("torch", reason="nodes and StatefulDataLoader need PyTorch")

from torch.utils.data import IterableDataset, SequentialSampler

from torchdata._engine import snapshots
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.utils import StreamWrapper
from torchdata.nodes import IterableWrapper as Node
from torchdata.nodes import Loader, MapStyleWrapper, ParallelMapper
from torchdata.stateful_dataloader import StatefulDataLoader, _cadence

SIZE, NEAR, FAR = 1800, 100, 1500
#: The number of items that all processes together have read from the source.
reads = multiprocessing.get_context("fork").Value("q", 0)
context = "fork"


def count(number: int) -> None:
    with reads:
        reads.value += number


class Stream(IterableDataset[int]):
    """A stream with a state, which is sharded among the workers."""

    def __init__(self) -> None:
        self.at = self.start = 0

    def __iter__(self) -> Iterator[int]:
        self.at, self.start = self.start, 0
        while self.at < SIZE:
            self.at += 1
            count(1)
            yield self.at

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["at"]


class Numbers:
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        count(1)
        return index


class CountedFile(io.RawIOBase):
    """A seekable file with one number per line, which counts the bytes that are read, and can be pickled."""

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
    """The recipe of the same file, opened as text."""

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


def of_data(data: Any, workers: int) -> Any:
    return DataLoader2.from_dataset(data, num_workers=workers)


def stateful(data: Any, workers: int) -> Any:
    return StatefulDataLoader(
        data, batch_size=None, num_workers=workers, multiprocessing_context=context if workers else None
    )


def mapped(node: Any, workers: int) -> Any:
    return Loader(ParallelMapper(node, int, workers, method="process", multiprocessing_context=context))


def node(data: Any, workers: int) -> Any:
    return mapped(Node(data), workers) if workers else Loader(Node(data))


LOADERS: dict[str, Callable[[int], Any]] = {
    "DataLoader2 over a stream": lambda workers: of_pipe(IterableWrapper(Stream(), deepcopy=False), workers),
    "DataLoader2 over an index": lambda workers: of_data(Numbers(), workers),
    "DataLoader2 over a file": lambda workers: of_pipe(lines(), workers),
    "DataLoader2 over a text file": lambda workers: of_pipe(text_lines(), workers),
    "StatefulDataLoader over a stream": lambda workers: stateful(Stream(), workers),
    "StatefulDataLoader over an index": lambda workers: stateful(Numbers(), workers),
    "StatefulDataLoader over a file": lambda workers: stateful(lines().sharding_filter(), workers),
    "StatefulDataLoader over a text file": lambda workers: stateful(text_lines().sharding_filter(), workers),
    "nodes over a stream": lambda workers: node(Stream(), workers),
    "nodes over an index": lambda workers: Loader(
        MapStyleWrapper(Numbers(), SequentialSampler(Numbers()), num_workers=workers)
    ),
    "nodes over a file": lambda workers: node(lines(), workers),
    "nodes over a text file": lambda workers: node(text_lines(), workers),
}


def reads_to_resume(make: Callable[[], Any], at: int) -> int:
    """Returns the number of reads that a new loader needs to yield the item after a position."""
    loader = make()
    iterator = iter(loader)
    given = next(islice(iterator, at - 1, None))
    state = pickle.dumps(loader.state_dict())
    del iterator
    end(loader)
    later = make()
    later.load_state_dict(pickle.loads(state))
    before = reads.value
    item = next(iter(later))
    assert item >= given, "positions were not restored"
    end(later)  # otherwise, a worker of this loader might still read items during the next count
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
    monkeypatch.setattr(_cadence, "_DEAR", 1e9)  # makes a StatefulDataLoader take a snapshot after each item, too
    near, far = (reads_to_resume(lambda: LOADERS[name](workers), at) for at in (NEAR, FAR))
    ahead = 3600 if "file" in name else 300  # a file is read in blocks, and workers read items ahead
    assert 0 < far <= near + ahead


class SlowAtFirst(IterDataPipe[int]):
    """An endless stream of numbers. Saving its first state takes 100 ms, and later states are saved quickly."""

    def __init__(self) -> None:
        self.at, self.saved = 0, 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self.at += 1
            time.sleep(0.0005)
            yield self.at

    def state_dict(self) -> dict[str, int]:
        time.sleep(0.0 if self.saved else 0.1)
        self.saved += 1
        return {"at": self.at}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.at = state_dict["at"]


def test_a_slow_first_snapshot_does_not_delay_the_next_ones_for_long() -> None:
    service = MultiProcessingReadingService(1, multiprocessing_context="fork")
    positions = set()
    with DataLoader2(SlowAtFirst(), reading_service=service) as loader:
        deadline = time.monotonic() + 15.0
        for _ in loader:
            [shard] = loader.state_dict()["iteration_state"]["workers"]["workers"]
            if shard["snapshot"] is not None:
                positions.add(shard["snapshot"][0][0])
            if len(positions) > 1 or time.monotonic() > deadline:
                break
    assert len(positions) > 1
