"""A functional form can be registered twice only if a notebook cell that defines its class runs again."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from torchdata.datapipes import functional_datapipe
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.map import MapDataPipe, SequenceWrapper

CELLS = """
import gc, sys
if sys.argv[1] == "with torch":
    import torch.utils.data
from torchdata.datapipes import functional_datapipe
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
cell = '''
@functional_datapipe("times")
class Times(IterDataPipe):
    def __init__(self, source_datapipe):
        self.source_datapipe = source_datapipe
    def __iter__(self):
        return map((FACTOR).__mul__, self.source_datapipe)
'''
for FACTOR in (2, 3):
    exec(cell.replace("FACTOR", str(FACTOR) + "0"))
    pipe = IterableWrapper([1]).times()
    print(list(pipe), type(pipe) is Times)
if sys.argv[1] == "with torch":
    print(list(torch.utils.data.datapipes.iter.IterableWrapper([1]).times()))
gc.freeze()  # the interpreter then exits faster
"""


@pytest.mark.parametrize("torch", ["without torch", "with torch"])
def test_a_cell_of_a_notebook_that_is_run_again_replaces_its_class(torch: str) -> None:
    if torch == "with torch":
        pytest.importorskip("torch")
    command = [sys.executable, "-W", "error", "-c", CELLS, torch]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    assert done.stdout.splitlines()[:2] == ["[20] True", "[30] True"]
    assert done.stdout.splitlines()[2:] == (["[30]"] if torch == "with torch" else [])


def named(name: str, module: str = __name__, base: Any = IterDataPipe) -> Any:
    def __iter__(self: Any) -> Iterator[str]:
        return iter([name])

    return type(name, (base,), {"__iter__": __iter__, "__module__": module, "__init__": lambda self, source: None})


def test_another_class_a_function_and_a_pipe_of_the_package_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IterDataPipe, "functions", dict(IterDataPipe.functions))
    monkeypatch.setattr(MapDataPipe, "functions", dict(MapDataPipe.functions))
    functional_datapipe("taken")(named("First"))
    first = IterableWrapper([1]).taken()  # type: ignore[attr-defined]
    for other in (named("Second"), named("First", "elsewhere"), named("Mapper")):
        for form in ("taken", "map", "zip"):
            with pytest.raises(ValueError, match=f"the functional form '{form}' is already taken by"):
                functional_datapipe(form)(other)
    with pytest.raises(ValueError, match="already taken"):
        IterDataPipe.register_function("taken", len)
    functional_datapipe("taken")(named("First"))
    assert list(first) == list(IterableWrapper([1]).taken()) == ["First"]  # type: ignore[attr-defined]
    functional_datapipe("taken")(named("First", base=MapDataPipe))
    assert list(SequenceWrapper([1]).taken()) == ["First"]  # type: ignore[attr-defined]
