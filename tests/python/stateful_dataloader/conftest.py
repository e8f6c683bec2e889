"""Skips the tests of this folder if PyTorch is not installed."""

from needing import skips_without_torch as pytest_pycollect_makemodule  # noqa: F401 - a hook of pytest
