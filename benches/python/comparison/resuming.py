"""Measures the time from loading a state to the next item. If a source restores its position, a resume near the end of
the epoch must not take longer than near its beginning.

A source is a stream with a state, an indexable dataset of numbers, the lines of a file, or the rows of an Arrow table
in a Parquet file. The loader is a `DataLoader2`, a `StatefulDataLoader` or a `Loader` over nodes.
"""

from __future__ import annotations

import functools
import pickle
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

#: The number of items in an epoch of numbers or a stream, and the number of lines or rows in a file.
MANY, WRITTEN = 10_000_000, 1_100_000
#: How many times a state is loaded. Only the shortest time counts.
TIMES = 5


class Numbers:
    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int) -> int:
        return index


def _stream() -> Any:
    from torch.utils.data import IterableDataset

    class Stream(IterableDataset[int]):
        def __init__(self) -> None:
            self.at = self.start = 0

        def __iter__(self) -> Iterator[int]:
            self.at, self.start = self.start, 0
            while self.at < MANY:
                self.at += 1
                yield self.at

        def state_dict(self) -> dict[str, Any]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.start = state["at"]

    return Stream()


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def _lines() -> Any:
    from torchdata.datapipes.iter import FileOpener

    path = Path(_folder().name, "lines.txt")
    if not path.exists():
        path.write_text("".join(f"line {number}\n" for number in range(WRITTEN)))
    return FileOpener([str(path)]).readlines(return_path=False).sharding_filter()


def _rows() -> Any:
    import pyarrow
    from pyarrow import parquet

    from torchdata.datapipes.iter import ArrowReader

    path = Path(_folder().name, "rows.parquet")
    if not path.exists():
        parquet.write_table(pyarrow.table({"number": range(WRITTEN)}), path, row_group_size=1000)
    return ArrowReader(str(path)).sharding_filter()


_SOURCES = {"stream": _stream, "index": Numbers, "file": _lines, "table": _rows}


def _built(order: dict[str, Any]) -> Any:
    options = order["options"]
    data, workers = _SOURCES[order["item"]](), options["workers"]
    if options["loader"] == "StatefulDataLoader":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(data, batch_size=None, num_workers=workers)
    if options["loader"] == "nodes":
        from torch.utils.data import SequentialSampler

        from torchdata import nodes

        sampler: Any = SequentialSampler(data) if order["item"] == "index" else None
        node: Any = nodes.MapStyleWrapper(data, sampler) if sampler else nodes.IterableWrapper(data)
        return nodes.Loader(nodes.ParallelMapper(node, str, workers) if workers else node)
    from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService

    if order["item"] in ("file", "table"):
        return DataLoader2(data, reading_service=MultiProcessingReadingService(workers) if workers else None)
    return DataLoader2.from_dataset(data, num_workers=workers)


def resume_from(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    loader = _built(order)
    iterator = iter(loader)
    next(islice(iterator, order["options"]["items"] - 1, None))
    state = pickle.dumps(loader.state_dict())
    seconds = []
    for _ in range(TIMES):
        del iterator
        if hasattr(loader, "shutdown"):
            loader.shutdown()
        loader, loaded = _built(order), pickle.loads(state)
        begin = time.perf_counter()
        loader.load_state_dict(loaded)
        iterator = iter(loader)
        next(iterator)
        seconds.append(time.perf_counter() - begin)
    return {"value": min(seconds)}, (loader, iterator)
