"""The demo's pipeline: list shards, shuffle and share them out, untar, shuffle, decode, augment, batch, collate.

Role: builds the graph in the main process; all functions below run in the workers, which is why they stand at
the top level of a module, where every start method can find them.
"""

from __future__ import annotations

import io
import os
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchdata.datapipes.iter import FileLister, IterDataPipe
from torchdata.demo.data import optional

__all__ = ["SIZE", "TarImages", "decode", "photographs", "stack"]

#: Pixels of a side of what the model gets.
SIZE = 224


def decode(member: tuple[str, bytes], augment: bool = True) -> dict[str, Any]:
    """The photograph in a file of a tar shard as an array of 224 x 224 pixels, with the label that its name holds.

    To augment it, a part of it is taken by chance, and mirrored by chance.
    """
    import numpy as np

    path, content = member
    with optional("PIL.Image").open(io.BytesIO(content)) as image:
        width, height = image.size
        share = random.uniform(0.6, 1.0) if augment else 1.0
        left, top = (random.uniform(0, 1 - share) * side if augment else 0.0 for side in (width, height))
        box = (left, top, left + share * width, top + share * height)
        pixels = np.asarray(image.convert("RGB").resize((SIZE, SIZE), box=box))
    if augment and random.random() < 0.5:
        pixels = pixels[:, ::-1]
    name = os.path.basename(path)
    return {"name": name, "label": int(Path(name).stem.rpartition("_")[2]), "image": pixels}


def decode_whole(member: tuple[str, bytes]) -> dict[str, Any]:
    """The same without chance, for the test."""
    return decode(member, augment=False)


def stack(batch: list[dict[str, Any]]) -> dict[str, Any]:
    """Samples of one batch, stacked: images (n, ...) uint8, labels (n,) int64, names."""
    import numpy as np

    return {
        "name": [sample["name"] for sample in batch],
        "label": np.array([sample["label"] for sample in batch], dtype=np.int64),
        "image": np.stack([sample["image"] for sample in batch]),
    }


def photographs(folder: Path, batch_size: int, training: bool = True) -> IterDataPipe[Any]:
    """The graph over the shards. Workers share out the shards, so that each is read and decoded once."""
    shards: IterDataPipe[str] = FileLister(str(folder), masks="*.tar")
    if training:
        shards = shards.shuffle()
    files: IterDataPipe[Any] = shards.sharding_filter().open_files(mode="b").load_from_tar().read_from_stream()
    if training:
        files = files.shuffle(buffer_size=32)  # of files as they are, which are smaller than what is decoded of them
    return files.map(decode if training else decode_whole).batch(batch_size).collate(stack)


class TarImages:
    """The same samples as torch's loader takes them: an iterable that shares the shards out among its workers.

    The demo mixes it with torch's `IterableDataset`, which is not imported here.
    """

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(map(str, folder.glob("*.tar")))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        for path in self.paths if info is None else self.paths[info.id :: info.num_workers]:
            with tarfile.open(path) as archive:
                for member in archive:
                    file = archive.extractfile(member)
                    assert file is not None
                    yield decode((member.name, file.read()))
