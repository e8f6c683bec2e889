"""Skips tests that need a package if the package is not installed, without importing the package."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest


def needs(package: str, reason: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: {reason}", allow_module_level=True)


class _SkippedModule(pytest.Module):
    def collect(self) -> Any:
        pytest.skip("these tests need PyTorch", allow_module_level=True)


def skips_without_torch(module_path: Path, parent: Any) -> pytest.Module | None:
    if find_spec("torch") is None and "without_torch" not in module_path.name:
        return _SkippedModule.from_parent(parent, path=module_path)
    return None
