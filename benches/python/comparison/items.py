"""The items of the workloads. All contenders create items by the same functions, except for crops.

NumPy and Pillow are imported only when an item needs them, so that workers for ints do not import them.
"""

from __future__ import annotations

import math
import os
import random
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

ENDLESS = 10**9
"""The number of items in a source that is read for a certain time."""

EPOCH = 200
"""The number of items in an epoch of the workload that measures the change of epochs."""

LIST = 64
"""The number of ints in a list, for the workload that sends ints in lists."""

ARRAY_BYTES = 150 * 1024
IMAGE_SHAPE = (160, 320, 3)
"""The shape of an image with the same number of bytes as the arrays."""

SHARED_BYTES, REFERENCES = 1 << 20, 300
"""A string, and the number of times that an item contains it."""

OBJECTS = 1000
SLOW_S = 0.02
"""The number of seconds that the slow worker takes for an item."""
TENSORS = 100
"""The number of tensors in an item with many tensors."""

TOGETHER, TOGETHER_LARGE, SIDE = 32, 8, 224
"""The number of images in a training batch, the number in a batch of large photographs, and the height and width of the
resized images in pixels."""
IMAGE_BYTES = 12 * 1024
BATCH_SHAPE = (64, 3, 224, 224)
BATCH_BYTES = 4 * 64 * 3 * 224 * 224

JPEG_FOLDER = "COMPARISON_JPEGS"
"""The environment variable that names the folder of JPEG files."""

LARGE = "-large"
"""The suffix of the folder with photographs of 2000 x 1500 pixels."""


def tiny(n: int) -> int:
    return n + 1


def same(item: Any) -> Any:
    return item


_CHANCE = random.SystemRandom()
_SHIFT = bytearray(64 * 1024 + _CHANCE.randrange(0, 4096, 16))
"""A block that moves all later allocations by a part of a page, which is random in each run.

The time of a copy of 150 KiB varies by up to 12 %, depending on the offsets of the two blocks in their pages. Without
the random offset, all runs of one version of this project would have the same heap layout, and no number of runs would
average out its effect.
"""


@cache
def _template(size: int) -> Any:
    """Returns bytes with a random offset in their page (see `_SHIFT`)."""
    import numpy

    offset = _CHANCE.randrange(0, 4096, 16)
    return numpy.arange(-offset, size, dtype=numpy.int32).astype(numpy.uint8)[offset:]


def array(n: int) -> Any:
    fresh = _template(ARRAY_BYTES).copy()
    fresh[0] = n & 0xFF
    return fresh


def flipped(n: int) -> Any:
    return array(n).reshape(IMAGE_SHAPE)[:, ::-1]


def transposed(n: int) -> Any:
    return array(n).reshape(IMAGE_SHAPE).transpose(2, 0, 1)


def cropped(n: int) -> Any:
    height, width, channels = IMAGE_SHAPE
    larger = _template((height + 20) * (width + 20) * channels).copy()
    larger[0] = n & 0xFF
    return larger.reshape(height + 20, width + 20, channels)[10:-10, 10:-10]


def times(n: int) -> Any:
    return array(n).view("M8[s]")


@cache
def _text() -> str:
    return "x" * SHARED_BYTES


def shared_text(n: int) -> list[str]:
    return [_text()] * REFERENCES


@dataclass
class Label:
    name: str
    score: float
    index: int


def objects(n: int) -> list[Label]:
    return [Label("cat", 0.5, n + k) for k in range(OBJECTS)]


def hashes(n: int) -> list[int]:
    return [(1 << 63) + n + k for k in range(OBJECTS)]


def large_ints(n: int) -> list[int]:
    return [10**30 + n + k for k in range(OBJECTS)]


@cache
def _floats() -> list[float]:
    return [k / 7 for k in range(100_000)]


def floats(n: int) -> list[float]:
    return _floats()


@cache
def _float_lists() -> list[list[float]]:
    return [[k / 7, k / 3, float(k), 0.5] for k in range(OBJECTS)]


def float_lists(n: int) -> list[list[float]]:
    return _float_lists()


@cache
def _times_and_uuids() -> list[Any]:
    from datetime import datetime, timedelta
    from uuid import UUID

    begin = datetime(2020, 1, 1)
    return [(begin + timedelta(seconds=k), UUID(int=k << 64)) for k in range(OBJECTS)]


def times_and_uuids(n: int) -> list[Any]:
    return _times_and_uuids()


def mixed(n: int) -> dict[str, Any]:
    image = _template(IMAGE_BYTES).copy()
    image[0] = n & 0xFF
    return {"index": n, "name": f"sample-{n}", "weight": n * 0.5, "image": image}


@cache
def _tensor_template() -> Any:
    import torch

    return torch.arange(ARRAY_BYTES, dtype=torch.int32).to(torch.uint8)


def tensor(n: int) -> Any:
    fresh = _tensor_template().clone()
    fresh[0] = n & 0xFF
    return fresh


