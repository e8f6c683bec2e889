"""The demo's data: the digits and photographs that ship inside scikit-learn, as tar shards of image files.

Role: writes each shard once, in the main process, before any pipe exists. A shard appears under its name only
when it is complete, so that an interrupted run leaves nothing half-written that the next run would read.
"""

from __future__ import annotations

import importlib
import io
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["DIGITS", "HELD_OUT", "optional", "write_digits", "write_photographs"]

#: How many handwritten digits scikit-learn ships.
DIGITS = 1797
_SHARDS = 8
#: Every how many-th digit is kept for the test; the rest is for training.
HELD_OUT = 5
_PACKAGES = {"sklearn": "scikit-learn", "PIL": "Pillow", "tqdm": "tqdm"}


def optional(module: str) -> Any:
    """Imports an optional module.

    Raises:
        ModuleNotFoundError: it is not installed; the message names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = _PACKAGES[module.partition(".")[0]]
        raise ModuleNotFoundError(
            f"the demo needs {package}, which is not installed (no module named {error.name!r}): "
            "pip install 'torchdata-rs[demo]'",
            name=error.name,
        ) from error


def _encode(pixels: Any, kind: str) -> bytes:
    """The bytes of a PNG or JPEG file that shows `pixels` (height x width, or height x width x 3, uint8)."""
    image = optional("PIL.Image").fromarray(pixels)
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **({"quality": 90} if kind == "JPEG" else {}))
    return buffer.getvalue()


def _write_shard(path: Path, members: Iterator[tuple[str, bytes]]) -> None:
    """Writes a tar file in one step: the name `path` appears when all of it is on disk."""
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w") as archive:
            for name, content in members:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def write_digits(folder: Path) -> tuple[Path, Path]:
    """Writes the digits as PNG files, named `<index>_<label>.png`, unless they are there already.

    Returns:
        The folders of the training and of the test shards.
    """
    folders = folder / "digits" / "train", folder / "digits" / "test"
    for target in folders:
        target.mkdir(parents=True, exist_ok=True)
    paths = {(part, k): folders[part] / f"digits-{k}.tar" for part, n in ((0, _SHARDS), (1, 2)) for k in range(n)}
    if all(path.exists() for path in paths.values()):
        return folders
    digits = optional("sklearn.datasets").load_digits()
    # Grey values run from 0 to 16 there.
    images, labels = (digits.images * (255 / 16)).astype("uint8"), digits.target
    split = [i for i in range(DIGITS) if i % HELD_OUT], list(range(0, DIGITS, HELD_OUT))
    for (part, k), path in paths.items():
        chosen = split[part][k :: _SHARDS if part == 0 else 2]
        _write_shard(path, ((f"{i:04d}_{labels[i]}.png", _encode(images[i], "PNG")) for i in chosen))
    return folders


def write_photographs(folder: Path, copies: int = 40) -> Path:
    """Writes the two photographs as JPEG files, `copies` differently shifted ones of each, unless they are there.

    Returns:
        The folder of the shards.
    """
    target = folder / "photographs"
    target.mkdir(parents=True, exist_ok=True)
    paths = [target / f"photographs-{copies}-{k}.tar" for k in range(4)]
    if all(path.exists() for path in paths):
        return target
    photographs = optional("sklearn.datasets").load_sample_images()
    numpy = importlib.import_module("numpy")

    def members(k: int) -> Iterator[tuple[str, bytes]]:
        for copy in range(k, copies, len(paths)):
            for label, photograph in enumerate(photographs.images):
                shifted = numpy.roll(photograph, 16 * copy, axis=1)
                yield f"{copy:04d}_{label}.jpg", _encode(shifted, "JPEG")

    for k, path in enumerate(paths):
        _write_shard(path, members(k))
    return target
