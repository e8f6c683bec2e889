"""Random generators of libraries that are imported within an epoch are seeded."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

HEADER = """
import sys
from torchdata._engine import snapshots
from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
snapshots.SECONDS = snapshots.FACTOR = 0.0  # a snapshot after each item, which contains waiting shards, too
def draw(item):
    late = "numpy" not in sys.modules
    import numpy.random
    return item, late, float(numpy.random.random())
def loader(pipe, workers=1, seed=5, method="forkserver"):
    service = MultiProcessingReadingService(workers, method) if workers else InProcessReadingService()
    made = DataLoader2(pipe, reading_service=service)
    made.seed(seed)
    return made
"""

IN_ONE_PROCESS = """
import importlib.util, sys
from torchdata._importing import call_when_imported
from torchdata.datapipes._pipe.state.generators import seed_when_imported
from torchdata.datapipes.iter import *  # all, because other modules wait for an import
from torchdata.datapipes.map import *
call_when_imported("pipes", {})  # pipes wait for an import of torch, too
before = list(sys.meta_path)
seed_when_imported({"torch": 1, "numpy.random": 1})
seed_when_imported({"torch": 7, "numpy.random": 7})
print(len(sys.meta_path) - len(before))
print(importlib.util.find_spec("MODULE").loader.get_source("MODULE") is not None)
import json.tool
import MODULE as module
print(type(module.__loader__).__name__, module.__spec__.loader is module.__loader__)
first = DRAW
SEED(7)
print(first == DRAW)
seed_when_imported({})
print(sys.meta_path == before)
"""

RUNS = """
def run(seed):
    with loader(IterableWrapper(range(4)).map(draw).sharding_round_robin_dispatch(), seed=seed) as made:
        return [list(made), list(made)]
class Numbered(IterDataPipe):
    '''A pipe without a state, so its items are recomputed from the beginning.'''
    def __init__(self, source):
        self.source = source
    def __iter__(self):
        for number, (item, _, drawn) in enumerate(self.source):
            yield number, item, drawn
def recomputed():
    return Numbered(IterableWrapper(range(60)).map(draw).shuffle(buffer_size=5))
def taking_turns():
    return IterableWrapper(range(30)).sharding_filter().map(draw).map(lambda found: (found[0], found[2]))
if __name__ == "__main__":
    print([run(seed) for seed in (1, 1, 2)], "numpy" in sys.modules, sep=";")
    runs = ((recomputed, 0, 40, [0, 1]), (recomputed, 1, 40, [1]), (taking_turns, 3, 1, [0, 1]))
    for pipe, workers, count, others in runs:
        with loader(pipe(), workers) as first:
            iterator = iter(first)
            for _ in range(count):
                next(iterator)
            state = first.state_dict()
            rest = list(iterator)
        for other in others:
            with loader(pipe(), other) as second:
                second.load_state_dict(state)
                print(list(second) == rest)
"""


def printed(*command: str) -> str:
    if command[0] == "-c":  # Without freezing, the interpreter would visit all objects of torch at exit.
        command = ("-c", command[1] + "\nimport gc; gc.freeze()\n")
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_runs_repeat_and_resume_exactly_even_if_a_function_imports_numpy_within_the_epoch(tmp_path: Path) -> None:
    script = tmp_path / "runs.py"
    script.write_text(HEADER + RUNS)
    whole, *resumed = printed(str(script)).splitlines()
    runs, loaded_in_main = whole.split(";")
    first, again, other = ast.literal_eval(runs)
    assert first == again
    assert first != other
    assert first[0] != first[1]
    assert [late for _, late, _ in first[0]] == [True, False, False, False]
    assert loaded_in_main == "False"
    assert resumed == ["True"] * 5


@pytest.mark.parametrize(("early", "late"), [("numpy", "json"), ("json", "numpy"), ("json", "torch, numpy")])
def test_a_state_of_the_main_process_contains_generators_that_are_imported_later(early: str, late: str) -> None:
    pytest.importorskip(late.partition(",")[0])
    program = f"import {early}; from torchdata.datapipes.state import load_generators, save_generators\n"
    program += f"saved = save_generators(); import {late}; from sys import modules\n"
    program += "def draw(): return numpy.random.random(), 'torch' in modules and modules['torch'].rand(()).item()\n"
    program += "first = draw(); load_generators(saved); print(draw() == first)\n"
    program += "print('torch' not in modules or modules['torch'].initial_seed() == 67280421310721)"
    assert printed("-c", program) == "True\nTrue\n"


@pytest.mark.parametrize(
    ("module", "draw", "seed"),
    [("numpy.random", "module.random()", "module.seed"), ("torch", "module.rand(()).item()", "module.manual_seed")],
)
def test_an_awaited_module_gets_its_last_seed_once_and_keeps_its_loader(module: str, draw: str, seed: str) -> None:
    pytest.importorskip(module)
    program = IN_ONE_PROCESS.replace("MODULE", module).replace("DRAW", draw).replace("SEED", seed)
    assert printed("-c", program).splitlines() == ["1", "True", "SourceFileLoader True", "True", "True"]


def test_the_import_finder_leaves_after_the_last_awaited_import_and_stays_if_it_fails(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("import os\nif 'FAILS' in os.environ: raise ImportError('not yet')\n")
    program = f"""
