"""A few random plans of each driver (see `drivers`) pass, and the drivers detect faults that the tests insert."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from drivers.frame import Driver, Outcome, outcomes, parser_of
from families import TORCH
from random_loaders import plans, run
from random_loaders.epochs import read_epoch
from random_loaders.pipelines import Differs, Failing
from torchdata.dataloader2 import DataLoader2
from torchdata.datapipes.iter import IterableWrapper
from watchdog import survivors_of

pytestmark = pytest.mark.filterwarnings("ignore:on_error has skipped:RuntimeWarning")

SUPPORT = Path(__file__).parents[1] / "support"

RUNS = [
    "loaders --no-interrupts --runs 2",
    "loaders --no-interrupts --runs 1 --seed 105 --start-methods spawn",
    "loaders --no-interrupts --runs 1 --seed 301 --start-methods remote",
    "loaders --no-interrupts --faults --runs 2",
    "loaders --no-interrupts --faults --runs 1 --seed 201 --start-methods forkserver",
    "graph-loaders --no-interrupts --runs 2 --seed 3",
    "files --runs 3",
    *(["stateful --runs 1", "nodes --runs 1"] if TORCH else []),
]


@pytest.mark.parametrize("arguments", RUNS)
def test_a_driver_finds_nothing_wrong(arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "drivers", *arguments.split(), "--seconds", "1000", "--jobs", "2"],
        cwd=SUPPORT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_planned_exit_ends_an_epoch_as_a_planned_error_does(tmp_path: Path) -> None:
    (tmp_path / "flag").touch()
    error, leave = (
        read_epoch(DataLoader2(IterableWrapper(range(60)).map(Failing(f"{tmp_path}/flag", failure))))
        for failure in ("error", "exit")
    )
    assert (error.fails, leave.fails) == (True, True)
    assert 0 < len(error) == len(leave) < 60


def outcome_of(check: Callable[[Any], Any], limit: float = 60.0) -> Outcome:
    driver = Driver(lambda seed, _: seed, lambda seed: check(seed) or 1, "things")
    options = parser_of(driver, "test").parse_args(["--runs", "1", "--limit", f"{limit}"])
    ((_, _, outcome),) = outcomes(driver, options)
    return outcome


def kill_itself(number: int) -> None:
    os.kill(os.getpid(), number)


WRONG: dict[str, Callable[[Any], Any]] = {
    "the run hung": lambda _: time.sleep(1000),
    "ZeroDivisionError": lambda _: 1 // 0,
    "these processes still run": lambda _: os.system("setsid true; sleep 1000 &"),
    "the run printed text": lambda _: print("here"),
    "exit code -9": lambda _: kill_itself(signal.SIGKILL),
    "still exists: {'child processes'": lambda _: globals().update(kept=subprocess.Popen(["sleep", "1000"])),
}


@pytest.mark.parametrize("words", WRONG)
def test_the_frame_reports_what_is_wrong_with_a_plan(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivers.frame.EXITED", 0.2)
    monkeypatch.setattr("drivers.frame.survivors_of", partial(survivors_of, seconds=0.5))
    assert words in outcome_of(WRONG[words], limit=1.0 if "hung" in words else 60.0).wrong


def test_the_driver_reports_a_loader_that_resumes_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    load = plans.DataLoader2.load_state_dict

    def off_by_one(self: Any, state: Any) -> None:
        load(self, state)
        next(iter(self), None)

    monkeypatch.setattr(plans.DataLoader2, "load_state_dict", off_by_one)
    monkeypatch.setattr(plans.LoaderPlan, "may_press", False)
    found = 0
    for seed in range(1, 40):
        plan = plans.LoaderPlan(seed)
        if plan.kind != "workers" and plan.items > 20:
            try:
                run.check(plan)
            except Differs:
                found += 1
        if found > 2:
            return
    pytest.fail(f"the driver noticed faults of {found} loaders")
