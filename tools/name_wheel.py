"""Builds the distribution `torchdata`, an empty wheel that makes installers and programs find that name.

Some programs ask `importlib.metadata` for the distribution `torchdata`, but the distribution with the files is called
`torchdata-rs`. The wheel of the name `torchdata` contains no files and depends on the same version of torchdata-rs. The
version of this wheel is the implemented upstream release, a plus sign, and the version of torchdata-rs.

    name_wheel.py FOLDER
"""

from __future__ import annotations

import base64
import hashlib
import sys
import tomllib
import zipfile
from pathlib import Path

__all__ = ["API", "build", "metadata", "version"]

HOME = Path(__file__).resolve().parents[1]

#: The newest release of upstream's torchdata that this package implements.
API = "0.11.0"

WHEEL = "Wheel-Version: 1.0\nGenerator: torchdata-rs\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def own_version() -> str:
    with open(HOME / "Cargo.toml", "rb") as file:
        found: str = tomllib.load(file)["workspace"]["package"]["version"]
    return found


def version() -> str:
    return f"{API}+rs.{own_version()}"


def metadata() -> str:
    return f"""Metadata-Version: 2.1
Name: torchdata
Version: {version()}
Summary: The name torchdata for programs that ask for it; the package is in torchdata-rs
License: BSD-3-Clause
Requires-Python: >=3.11
Requires-Dist: torchdata-rs=={own_version()}
Description-Content-Type: text/markdown

This distribution holds no files of its own. It is installed beside `torchdata-rs`, which has the package `torchdata`,
for programs that look for a distribution of that name by `importlib.metadata`.
"""


def build(folder: Path) -> Path:
    name = f"torchdata-{version()}"
    info = f"{name}.dist-info"
    files = {f"{info}/METADATA": metadata(), f"{info}/WHEEL": WHEEL}
    record = [f"{path},sha256={digest(text)},{len(text.encode())}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "".join(f"{line}\n" for line in [*record, f"{info}/RECORD,,"])
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), text)
    return wheel


def digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    print(build(Path(sys.argv[1])))
