"""If a library is imported within an epoch, its global random generator is seeded like the generators of all other
libraries."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

RUNS = """
import sys
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.graph.settings import SHARDING_PRIORITIES
from torchdata.datapipes.iter import IterableWrapper

def draw(item):
    late = "numpy" not in sys.modules
    import numpy.random
    return item, late, float(numpy.random.random())

def run(seed, where):
    pipe = IterableWrapper(range(4)).map(draw)
    pipe = pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING) if where == "dispatching" else pipe
    service = MultiProcessingReadingService(num_workers=1, multiprocessing_context="spawn")
    with DataLoader2(pipe, reading_service=service) as loader:
        loader.seed(seed)
        return [list(loader), list(loader)]

if __name__ == "__main__":
    print([run(seed, sys.argv[1]) for seed in (1, 1, 2)], "numpy" in sys.modules, sep=";")
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


GOES_ON = """
from torchdata._engine import snapshots
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe

def draw(item):
    import numpy.random
    return item, float(numpy.random.random())

class Numbered(IterDataPipe):
    '''Without a state: its items are made again from the beginning.'''

    def __init__(self, source):
        self.source = source

    def __iter__(self):
        yield from enumerate(self.source)

def loader():
    service = MultiProcessingReadingService(num_workers=1, multiprocessing_context="spawn")
    pipe = IterableWrapper(range(60)).map(draw).shuffle(buffer_size=5)
    return DataLoader2(Numbered(pipe), reading_service=service)

if __name__ == "__main__":
    snapshots.SECONDS = snapshots.FACTOR = 0.0
    with loader() as whole:
        whole.seed(5)
        items = list(whole)
    with loader() as stopped:
        stopped.seed(5)
        iterator = iter(stopped)
        head = [next(iterator) for _ in range(40)]
        state = stopped.state_dict()
    with loader() as again:
        again.load_state_dict(state)
        print(head + list(again) == items)
"""


MOVES = """
from torchdata._engine import snapshots
from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

snapshots.SECONDS = snapshots.FACTOR = 0.0  # saves waiting shards, too

def draw(item):
    import numpy.random
    return item, float(numpy.random.random())

def loader(workers):
    pipe = IterableWrapper(range(30)).sharding_filter().map(draw)
    service = MultiProcessingReadingService(workers, "spawn") if workers else InProcessReadingService()
    return DataLoader2(pipe, reading_service=service)

if __name__ == "__main__":
    with loader(3) as first:
        first.seed(5)
        iterator = iter(first)
        next(iterator)
        state = first.state_dict()
        rest = list(iterator)
    for workers in 0, 1:
        with loader(workers) as second:
            second.load_state_dict(state)
            print(list(second) == rest)
"""


def printed(*command: str) -> str:
    if command[0] == "-c":  # without freezing, the interpreter visits all objects of torch at exit
        command = ("-c", command[1] + "\nimport gc; gc.freeze()\n")
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("where", ["worker", "dispatching"])
def test_runs_repeat_even_if_a_function_imports_numpy_within_the_epoch(where: str, tmp_path: Path) -> None:
    script = tmp_path / "runs.py"
    script.write_text(RUNS)
    runs, loaded_in_main = printed(str(script), where).split(";")
    first, again, other = ast.literal_eval(runs)
    assert first == again
    assert first != other
    assert first[0] != first[1]
    assert [late for _, late, _ in first[0]] == [True, False, False, False]  # the first call imported the library
    assert loaded_in_main.strip() == "False"


def test_recomputed_items_draw_the_same_numbers_if_numpy_was_imported_within_the_epoch(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    script = tmp_path / "goes_on.py"
    script.write_text(GOES_ON)
    assert printed(str(script)).strip() == "True"


def test_shards_that_take_turns_in_a_process_draw_the_same_numbers_if_one_of_them_imports_numpy(tmp_path: Path) -> None:
    script = tmp_path / "moves.py"
    script.write_text(MOVES)
    assert printed(str(script)).split() == ["True", "True"]


@pytest.mark.parametrize(
    ("module", "draw", "seed"),
    [("numpy.random", "module.random()", "module.seed"), ("torch", "module.rand(()).item()", "module.manual_seed")],
)
def test_an_awaited_module_is_seeded_once_with_the_last_seed_and_keeps_its_loader(
    module: str, draw: str, seed: str
) -> None:
    pytest.importorskip(module)
    program = IN_ONE_PROCESS.replace("MODULE", module).replace("DRAW", draw).replace("SEED", seed)
    assert printed("-c", program).splitlines() == ["1", "True", "SourceFileLoader True", "True", "True"]


def test_the_import_finder_leaves_once_all_awaited_modules_are_imported_and_stays_after_a_failed_import(
    tmp_path: Path,
) -> None:
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
if CASE == "pipes":
    print(sorted(pipe) == list(range(20)))
else:
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(1, "fork")) as loader:
        iterator = iter(loader)
        first = next(iterator)
        loader.state_dict()
        print(sorted([first, *iterator]) == list(range(20)))
importing.join()
"""


@pytest.mark.parametrize("case", ["pipes", "workers"])
def test_seeds_are_drawn_after_another_thread_has_finished_importing_a_library(case: str) -> None:
    pytest.importorskip("torch")
    assert printed("-c", MEANWHILE.replace("CASE", repr(case))) == "True\n"


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
