"""Measures how fast two workers send items of many shapes, compared with the workers of torch's DataLoader.

This package's loader and torch's loader are measured in turn in one process. Each measurement starts new workers. The
output contains medians, and the range of the ratios of the two rates, with the lowest ratio first. A `collate_fn` makes
torch return the items unchanged, so both loaders yield the same items. The comparison needs torch. The program measures
more shapes if pandas, Pillow, pyarrow and SciPy are installed.

    python benches/python/shapes.py                     all shapes: about ten minutes
    python benches/python/shapes.py --only tensor       shapes with the word in their names
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import statistics
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import numpy
import torch
from comparison import items, measure, torch_loader

from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

WORKERS = 2
SECONDS, WARM_UP = 0.25, 0.15

SIZES = {"one": (), "10": (10,), "1,000": (1000,), "150 KiB": None, "1.5 MiB": None}
"""The shapes of arrays by name. With None, the array has as many elements as fit into the given number of bytes."""
BYTES = {"150 KiB": 150 * 1024, "1.5 MiB": 1536 * 1024}

Make = Callable[[int], Any]


class Colour(Enum):
    RED = 1


Point = namedtuple("Point", "x y label")


@dataclass
class Slotted:
    __slots__ = ("index", "name")
    index: int
    name: str


class Plain:
    def __init__(self, n: int) -> None:
        self.index, self.name, self.weights = n, f"sample-{n}", [0.5] * 10


def _same(item: Any, n: int) -> Any:
    return item


def _copied(item: Any, n: int) -> Any:
    """Returns a copy of an array or tensor, because real datasets create a new object for each sample."""
    return item.clone() if isinstance(item, torch.Tensor) else item.copy()


def _of(make: Callable[[Any], Any], item: Any, n: int) -> Any:
    return make(_copied(item, n))


def _objects() -> dict[str, Any]:
    tokens = list(range(1000, 1512))
    deep: Any = 1
    for level in range(6):
        deep = {f"level-{level}": deep, "more": [level, str(level)]}
    return {
        "an int": 7,
        "an int of 40 bits": 1 << 40,
        "an int of 100 bits": 1 << 100,
        "a float": 0.5,
        "a bool": True,
        "None": None,
        "a complex number": 1 + 2j,
        "a word": "sample-17",
        "a text of 1,000 letters": "äbc " * 250,
        "a text of 100 KiB": "abcd" * 25_600,
        "16 bytes": bytes(16),
        "10 KiB of bytes": bytes(10 << 10),
        "1 MiB of bytes": bytes(1 << 20),
        "a bytearray of 1 KiB": bytearray(1 << 10),
        "a Decimal": Decimal("1.25"),
        "a Fraction": Fraction(1, 3),
        "a datetime": datetime(2024, 1, 2, 3, 4),
        "a date": date(2024, 1, 2),
        "a timedelta": timedelta(seconds=5),
        "a UUID": UUID(int=1 << 100),
        "a path": PurePosixPath("/data/train/0001.jpg"),
        "a member of an enum": Colour.RED,
        "a slice": slice(1, 9, 2),
        "a range": range(100),
        "a pair of ints": (3, 4),
        "a tuple of 10 ints": tuple(range(10)),
        "a tuple of 1,000 ints": tuple(range(1000)),
        "a list of 2 ints": [3, 4],
        "a list of 100 ints": list(range(100)),
        "a list of 10,000 ints": list(range(10_000)),
        "a list of 512 tokens": tokens,
        "a dict of two lists of 512 tokens": {"input_ids": tokens, "attention_mask": [1] * 512},
        "a list of 1,000 ints of 64 bits": [(1 << 63) + k for k in range(1000)],
        "a list of 1,000 floats": [k / 7 for k in range(1000)],
        "a list of 1,000 bools": [k % 3 == 0 for k in range(1000)],
        "a list of 1,000 None": [None] * 1000,
        "a list of 1,000 words": [f"word-{k}" for k in range(1000)],
        "a list of 100 texts of 1 KiB": [chr(97 + k % 26) * 1024 for k in range(100)],
        "a list of 300 times one text": ["x" * 4096] * 300,
        "a list of 1,000 mixed ones": [k if k % 2 else (str(k) if k % 4 else k / 3) for k in range(1000)],
        "a list of 100 lists of 4 floats": [[k / 7, k / 3, 0.5, 1.0] for k in range(100)],
        "a list of 100 pairs": [(k, f"name-{k}") for k in range(100)],
        "a list of 100 dicts": [{"id": k, "name": f"name-{k}", "score": k / 7} for k in range(100)],
        "a dict of 5": {"id": 1, "name": "cat", "score": 0.5, "tags": ["a", "b"], "ok": True},
        "a dict of 1,000": {f"key-{k}": k for k in range(1000)},
        "a dict by ints": {k: k / 2 for k in range(100)},
        "dicts in dicts": deep,
        "a set of 100": set(range(100)),
        "a frozenset of 100 words": frozenset(f"word-{k}" for k in range(100)),
        "an OrderedDict": OrderedDict((f"key-{k}", k) for k in range(10)),
        "a defaultdict": defaultdict(list, {k: [k] for k in range(10)}),
        "a Counter": Counter("abracadabra"),
        "a deque": deque(range(100), maxlen=200),
        "a namedtuple": Point(1, 2, "cat"),
        "a list of 100 namedtuples": [Point(k, k, "cat") for k in range(100)],
        "a dataclass": items.Label("cat", 0.5, 1),
        "a list of 100 dataclasses": [items.Label("cat", 0.5, k) for k in range(100)],
        "an object with slots": Slotted(1, "cat"),
        "an object": Plain(3),
        "a list of 100 objects": [Plain(k) for k in range(100)],
        "a list of 100 datetimes": [datetime(2024, 1, 1) + timedelta(seconds=k) for k in range(100)],
        "an exception": ValueError("no such file", 3),
    }


def _shape(name: str, item_bytes: int) -> tuple[int, ...]:
    shape = SIZES[name]
    return (BYTES[name] // item_bytes,) if shape is None else shape


def _arrays() -> Iterator[tuple[str, Make]]:
    structured = numpy.dtype([("id", "i8"), ("score", "f4"), ("name", "U8")])
    names = ("bool", "u1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "U8", "S8", "M8[s]", "m8[ms]", structured)
    for dtype in map(numpy.dtype, names):
        kind = "records" if dtype is structured else str(dtype)
        for size in SIZES:
            yield f"array, {kind}, {size}", partial(_copied, numpy.zeros(_shape(size, dtype.itemsize), dtype))
    image = numpy.zeros((160, 320, 3), "u1")
    yield "array of 100 objects", partial(_copied, numpy.array([f"word-{k}" for k in range(100)], object))
    yield "array, transposed", partial(_of, partial(numpy.transpose, axes=(2, 0, 1)), image)
    yield "array, flipped", partial(_of, numpy.fliplr, image)
    yield "array, in Fortran's order", partial(_copied, numpy.asfortranarray(numpy.zeros((200, 192), "f4")))
    yield "array, every second row", partial(_of, _every_second, numpy.zeros((320, 320, 3), "u1"))
    yield "array, broadcast", partial(_of, _broadcast, numpy.zeros((1, 1000), "f4"))
    yield "array, masked", partial(_copied, numpy.ma.masked_less(numpy.arange(1000.0), 10))
    yield "a scalar of NumPy's", partial(_same, numpy.float32(0.5))
    yield "an image and its label", partial(_with_label, image)
    yield "a dict of an image and four fields", items.mixed
    yield "a list of 64 arrays of 3 KiB", partial(_many, numpy.zeros(3072, "u1"), 64)
    yield "a dict of 10 arrays of 40 bytes", partial(_named, numpy.zeros(10, "f4"), 10)
    yield "a batch of 9.6 MB", partial(_copied, numpy.zeros((16, 3, 224, 224), "f4"))


def _tensors() -> Iterator[tuple[str, Make]]:
    for dtype in (torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.bool):
        for size in SIZES:
            name = str(dtype).removeprefix("torch.")
            yield f"tensor, {name}, {size}", partial(_copied, torch.zeros(_shape(size, dtype.itemsize), dtype=dtype))
    image = torch.zeros((160, 320, 3), dtype=torch.uint8)
    yield "tensor, transposed", partial(_of, lambda one: one.permute(2, 0, 1), image)
    yield "tensor, every second row", partial(_of, _every_second, torch.zeros((320, 320, 3), dtype=torch.uint8))
    yield "tensor, expanded", partial(_of, lambda one: one.expand(100, 1000), torch.zeros(1, 1000))
    yield "tensor, sparse", partial(_same, torch.eye(100).to_sparse())
    yield "a parameter", partial(_same, torch.nn.Parameter(torch.zeros(100), requires_grad=False))
    yield "a tensor image and its label", partial(_with_label, image)
    yield "a dict of tensor and label", partial(_named_image, torch.zeros(3, 112, 112))
    yield "a list of 64 tensors of 3 KiB", partial(_many, torch.zeros(3072, dtype=torch.uint8), 64)
    yield "a list of 100 tensors of 64 bytes", partial(_many, torch.zeros(16), 100)
    yield "a dict of 10 tensors of 40 bytes", partial(_named, torch.zeros(10), 10)
    yield "tokens as a dict of two tensors", partial(_named, torch.zeros(512, dtype=torch.int64), 2)
    yield "a batch of tensors of 9.6 MB", partial(_copied, torch.zeros(16, 3, 224, 224))


def _every_second(image: Any) -> Any:
    return image[::2]


def _broadcast(row: Any) -> Any:
    return numpy.broadcast_to(row, (100, 1000))


def _with_label(image: Any, n: int) -> Any:
    return _copied(image, n), n


def _named_image(image: Any, n: int) -> Any:
    return {"image": _copied(image, n), "label": n}


def _many(one: Any, count: int, n: int) -> Any:
    return [_copied(one, n) for _ in range(count)]


def _named(one: Any, count: int, n: int) -> Any:
    return {f"field-{k}": _copied(one, n) for k in range(count)}


def _of_libraries() -> Iterator[tuple[str, Make]]:
    with contextlib.suppress(ImportError):
        from PIL import Image

        image = Image.new("RGB", (320, 160))
        yield "an image of Pillow's", partial(_same, image)
        file = io.BytesIO()
        image.save(file, "jpeg")
        yield "a JPEG file as bytes", partial(_same, file.getvalue())
    with contextlib.suppress(ImportError):
        import pandas

        frame = pandas.DataFrame({"id": range(1000), "score": [k / 7 for k in range(1000)]})
        yield "a frame of 1,000 rows", partial(_same, frame)
        yield "a series of 1,000", partial(_same, frame["score"])
    with contextlib.suppress(ImportError):
        import pyarrow

        yield "a table of 1,000 rows", partial(_same, pyarrow.table({"id": list(range(1000)), "word": ["a"] * 1000}))
    with contextlib.suppress(ImportError):
        import scipy.sparse

        yield "a sparse matrix", partial(_same, scipy.sparse.eye(100, format="csr"))


def shapes() -> dict[str, Make]:
    plain = ((name, partial(_same, item)) for name, item in _objects().items())
    return dict([*plain, *_arrays(), *_tensors(), *_of_libraries()])


def _rate(loader: Any) -> float:
    iterator = iter(loader)
    return measure.rate(iterator, measure.CONSUMERS["tiny"], SECONDS, WARM_UP)


def ours(make: Make) -> float:
    pipe = IterableWrapper(range(items.ENDLESS), deepcopy=False).sharding_filter().map(make)
    loader: Any = DataLoader2(pipe, reading_service=MultiProcessingReadingService(WORKERS))
    try:
        return _rate(loader)
    finally:
        loader.shutdown()


def torchs(make: Make) -> float:
    return _rate(torch_loader.loader(range(items.ENDLESS), make, "fork", WORKERS, {"numpy": True}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="measure only shapes with this word in their names")
    parser.add_argument("--repetitions", type=int, default=3)
    asked = parser.parse_args()
    chosen = {name: make for name, make in shapes().items() if asked.only in name}
    cores, load = os.cpu_count(), os.getloadavg()[0]
    print(f"{WORKERS} workers, medians of {asked.repetitions}, {cores} cores, load {load:.1f} before the run")
    rows = []
    for name, make in chosen.items():
        runs = []
        for _ in range(asked.repetitions):
            runs.append((ours(make), torchs(make)))
            gc.collect()
        ratios = [mine / theirs for mine, theirs in runs]
        mine, theirs = (statistics.median(side) for side in zip(*runs, strict=True))
        rows.append((statistics.median(ratios), min(ratios), max(ratios), mine, theirs, name))
    for ratio, least, most, mine, theirs, name in sorted(rows):
        print(f"{ratio:8.2f}  {least:6.2f} to {most:6.2f}  {mine:12,.0f} {theirs:12,.0f}  {name}")
    below = sum(ratio < 1 for ratio, *_ in rows)
    mean = statistics.geometric_mean(row[0] for row in rows)
    print(f"{len(rows)} shapes, {below} below torch, geometric mean {mean:.1f}")


if __name__ == "__main__":
    main()
