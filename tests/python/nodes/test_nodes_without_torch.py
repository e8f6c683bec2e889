"""Without PyTorch, only `torchdata.nodes` and `torchdata.stateful_dataloader` cannot be imported."""

from programs import output_of

PROGRAM = """
import importlib, sys
import torchdata.dataloader2, torchdata.datapipes.iter
print({"ray", "torch", "torchdata.nodes", "torchdata.stateful_dataloader"} & sys.modules.keys())
sys.modules["torch"] = None  # as if torch were not installed
from torchdata.datapipes.iter import IterableWrapper
for name in ("nodes", "stateful_dataloader"):
    try:
        importlib.import_module("torchdata." + name)
    except ImportError as error:
        print(error)
try:
    IterableWrapper([1]).to_node()
except ImportError as error:
    print(type(error).__name__)
print(list(IterableWrapper([1]).map(str)))
"""


def test_without_torch_the_import_names_what_to_install_and_the_other_packages_work() -> None:
    why = "(import of torch halted; None in sys.modules)"
    remedy = f"needs 'torch', which is not installed {why}; install it with `pip install 'torch>=2.6'`"
    assert output_of(PROGRAM).splitlines() == [
        "set()",
        f"torchdata.nodes {remedy} (the extra torchdata-rs[torch])",
        f"torchdata.stateful_dataloader {remedy} (the extra torchdata-rs[torch])",
        "ModuleNotFoundError",
        "['1']",
    ]
