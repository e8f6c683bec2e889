"""The programs in `examples` run as their first lines describe, and the models that they train learn."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fresh_processes import run_program
from needing import needs
from ranks import environment_of_ranks, mpirun, torchrun

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def output_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment_of_ranks())
    return output_of(done)


LAUNCHERS = {
    "one_process.py": lambda path: output_of(run_program(path)),
    "workers.py": lambda path: output_of(run_program(path)),
    "ranks_torchrun.py": lambda path: "".join(torchrun(path)),
    "ranks_mpirun.py": lambda path: run(mpirun(), "-n", "2", sys.executable, str(path)),
}


def test_every_example_is_run_here() -> None:
    assert set(LAUNCHERS) == {path.name for path in EXAMPLES.glob("*.py")} - {"digits.py"}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_an_example_learns_to_recognize_digits(name: str) -> None:
    needs("mpi4py" if "mpi" in name else "torch", reason=f"the example {name} uses this package")
    printed = LAUNCHERS[name](EXAMPLES / name)
    accuracies = [float(found) for found in re.findall(r"([\d.]+)% of the test digits", printed)]
    assert len(accuracies) == 5, printed
    assert accuracies[-1] > 85, printed
    steps = [int(found) for found in re.findall(r"(\d+) steps on each rank", printed)]
    assert steps == ([45] * 5 if "ranks" in name else [])


@pytest.mark.parametrize(("name", "package"), [("dgl_graphbolt.py", "dgl"), ("torchtitan_loader.py", "torchtitan")])
def test_a_loader_of_another_project_runs_on_this_package(name: str, package: str) -> None:
    needs(package, reason=f"{name} runs this package")
    printed = run(sys.executable, str(EXAMPLES / "clients" / name))
    assert re.findall(r": (True|False)$", printed, re.M) == ["True", "True"]
