"""Installs a wheel or an sdist into a fresh virtual environment, and loads data through workers with it.

Role: the last look at what is given to users, from outside of the checkout. `make wheels` runs it on both files.

    try_package.py FILE
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

#: What a user would do first. Under spawn, which finds modules only where the package was installed.
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


def try_package(package: Path) -> None:
    """Installs and uses the package.

    Raises:
        subprocess.CalledProcessError: that failed; what it printed tells why.
    """
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        venv.create(home / "venv", with_pip=True)
        python = str(home / "venv" / "bin" / "python")
        (home / "program.py").write_text(PROGRAM, encoding="utf-8")
        alone = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYO3_PYTHON")
        }
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        for command in ([*pip, str(package.resolve())], [python, "program.py"]):
            subprocess.run(command, cwd=home, env=alone, check=True)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        sys.exit(f"usage: {sys.argv[0]} FILE")
    try_package(Path(sys.argv[1]))
