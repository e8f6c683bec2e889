"""Installs a wheel or an sdist into a new virtual environment, and loads data through workers with it.

This is a final check of the released files, which does not use the checkout. If the wheel of the name `torchdata`
(`name_wheel.py`) is given, the module also checks how programs find that name.

    try_package.py FILE [NAME_WHEEL]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

#: Loads data through workers. With the start method "spawn", workers find only modules of an installed package.
PROGRAM = """
import sysconfig
import numpy
import torchdata
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

def image(number):
    return numpy.full((64, 64), number)

if __name__ == "__main__":
    assert torchdata.__file__.startswith(sysconfig.get_path("platlib")), torchdata.__file__
    pipe = IterableWrapper(range(100)).shuffle().sharding_filter().map(image).batch(10)
    for method in ("fork", "spawn"):
        service = MultiProcessingReadingService(2, multiprocessing_context=method)
        with DataLoader2(pipe, reading_service=service) as loader:
            found = sorted(int(array.max()) for batch in loader for array in batch)
        assert found == list(range(100)), found
    print("torchdata", torchdata.__version__, "works")
"""

#: A program that checks how programs find the distribution `torchdata`. Warnings of the package are errors.
ASKING = """
from importlib import metadata
import torchdata

version = metadata.version("torchdata")
assert tuple(map(int, version.split("+")[0].split("."))) >= (0, 8, 0), version
assert version.endswith("+rs." + metadata.version("torchdata-rs")), version
assert not [file for file in metadata.files("torchdata") if ".dist-info" not in str(file)]
print("distribution torchdata", version)
"""


def try_package(package: Path, name: Path | None = None) -> None:
    """Installs and tests a wheel or an sdist, and if `name` is given, also the wheel of the name `torchdata`."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        venv.create(home / "venv", with_pip=True)
        python = str(home / "venv" / "bin" / "python")
        (home / "program.py").write_text(PROGRAM, encoding="utf-8")
        alone = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYO3_PYTHON")}
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        commands = [[*pip, str(package.resolve())], [python, "program.py"]]
        if name is not None:
            # If pip did not treat the requirement `torchdata` as installed, it would replace this package's files by
            # upstream's files.
            content = [*pip, "--no-index", "torchdata", "torchdata==0.11.0"]
            commands += [
                [*pip, str(name.resolve())], [python, "-W", "error", "-c", ASKING], content, [python, "program.py"]
            ]  # fmt: skip
        for command in commands:
            subprocess.run(command, cwd=home, env=alone, check=True)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or not all(Path(file).is_file() for file in sys.argv[1:]):
        sys.exit(f"usage: {sys.argv[0]} FILE [NAME_WHEEL]")
    try_package(*map(Path, sys.argv[1:]))
