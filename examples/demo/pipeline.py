"""The demo's pipeline: list shards, shuffle, shard among workers, untar, shuffle, decode, augment, batch, collate.

The main process builds the graph. All functions in this module run in the workers, so they are defined at module level,
where every start method can find them. Torch's loader gets the same samples, but decoded by Pillow, as in most programs
with torch.
"""

from __future__ import annotations

import io
import os
import random
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from demo.data import optional
from torchdata import empty
from torchdata.datapipes.iter import FileLister, IterDataPipe
from torchdata.images import random_resized_crop

__all__ = ["SIZE", "TarImages", "photographs", "stack"]

#: The width and height in pixels of the model's input.
SIZE = 224


#: Draws a random training crop, which covers between a third of a photograph and the whole.
crop = partial(random_resized_crop, scale=(0.35, 1.0))


def sample(member: tuple[str, Any]) -> dict[str, Any]:
    """Returns the decoded file of a tar shard, its name, and the label that the name contains."""
    name = os.path.basename(member[0])
    return {"name": name, "label": int(Path(name).stem.rpartition("_")[2]), "image": member[1]}


def by_pillow(content: bytes) -> Any:
    """Returns a random crop, randomly mirrored, as an array of 224 x 224 pixels. Uses only Pillow."""
    import numpy as np

    with optional("PIL.Image").open(io.BytesIO(content)) as image:
        part = image.convert("RGB").crop(crop(random, *image.size))
        pixels = np.asarray(part.resize((SIZE, SIZE), optional("PIL.Image").Resampling.BILINEAR))
    return pixels[:, ::-1] if random.random() < 0.5 else pixels


def stack(batch: list[dict[str, Any]]) -> dict[str, Any]:
    """Stacks the samples of one batch: images (n, ...) uint8, labels (n,) int64, names."""
    import numpy as np

    images = [sample["image"] for sample in batch]

    return {
        "name": [sample["name"] for sample in batch],
        "label": np.array([sample["label"] for sample in batch], dtype=np.int64),
        "image": np.stack(images, out=empty((len(images), *images[0].shape), "uint8")),
    }


def photographs(folder: Path, batch_size: int, training: bool = True) -> IterDataPipe[Any]:
    """Returns the graph of pipes that reads the shards. Each shard is read and decoded by one worker only."""
    shards: IterDataPipe[str] = FileLister(str(folder), masks="*.tar")
    if training:
        shards = shards.shuffle()
    files: IterDataPipe[Any] = shards.sharding_filter().open_files(mode="b").load_from_tar().read_from_stream()
    if training:
        files = files.shuffle(buffer_size=32)  # encoded files are smaller than decoded images
    augmenting: dict[str, Any] = {"crop": crop, "flip": 0.5} if training else {}
    return files.decode_image(SIZE, **augmenting, input_col=1).map(sample).batch(batch_size).collate(stack)


class TarImages:
    """Yields the same samples for torch's loader: an iterable that distributes the shards among its workers.

    The demo combines this class with torch's `IterableDataset`, which is not imported here.
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
                    yield sample((member.name, by_pillow(file.read())))
