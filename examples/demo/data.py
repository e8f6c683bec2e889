"""The data of the demo and the tutorial: photographs from scikit-learn, as tar shards of JPEG files.

A shard gets its final name only when it is complete, so that the next run does not use the incomplete shard of an
interrupted run.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import random
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["PHOTOGRAPH_SHARDS", "optional", "write_photographs"]

PHOTOGRAPH_SHARDS = 8
_PACKAGES = {"sklearn": "scikit-learn", "PIL": "Pillow"}


def optional(module: str) -> Any:
    """If the module is not installed, the error message names the extra that contains it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = _PACKAGES[module.partition(".")[0]]
        raise ModuleNotFoundError(
            f"the demo needs {package}, which is not installed (no module named {error.name!r}): "
            "install it with `pip install '.[demo]'` (the extra torchdata-rs[demo])",
            name=error.name,
        ) from error


def _write_shard(path: Path, members: Iterator[tuple[str, bytes]]) -> None:
    """Writes a shard, which gets its final name `path` only when it is completely on disk."""
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


def write_photographs(folder: Path, count: int) -> tuple[Path, Path]:
    """Writes crops of the two photographs as JPEG files of 640 x 427 pixels, unless the files exist.

    The first photograph shows a temple, and the second photograph shows a flower. Each file shows an enlarged part of a
    photograph, and is named `<index>_<label>.jpg`.

    Args:
        folder: the folder for the shards.
        count: the number of training files, which is four times the number of test files.

    Returns:
        The folders of the training and of the test shards.
    """
    folders = folder / f"photographs-{count}" / "train", folder / f"photographs-{count}" / "test"
    counts = count, max(2, count // 4)
    for part, target in enumerate(folders):
        target.mkdir(parents=True, exist_ok=True)
        paths = [target / f"photographs-{k}.tar" for k in range(PHOTOGRAPH_SHARDS)]
        for k, path in enumerate(paths):
            if not path.exists():
                _write_shard(path, (_crop(part, i) for i in range(k, counts[part], len(paths))))
    return folders


def _crop(part: int, index: int) -> tuple[str, bytes]:
    """Returns the name and the contents of a JPEG file. `part` and `index` determine the region of the photograph."""
    chance, label = random.Random(2 * index + part), (index // PHOTOGRAPH_SHARDS) % 2
    photograph = _photographs()[label]
    width, height = photograph.size
    share = chance.uniform(0.5, 0.9)
    left, top = chance.uniform(0, 1 - share) * width, chance.uniform(0, 1 - share) * height
    box = (left, top, left + share * width, top + share * height)
    buffer = io.BytesIO()
    photograph.resize((width, height), box=box).save(buffer, format="JPEG", quality=90)
    return f"{index:05d}_{label}.jpg", buffer.getvalue()


@functools.cache
def _photographs() -> list[Any]:
    image = optional("PIL.Image")
    return [image.fromarray(pixels) for pixels in optional("sklearn.datasets").load_sample_images().images]
