"""Pipes that are imported when they are first used: by their names, by their forms, or their modules by themselves."""

from __future__ import annotations

import subprocess
import sys

import pytest

WAYS = """
import importlib, pickle, sys
import torchdata.dataloader2
import torchdata.datapipes.iter as pipes

modules = {f"{pipes.__name__}.{module}": names for module, names in pipes._LATE.items()}
print(sorted(set(modules) & set(sys.modules)))
way = sys.argv[1]
for module, names in modules.items():
    for name, form in names.items():
        if way == "module":
            importlib.import_module(module)
        elif way == "form" and form:
            getattr(pipes.IterableWrapper([]), form)
        elif way == "registry" and form:
            pipes.IterDataPipe.functions[form].__doc__
            assert pipes.IterDataPipe.functions[form].__wrapped__.__name__ == name
        made = getattr(pipes, name)
        if isinstance(made, type):
            assert made.__module__ == pipes.__name__, made
            assert pickle.loads(pickle.dumps(made)) is made
        if form:
            assert pipes.IterDataPipe.functions[form].__wrapped__ is made
            assert getattr(pipes.IterableWrapper([]), form).__func__ is pipes.IterDataPipe.functions[form]
    assert module in sys.modules
assert set(pipes.__all__) <= set(dir(pipes))
"""


def run(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("way", ["name", "form", "registry", "module"])
def test_a_late_pipe_is_the_same_however_it_is_first_used(way: str) -> None:
    assert run(WAYS, way) == "[]\n"


UNPICKLED = """
import pickle, sys
pipe = pickle.loads(bytes.fromhex(sys.argv[1]))
print(list(pipe))
"""


def test_a_pickle_of_a_late_pipe_imports_its_module() -> None:
    made = "from torchdata.datapipes.iter import *; import pickle\n"
    made += "print(pickle.dumps(IterableWrapper([[1, 2], [3]]).pack(3)).hex())"
    assert "[1, 2, 3]" in run(UNPICKLED, run(made).strip())


TAKEN = """
from torchdata.datapipes import functional_datapipe
from torchdata.datapipes.iter import IterDataPipe
try:
    @functional_datapipe("load_from_tar")
    class Other(IterDataPipe):
        pass
except ValueError as error:
    print(error)
"""


def test_the_form_of_a_pipe_that_is_not_imported_yet_is_taken() -> None:
    assert "'load_from_tar' is already taken" in run(TAKEN)


FOUND_BY_TORCHS = """
import torchdata.datapipes.iter, sys
from torch.utils.data.datapipes.iter import IterableWrapper
assert "torchdata.datapipes.iter.ordering.packing" not in sys.modules
print(type(IterableWrapper([[1, 2], [3]]).pack(3)).__module__)
"""


def test_pipes_of_torchs_find_late_forms() -> None:
    pytest.importorskip("torch", reason="the pipes are torch's")
    assert run(FOUND_BY_TORCHS) == "torchdata.datapipes.iter\n"
