"""Compares JPEG decoders without a loader, in one process. Images become arrays of 224 x 224 pixels, channels first.

Pillow and `torchdata.images` take turns, and medians of processor time are printed. The images are two resized
photographs from scikit-learn, and the noisy files of `compare.py`. Run: `python benches/python/decoders.py`.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy
import simplejpeg
from comparison.environment import WIDTH, write_jpegs
from PIL import Image
from sklearn.datasets import load_sample_images

from torchdata.images import decode

SIDE = 224
SIZES = ((500, 375), (2000, 1500))


def photographs(width: int, height: int) -> list[bytes]:
    files = []
    for pixels in load_sample_images().images:
        file = io.BytesIO()
        Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS).save(file, "jpeg", quality=90)
        files.append(file.getvalue())
    return files


def noisy(width: int) -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        write_jpegs(Path(folder), 2, width // WIDTH)
        return [path.read_bytes() for path in sorted(Path(folder).iterdir())]


def by_pillow(content: bytes) -> Any:
    image = Image.open(io.BytesIO(content)).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return numpy.ascontiguousarray(numpy.array(image).transpose(2, 0, 1))


def by_us(content: bytes) -> Any:
    return decode(content, SIDE, layout="CHW")


def decoded_alone(content: bytes) -> Any:
    return simplejpeg.decode_jpeg(content)


def milliseconds(function: Callable[[bytes], Any], files: list[bytes], times: int) -> float:
    begun = time.process_time()
    for _ in range(times):
        for content in files:
            function(content)
    return (time.process_time() - begun) / times / len(files) * 1e3


def row(name: str, files: list[bytes], times: int, rounds: int) -> str:
    contenders = (by_pillow, by_us, decoded_alone)
    took: dict[Any, list[float]] = {one: [] for one in contenders}
    for _ in range(1 + rounds):
        for one in contenders:
            took[one].append(milliseconds(one, files, times))
    pillow, us, alone = (median(took[one][1:]) for one in contenders)
    return f"| {name} | {pillow:.3g} | {us:.3g} | {alone:.3g} | {pillow / us:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    for width, height in SIZES:
        times = max(3, 40_000_000 // (width * height))
        for name, files in (("photographs", photographs(width, height)), ("noisy", noisy(width))):
            print(row(f"{width} x {height}, {name}", files, times, options.rounds), flush=True)


if __name__ == "__main__":
    main()
