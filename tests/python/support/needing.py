"""Skips tests whose processes need a package that is not installed, without the slow import of it here."""

from __future__ import annotations

import importlib.util

import pytest


def needs(package: str, reason: str) -> None:
    """Skips the test, or the whole file that calls this, unless the package is installed; it is not imported."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: {reason}", allow_module_level=True)
