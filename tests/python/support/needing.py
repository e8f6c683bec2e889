"""Skips tests with processes that need a missing package, without the slow import of the package in this process."""

from __future__ import annotations

import importlib.util

import pytest


def needs(package: str, reason: str) -> None:
    """Skips the test, or the whole file that calls this function, unless the package is installed. The package is not
    imported.
    """
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: {reason}", allow_module_level=True)
