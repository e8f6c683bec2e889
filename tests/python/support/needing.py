"""Skips tests if the processes that they start need a missing package. The package is not imported in this process."""

import importlib.util

import pytest


def needs(package: str, reason: str) -> None:
    """Skips the test, or the whole file that calls this function, unless the package is installed."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: {reason}", allow_module_level=True)
