"""Without PyTorch, importing `torchdata.nodes` raises an error that explains the reason. All other packages work."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["torch"] = None  # as if torch were not installed
import torchdata.dataloader2
from torchdata.datapipes.iter import IterableWrapper
try:
    import torchdata.nodes
except ImportError as error:
    print(error)
try:
    IterableWrapper([1]).to_node()
except ImportError as error:
    print(type(error).__name__)
print(list(IterableWrapper([1]).map(str)))
"""


def test_without_torch_the_import_says_what_to_install_and_the_other_packages_work() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=250, check=True)
    assert done.stdout.splitlines() == [
        "torchdata.nodes needs PyTorch, which is not installed; install it with `pip install 'torch>=2.6'` "
        "(the extra torchdata-rs[torch])",
        "ImportError",
        "['1']",
    ]


def test_importing_the_package_imports_neither_the_nodes_nor_torch() -> None:
    program = "import sys, torchdata.datapipes.iter; print({'torch', 'torchdata.nodes'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=250, check=True)
    assert done.stdout == "set()\n"