import os, sys
sys.path.insert(0, {str(tmp_path)!r})
from torchdata._importing import call_when_imported
call_when_imported("pipes", {{}})
before = list(sys.meta_path)
call_when_imported("seeds", {{"late": lambda late: print("seeded", late.__name__)}})
os.environ["FAILS"] = "1"
try:
    import late
except ImportError as error:
    print(error, sys.meta_path == before)
del os.environ["FAILS"]
import late
print(sys.meta_path == before)
"""
    assert printed("-c", program).splitlines() == ["not yet False", "seeded late", "True"]


WORKER_INFO = """
def is_same_seed(item):
    late = "torch" not in sys.modules
    import torch
    return late, torch.utils.data.get_worker_info().seed == torch.initial_seed()
if __name__ == "__main__":
    with loader(IterableWrapper(range(2)).map(is_same_seed), method="spawn") as made:
        print(list(made), list(made), "torch" in sys.modules, sep=";")
"""


def test_the_worker_info_contains_the_seed_of_torch_even_if_torch_is_imported_within_the_epoch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "info.py"
    script.write_text(HEADER + WORKER_INFO)
    first, second, loaded_in_main = printed(str(script)).split(";")
    assert ast.literal_eval(first) == [(True, True), (False, True)]
    assert ast.literal_eval(second) == [(False, True), (False, True)]
    assert loaded_in_main.strip() == "False"


MEANWHILE = """
import sys, threading, time
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper
importing = threading.Thread(target=__import__, args=["torch"])
importing.start()
while "torch" not in sys.modules:
    time.sleep(0)
pipe = IterableWrapper(range(20)).shuffle()
assert importing.is_alive() and getattr(sys.modules["torch"].__spec__, "_initializing")
with DataLoader2(pipe, reading_service=MultiProcessingReadingService(1, "fork")) as loader:
    iterator = iter(loader)
    first = next(iterator)
    loader.state_dict()
    print(sorted([first, *iterator]) == sorted(pipe) == list(range(20)))
importing.join()
"""


def test_seeds_are_drawn_after_another_thread_has_finished_importing_a_library() -> None:
    pytest.importorskip("torch")
    assert printed("-c", MEANWHILE) == "True\n"


def test_a_library_that_is_being_imported_counts_as_not_loaded_where_that_fails(tmp_path: Path) -> None:
    code = "import time, __main__; __main__.seen.wait(120); time.sleep(0.3); raise ImportError('damaged')\n"
    (tmp_path / "broken.py").write_text(code)
    program = f"""
import sys, threading, time
sys.path.insert(0, {str(tmp_path)!r})
from torchdata._importing import loaded

def fail():
    try:
        import broken
    except ImportError as error:
        print(error)

print(loaded("broken"))
seen, importing = threading.Event(), threading.Thread(target=fail)
importing.start()
while "broken" not in sys.modules:
    time.sleep(0)
seen.set()
print(loaded("broken"))
importing.join()
"""
    assert sorted(printed("-c", program).split()) == ["None", "None", "damaged"]
