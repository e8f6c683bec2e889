"""The programs in `examples` run as their first lines describe, and the models that they train learn."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fresh_processes import run_program
from needing import needs
from ranks import environment_of_ranks, mpirun

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def launchers() -> dict[str, list[str]]:
    """Returns the command that starts each example, by name.

    A process that has imported torch runs the first two examples without a launcher.
    """
    return {
        "one_process.py": [],
        "workers.py": [],
        "ranks_torchrun.py": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
        "ranks_mpirun.py": [mpirun(), "-n", "2", sys.executable],
    }


def test_every_example_is_run_here() -> None:
    assert set(launchers()) == {path.name for path in EXAMPLES.glob("*.py")} - {"digits.py"}


@pytest.mark.parametrize("name", launchers())
def test_an_example_learns(name: str) -> None:
    needs("mpi4py" if "mpi" in name else "torch", reason=f"{name} needs it")
    if launcher := launchers()[name]:
        command = [*launcher, str(EXAMPLES / name)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment_of_ranks())
    else:
        run = run_program(EXAMPLES / name)
    assert run.returncode == 0, run.stderr
    accuracies = [float(found) for found in re.findall(r"([\d.]+)% of the test digits", run.stdout)]
    assert len(accuracies) == 5
    assert accuracies[-1] > 85, run.stdout
    steps = [int(found) for found in re.findall(r"(\d+) steps on each rank", run.stdout)]
    assert steps == ([45] * 5 if "ranks" in name else [])


@pytest.mark.parametrize(("name", "package"), [("dgl_graphbolt.py", "dgl"), ("torchtitan_loader.py", "torchtitan")])
def test_a_loader_of_another_project_runs_on_this_package(name: str, package: str) -> None:
    """The test is skipped unless the other project is installed."""
    needs(package, reason="it is what is tried")
    command = [sys.executable, str(EXAMPLES / "clients" / name)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment_of_ranks())
    assert run.returncode == 0, run.stderr
    assert re.findall(r": (True|False)$", run.stdout, re.M) == ["True", "True"]