@cache
def _small_tensors() -> list[Any]:
    import torch

    return [torch.full((16,), float(n)) for n in range(TENSORS)]


def small_tensor(n: int) -> Any:
    """Returns an existing tensor of 64 bytes, because creating a tensor takes longer than sending it."""
    return _small_tensors()[n % TENSORS]


def small_tensors(n: int) -> list[Any]:
    return list(_small_tensors())


@cache
def _small_arrays() -> list[Any]:
    return [tensor.numpy() for tensor in _small_tensors()]


def small_array(n: int) -> Any:
    return _small_arrays()[n % TENSORS]


def small_arrays(n: int) -> list[Any]:
    return list(_small_arrays())


@cache
def _batches() -> list[Any]:
    import numpy

    return [numpy.full(BATCH_SHAPE, float(n), dtype=numpy.float32) for n in range(6)]


def batch(n: int) -> Any:
    """Returns the next of six batches of 38.5 MB, which each worker keeps and uses in turn.

    If each batch were a new allocation, the benchmark would measure the kernel's page faults, which are slower than any
    transport.
    """
    batches = _batches()
    held = batches[(n // 2) % len(batches)]
    held[0, 0, 0, 0] = n
    return held


@cache
def jpeg_files(large: bool = False) -> list[str]:
    folder = os.environ[JPEG_FOLDER] + LARGE * large
    return sorted(os.path.join(folder, name) for name in os.listdir(folder))


def decoded(n: int) -> Any:
    import numpy
    from PIL import Image

    files = jpeg_files()
    with Image.open(files[n % len(files)]) as image:
        return numpy.asarray(image.convert("RGB"))


def collated(n: int) -> Any:
    """Returns a training batch created with PyTorch's tools: 32 decoded, resized JPEGs, joined by `default_collate`."""
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


def _files(n: int, large: bool) -> list[str]:
    files, together = jpeg_files(large), TOGETHER_LARGE if large else TOGETHER
    return [files[number % len(files)] for number in range(n * together, (n + 1) * together)]


def _box(width: int, height: int) -> tuple[int, int, int, int]:
    """Returns a random crop by torchvision's rules: left, top, width and height."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if columns <= width and rows <= height:
            return random.randint(0, width - columns), random.randint(0, height - rows), columns, rows
    return 0, 0, width, height


def crops_by_pillow(n: int, large: bool = False) -> Any:
    import numpy
    import torch
    from PIL import Image
    from torch.utils.data import default_collate

    samples = []
    for number, path in enumerate(_files(n, large)):
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        left, top, width, height = _box(*image.size)
        part = image.crop((left, top, left + width, top + height)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        samples.append({"image": torch.from_numpy(numpy.array(part)).permute(2, 0, 1).contiguous(), "label": number})
    return default_collate(samples)


def crops_by_us(n: int, large: bool = False, scale: Any = "exact") -> Any:
    """Returns a batch of crops, which `torchdata.images` decodes directly into one block."""
    import torch

    from torchdata.images import decode_batch, random_resized_crop

    crop = partial(random_resized_crop, random)
    images = decode_batch(_files(n, large), SIDE, crop=crop, layout="CHW", scale=scale, as_tensor=True)
    return {"image": images, "label": torch.arange(len(images))}


def crops_by_spdl(n: int, large: bool = False) -> Any:
    import spdl.io
    import torch

    frames = []
    for path in _files(n, large):
        packets = spdl.io.demux_image(path)
        left, top, width, height = _box(packets.width, packets.height)
        chain = f"crop={width}:{height}:{left}:{top},scale={SIDE}:{SIDE}:flags=bilinear,format=pix_fmts=rgb24"
        frames.append(spdl.io.decode_packets(packets, filter_desc=chain))
    images = spdl.io.to_torch(spdl.io.convert_frames(frames)).permute(0, 3, 1, 2).contiguous()
    return {"image": images, "label": torch.arange(len(images))}


def tar_path(n: int) -> str:
    """Returns the path of the file that all workers read as their shard. Its pages stay in memory."""
    from comparison import formats

    return os.path.join(os.environ[formats.FOLDER], "tar-large")


def content(member: Any) -> bytes:
    found: bytes = member[1].read()
    return found


MAKERS = {
    "content": content,
    "crops": crops_by_pillow,
    "crops by us": crops_by_us,
    "crops by us, fast": partial(crops_by_us, scale="fast"),
    "crops by spdl": crops_by_spdl,
    "large crops": partial(crops_by_pillow, large=True),
    "large crops by us": partial(crops_by_us, large=True),
    "large crops by us, fast": partial(crops_by_us, large=True, scale="fast"),
    "large crops by spdl": partial(crops_by_spdl, large=True),
    "tiny": tiny,
    "array": array,
    "tensor": tensor,
    "small_tensor": small_tensor,
    "small_tensors": small_tensors,
    "small_array": small_array,
    "small_arrays": small_arrays,
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
