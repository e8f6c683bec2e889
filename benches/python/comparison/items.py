"""The items of the workloads: made in the worker, by the same functions for every contender.

Imported in each child and its workers; NumPy and Pillow are loaded by the first item that needs them, so that a
worker that moves ints starts without them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

ENDLESS = 10**9
"""Items in a source that is read by the clock."""

EPOCH = 200
"""Items in an epoch, where the change of epochs is measured."""

LIST = 64
"""Ints in a list, where ints travel in lists."""

ARRAY_BYTES = 150 * 1024
IMAGE_SHAPE = (160, 320, 3)
"""An image of as many bytes."""

SHARED_BYTES, REFERENCES = 1 << 20, 300
"""A string, and how often an item holds it."""

OBJECTS = 1000
TOGETHER, SIDE = 32, 224
"""Images of a training batch, and how many pixels high and wide they are."""
IMAGE_BYTES = 12 * 1024
BATCH_SHAPE = (64, 3, 224, 224)
BATCH_BYTES = 4 * 64 * 3 * 224 * 224

JPEG_FOLDER = "COMPARISON_JPEGS"
"""Environment variable that names the folder of JPEG files."""


def tiny(n: int) -> int:
    return n + 1


def same(item: Any) -> Any:
    return item


@cache
def _template(size: int) -> Any:
    import numpy

    return numpy.arange(size, dtype=numpy.uint32).astype(numpy.uint8)


def array(n: int) -> Any:
    """A fresh array of 150 KiB; making it costs one copy."""
    fresh = _template(ARRAY_BYTES).copy()
    fresh[0] = n & 0xFF
    return fresh


def flipped(n: int) -> Any:
    """The same array as an image, mirrored: its rows are read backwards."""
    return array(n).reshape(IMAGE_SHAPE)[:, ::-1]


def transposed(n: int) -> Any:
    """The same array as an image whose channels come first."""
    return array(n).reshape(IMAGE_SHAPE).transpose(2, 0, 1)


def cropped(n: int) -> Any:
    """An image of the same size, cut out of a larger one."""
    height, width, channels = IMAGE_SHAPE
    larger = _template((height + 20) * (width + 20) * channels).copy()
    larger[0] = n & 0xFF
    return larger.reshape(height + 20, width + 20, channels)[10:-10, 10:-10]


def times(n: int) -> Any:
    """A fresh array of the same size, of points in time."""
    return array(n).view("M8[s]")


@cache
def _text() -> str:
    return "x" * SHARED_BYTES


def shared_text(n: int) -> list[str]:
    """One string, many times."""
    return [_text()] * REFERENCES


@dataclass
class Label:
    """An object in an image, as a detector finds it."""

    name: str
    score: float
    index: int


def objects(n: int) -> list[Label]:
    """Many small objects."""
    return [Label("cat", 0.5, n + k) for k in range(OBJECTS)]


def hashes(n: int) -> list[int]:
    """A thousand ints of 64 bits without a sign, as hash functions give them."""
    return [(1 << 63) + n + k for k in range(OBJECTS)]


def large_ints(n: int) -> list[int]:
    """A thousand ints of 100 bits."""
    return [10**30 + n + k for k in range(OBJECTS)]


@cache
def _floats() -> list[float]:
    return [k / 7 for k in range(100_000)]


def floats(n: int) -> list[float]:
    """A hundred thousand floats."""
    return _floats()


@cache
def _float_lists() -> list[list[float]]:
    return [[k / 7, k / 3, float(k), 0.5] for k in range(OBJECTS)]


def float_lists(n: int) -> list[list[float]]:
    """A thousand lists of four floats."""
    return _float_lists()


@cache
def _times_and_uuids() -> list[Any]:
    from datetime import datetime, timedelta
    from uuid import UUID

    begin = datetime(2020, 1, 1)
    return [(begin + timedelta(seconds=k), UUID(int=k << 64)) for k in range(OBJECTS)]


def times_and_uuids(n: int) -> list[Any]:
    """A thousand pairs of a datetime and a UUID."""
    return _times_and_uuids()


def mixed(n: int) -> dict[str, Any]:
    """A dictionary of an int, a str, a float and a fresh array of 12 KiB."""
    image = _template(IMAGE_BYTES).copy()
    image[0] = n & 0xFF
    return {"index": n, "name": f"sample-{n}", "weight": n * 0.5, "image": image}


@cache
def _tensor_template() -> Any:
    import torch

    return torch.arange(ARRAY_BYTES, dtype=torch.int32).to(torch.uint8)


def tensor(n: int) -> Any:
    """A fresh tensor of 150 KiB; making it costs one copy."""
    fresh = _tensor_template().clone()
    fresh[0] = n & 0xFF
    return fresh


@cache
def _batches() -> list[Any]:
    import numpy

    return [numpy.full(BATCH_SHAPE, float(n), dtype=numpy.float32) for n in range(6)]


def batch(n: int) -> Any:
    """A batch of 38.5 MB, one of six that every worker holds and uses in turn.

    A fresh one for each item would measure the kernel's page faults, which are slower than any transport.
    """
    batches = _batches()
    held = batches[(n // 2) % len(batches)]
    held[0, 0, 0, 0] = n
    return held


@cache
def jpeg_files() -> list[str]:
    """The JPEG files that the harness has written."""
    folder = os.environ[JPEG_FOLDER]
    return sorted(os.path.join(folder, name) for name in os.listdir(folder))


def decoded(n: int) -> Any:
    """One of the JPEG files, read and decoded to an array of height, width and three colours."""
    import numpy
    from PIL import Image

    files = jpeg_files()
    with Image.open(files[n % len(files)]) as image:
        return numpy.asarray(image.convert("RGB"))


def collated(n: int) -> Any:
    """A training batch by torch's own means: 32 JPEG files decoded, resized, and stacked by its `default_collate`."""
    import numpy
    import torch
    from PIL import Image
    from torch.utils.data import default_collate

    files, samples = jpeg_files(), []
    for number in range(n * TOGETHER, (n + 1) * TOGETHER):
        with Image.open(files[number % len(files)]) as image:
            pixels = numpy.asarray(image.convert("RGB").resize((SIDE, SIDE)))
        samples.append({"image": torch.from_numpy(pixels.transpose(2, 0, 1) / numpy.float32(255)), "label": number})
    return default_collate(samples)


MAKERS = {
    "tiny": tiny,
    "array": array,
    "tensor": tensor,
    "mixed": mixed,
    "batch": batch,
    "decoded": decoded,
    "collated": collated,
    "flipped": flipped,
    "transposed": transposed,
    "cropped": cropped,
    "times": times,
    "shared_text": shared_text,
    "objects": objects,
    "hashes": hashes,
    "large_ints": large_ints,
    "floats": floats,
    "float_lists": float_lists,
    "times_and_uuids": times_and_uuids,
}
