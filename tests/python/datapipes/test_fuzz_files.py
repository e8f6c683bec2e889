"""Hostile input from a seed (see `fuzz_files`): some of what `make fuzz-files` tries for minutes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "support"


def test_whatever_is_read_of_others_ends_in_data_or_in_an_error_that_was_promised():
    # A process of its own: its peak of memory is that of what it reads.
    run = subprocess.run(
        [sys.executable, "-m", "fuzz_files", "1", "--inputs", "60"],
        cwd=SUPPORT,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert run.returncode == 0, run.stdout + run.stderr
