"""Encodes images in many formats: photographs, noise and smooth images."""

import importlib.util
import io
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

#: Pillow cannot encode 4:4:0 and 4:1:1.
SUBSAMPLINGS = ("444", "422", "420", "440", "411")


@cache
def photographs() -> list[Any]:
    """Importing scikit-learn, which contains the photographs, would take longer than the tests."""
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    folder = Path(str(spec.origin)).with_name("datasets") / "images"
    return [np.asarray(Image.open(folder / name)) for name in ("china.jpg", "flower.jpg")]


def pixels(number: int) -> Any:
    rng = np.random.default_rng(number)
    kind = number % 3
    if kind == 0:
        whole = photographs()[number % 2]
        height, width = int(rng.integers(1, 300)), int(rng.integers(1, 400))
        top, left = int(rng.integers(0, 427 - height)), int(rng.integers(0, 640 - width))
        return whole[top : top + height, left : left + width]
    height, width = int(rng.integers(1, 150)), int(rng.integers(1, 150))
    if kind == 1:
        return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
    return np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))


def encoded(image: Any, format: str = "JPEG", **options: Any) -> bytes:
    stream = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(stream, format, **options)
    return stream.getvalue()


def jpeg(number: int) -> bytes:
    import simplejpeg

    array = np.ascontiguousarray(pixels(number))
    quality = 20 + number * 37 % 80
    if number % 7 == 0:
        return encoded(Image.fromarray(array).convert("L"), quality=quality, progressive=number % 2 == 0)
    if number % 7 == 1:
        return encoded(array, quality=quality, keep_rgb=True)
    if number % 7 == 2:
        return encoded(array, quality=quality, progressive=True, subsampling=number % 3)
    subsampling = SUBSAMPLINGS[number % len(SUBSAMPLINGS)]
    return bytes(simplejpeg.encode_jpeg(array, quality=quality, colorsubsampling=subsampling))


def by_pillow(content: bytes, mode: str = "RGB", box: Any = None, size: Any = None, filter: str = "BILINEAR") -> Any:
    with Image.open(io.BytesIO(content)) as image:
        made = image.convert(mode)
    if box is not None:
        made = made.crop(box)
    if size is not None:
        made = made.resize(size[::-1], Image.Resampling[filter])
    array = np.array(made)
    return array.reshape(*array.shape[:2], -1)
