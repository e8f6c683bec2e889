"""Without PyTorch, importing `torchdata.stateful_dataloader` raises an error that explains what to install."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["torch"] = None  # as if torch were not installed
import torchdata.dataloader2
try:
    import torchdata.stateful_dataloader
except ImportError as error:
    print(error)
"""


def test_without_torch_the_import_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=250, check=True)
    assert done.stdout == (
        "torchdata.stateful_dataloader needs PyTorch, which is not installed; install it with "
        "`pip install 'torch>=2.6'` (the extra torchdata-rs[torch])\n"
    )
