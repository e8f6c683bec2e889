"""Resumes from states in a fresh interpreter: `python -m random_graphs.elsewhere FILE`.

The file contains a pickled tuple with a function and its arguments."""

import gc
import importlib
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from typing import Any


class DifferentElsewhere(AssertionError):
    """Raised if a call in a fresh interpreter fails, for example because of wrong items."""


def elsewhere(module: str, function: str, *arguments: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "job")
        with open(path, "wb") as file:
            pickle.dump((sys.path, "torch" in sys.modules, module, function, arguments), file)
        done = subprocess.run(
            [sys.executable, "-m", "random_graphs.elsewhere", path],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    if done.returncode != 0:
        raise DifferentElsewhere(f"in another process: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def main() -> None:
    with open(sys.argv[1], "rb") as file:
        sys.path, with_torch, module, function, arguments = pickle.load(file)
    if with_torch:  # graphs contain torch's pipes only if torch is loaded
        with suppress(ImportError):
            import torch.utils.data  # noqa: F401
    warnings.simplefilter("ignore")
    getattr(importlib.import_module(module), function)(*arguments)
    gc.freeze()  # without freezing, the interpreter visits all objects of torch at exit


if __name__ == "__main__":
    main()
