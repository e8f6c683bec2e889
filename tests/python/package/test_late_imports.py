"""A pipe is imported when its name, its functional form or its module is first used."""

import pytest

from fresh_processes import run_python

WAYS = """
import importlib, pickle, sys
import torchdata.datapipes
import torchdata.datapipes.iter as iter_pipes, torchdata.datapipes.map as map_pipes

way = sys.argv[1]
modules = {}
for pipes in (iter_pipes, map_pipes):
    for module, words in (*pipes._PIPES.items(), *pipes._HELD.items()):
        full = module if module.startswith("torchdata.") else f"{pipes.__name__}.{module}"
        names = modules.setdefault(full, (pipes, {}))[1]
        names.update((name, form) for name, _, form in (word.partition("=") for word in words.split()))
print(sorted(set(modules) & set(sys.modules)))
for module, (pipes, names) in modules.items():
    is_iter = pipes is iter_pipes
    base, wrapper = (pipes.IterDataPipe, "IterableWrapper") if is_iter else (pipes.MapDataPipe, "SequenceWrapper")
    for name, form in names.items():
        if way == "module":
            importlib.import_module(module)
        elif way == "form" and form:
            getattr(getattr(pipes, wrapper)([]), form)
        elif way == "registry" and form:
            base.functions[form].__doc__
            assert base.functions[form].__wrapped__.__name__ == name
        made = getattr(pipes, name)
        if isinstance(made, type):
            assert made.__module__ == pipes.__name__, made
            assert pickle.loads(pickle.dumps(made)) is made
        if form:
            assert base.functions[form].__wrapped__ is made
            assert getattr(getattr(pipes, wrapper)([]), form).__func__ is base.functions[form]
    assert module in sys.modules
for pipes in (iter_pipes, map_pipes):
    assert set(pipes.__all__) <= set(dir(pipes))
"""


def run(code: str, *arguments: str) -> str:
    done = run_python("-c", code, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("way", ["name", "form", "registry", "module"])
def test_a_lazily_imported_pipe_is_the_same_however_it_is_first_used(way: str) -> None:
    assert run(WAYS, way) == "[]\n"


OTHER_FORMS = """
from torchdata.datapipes.iter import IterDataPipe, IterableWrapper
from torchdata.datapipes.map import SequenceWrapper

for pipe, form in ((IterableWrapper([(0, 1)]), "to_map_datapipe"), (SequenceWrapper([5]), "to_iter_datapipe")):
    print(*getattr(pipe, form)().__class__.__mro__[:1], form in dir(pipe))
print(sorted(IterableWrapper([3]).sample_multiplex({IterableWrapper([1]): 1}, seed=0)))
print(IterDataPipe.functions["to_node"].__module__)
"""


def test_forms_that_are_functions_or_convert_pipes_are_imported_lazily_too() -> None:
    assert run(OTHER_FORMS).splitlines() == [
        "<class 'torchdata.datapipes.map.IterToMapConverter'> True",
        "<class 'torchdata.datapipes.iter.MapToIterConverter'> True",
        "[1, 3]",
        "torchdata.datapipes.iter.mapping.converting",
    ]


LOADER = """
import sys, torchdata.dataloader2 as loaders
print([name for name in sys.modules if name.startswith("torchdata.dataloader2.")])
print(loaders.graph.traverse_dps.__module__, loaders.error.WorkerExitedError is loaders.WorkerExitedError)
print(set(loaders.__all__) <= set(dir(loaders)), all(hasattr(loaders, name) for name in loaders.__all__))
print(hasattr(loaders, "nothing"), hasattr(loaders, "_nothing"), hasattr(loaders, "__wrapped__"))
"""


def test_the_loaders_are_imported_when_one_is_asked_for() -> None:
    assert run(LOADER).splitlines() == [
        "[]",
        "torchdata.dataloader2.graph.utils True",
        "True True",
        "False False False",
    ]


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


def test_torch_s_pipes_find_lazily_imported_forms() -> None:
    pytest.importorskip("torch", reason="the test uses torch's own pipes")
    assert run(FOUND_BY_TORCHS) == "torchdata.datapipes.iter\n"
