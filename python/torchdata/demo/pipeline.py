"""The demo's pipeline: list files, open, untar, decode, shuffle, shard, batch, collate, in worker processes.

Role: builds the graph in the main process; all functions below run in the workers, which is why they stand at
the top level of a module, where every start method can find them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import FileLister, IterDataPipe
from torchdata.demo.data import optional

__all__ = ["digits", "loader", "photographs"]


def decode(member: tuple[str, Any]) -> dict[str, Any]:
    """The image in a tar member, as an array, with the label that its name holds."""
    import numpy as np

    path, stream = member
    with optional("PIL.Image").open(stream) as image:
        pixels = np.asarray(image)
    stream.close()
    name = os.path.basename(path)
    return {"name": name, "label": int(Path(name).stem.rpartition("_")[2]), "image": pixels}


def stack(batch: list[dict[str, Any]]) -> dict[str, Any]:
    """Samples of one batch, stacked: images (n, ...) uint8, labels (n,) int64, names."""
    import numpy as np

    return {
        "name": [sample["name"] for sample in batch],
        "label": np.array([sample["label"] for sample in batch], dtype=np.int64),
        "image": np.stack([sample["image"] for sample in batch]),
    }


def digits(folder: Path, batch_size: int, shuffle: bool = True) -> IterDataPipe[Any]:
    """The graph over the digit shards: decoded first, so that the shuffle buffer holds arrays and no open streams.

    Every worker reads all members, in the same shuffled order, and keeps its own share of them.
    """
    pipe = FileLister(str(folder), masks="*.tar").open_files(mode="b").load_from_tar().map(decode)
    if shuffle:
        pipe = pipe.shuffle(buffer_size=2000)
    batches: IterDataPipe[Any] = pipe.sharding_filter().batch(batch_size).collate(stack)
    return batches


def photographs(folder: Path, batch_size: int) -> IterDataPipe[Any]:
    """The graph over the photograph shards: sharded before the decoding, which is what costs time here."""
    pipe = FileLister(str(folder), masks="*.tar").open_files(mode="b").load_from_tar()
    batches: IterDataPipe[Any] = pipe.sharding_filter().map(decode).batch(batch_size).collate(stack)
    return batches


def loader(pipe: IterDataPipe[Any], workers: int) -> DataLoader2[Any]:
    """A loader that runs `pipe` in `workers` processes."""
    return DataLoader2(pipe, reading_service=MultiProcessingReadingService(num_workers=workers))
