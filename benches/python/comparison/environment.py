"""The prerequisites of a run: a virtual environment with torch and upstream, JPEG files, and record files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from comparison import items

UPSTREAM = ("torchdata==0.9.0", "numpy", "requests", "pillow", "spdl")
STATEFUL = ("torchdata==0.11.0", "numpy", "pillow")
"""The packages in the two environments in addition to torch."""

JPEGS, WIDTH, HEIGHT = 64, 500, 375
LARGE_JPEGS, TIMES = 8, 4
"""The number of larger files, and the factor for their width and height."""


def upstream_python(home: Path, packages: tuple[str, ...], wheels: Path | None) -> Path:
    """Creates the virtual environment and returns its interpreter. Torch is installed from the folder `wheels` if this
    folder contains a wheel for this Python, and otherwise from the package index."""
    python, finished = home / "bin" / "python", home / "finished"
    if finished.exists() and finished.read_text() == " ".join(packages):
        return python
    print(f"installing {packages[0]} and torch into {home} …", file=sys.stderr, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    tag = f"-cp{sys.version_info.major}{sys.version_info.minor}-"
    local = sorted(wheel for wheel in wheels.glob("torch-*.whl") if tag in wheel.name) if wheels else []
    torch = str(local[-1]) if local else "torch"
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, torch, *packages], check=True)
    finished.write_text(" ".join(packages))
    return python


def jpeg_folder(bench: Path) -> Path | None:
    """Returns a folder with JPEG files, which are the same in every run. Also writes a folder with larger files.
    Returns None without Pillow."""
    from importlib.util import find_spec

    if find_spec("numpy") is None or find_spec("PIL") is None:
        return None
    folder = bench / "jpegs"
    write_jpegs(folder, JPEGS, 1)
    write_jpegs(folder.with_name(folder.name + items.LARGE), LARGE_JPEGS, TIMES)
    return folder


def write_jpegs(folder: Path, count: int, times: int) -> None:
    """Writes JPEG files of 500 by 375 pixels, with both sizes multiplied by `times`."""
    import numpy
    from PIL import Image

    if folder.is_dir() and len(list(folder.iterdir())) == count:
        return
    folder.mkdir(parents=True, exist_ok=True)
    random = numpy.random.default_rng(2)
    for number in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=numpy.uint8))
        size = times * WIDTH, times * HEIGHT
        smooth = numpy.asarray(coarse.resize(size, Image.Resampling.BICUBIC), dtype=numpy.int16)
        noisy = smooth + random.integers(-12, 13, smooth.shape)
        picture = Image.fromarray(noisy.clip(0, 255).astype(numpy.uint8))
        picture.save(folder / f"{number:03}.jpg", quality=90)


def format_files(bench: Path) -> Path | None:
    from importlib.util import find_spec

    if find_spec("tfrecord") is None or find_spec("webdataset") is None:
        return None
    from comparison import formats

    folder = bench / "formats"
    formats.write(folder)
    return folder
