"""Random drivers (see `drivers`) run some of their plans, and detect faults that a test inserts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drivers.frame import Driver, Outcome, outcomes, parser_of
from lives import model, plans, run
from lives.epochs import Epoch
from lives.pipelines import Differs

pytestmark = pytest.mark.filterwarnings("ignore:on_error has skipped:RuntimeWarning")

SUPPORT = Path(__file__).parents[1] / "support"

#: The command lines of the drivers.
RUNS = [
    "lives --calm --runs 14",
    "lives --calm --runs 2 --seed 101 --start-methods spawn",
    "lives --calm --runs 2 --seed 201 --start-methods forkserver",
    "lives --calm --runs 3 --seed 301 --start-methods remote",
    "lives --calm --blows --runs 6",
    "lives --calm --blows --runs 2 --seed 101 --start-methods spawn",
    "lives --calm --blows --runs 2 --seed 201 --start-methods forkserver",
    "graph-lives --calm --runs 6",
    "graph-lives --calm --runs 1 --seed 5 --start-methods spawn",
    "files --runs 6",
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


# -- running seeds and reporting failures ------------------------------------------------------------------


def outcome_of(check: Callable[[Any], Any], limit: float = 60.0) -> Outcome:
    driver = Driver(lambda seed, _: seed, lambda seed: check(seed) or 1, "things")
    options = parser_of(driver, "test").parse_args(["--runs", "1", "--limit", f"{limit}"])
    ((_, _, outcome),) = outcomes(driver, options)
    return outcome


def die(number: int) -> None:
    os.kill(os.getpid(), number)


WRONG: dict[str, Callable[[Any], Any]] = {
    "it hung": lambda _: time.sleep(1000),
    "ZeroDivisionError": lambda _: 1 // 0,
    "processes outlived it": lambda _: os.system("setsid true; sleep 1000 &"),
    "something was printed": lambda _: print("here"),
    "exit code -9": lambda _: die(signal.SIGKILL),
    "left behind: {'child processes'": lambda _: globals().update(kept=subprocess.Popen(["sleep", "1000"])),
}


@pytest.mark.parametrize("words", WRONG)
def test_the_frame_reports_what_is_wrong_with_a_plan(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivers.frame.GONE", 0.2)
    assert words in outcome_of(WRONG[words], limit=1.0 if "hung" in words else 60.0).wrong


# -- checks of the loaders' items -----------------------------------------------------------------------------


def first_life(condition: Callable[[plans.Life], Any]) -> plans.Life:
    return next(life for life in map(plans.Life, range(1000)) if condition(life))


def changed(epochs: list[Epoch], change: Callable[[Epoch], Epoch]) -> list[Epoch]:
    found = []
    for epoch in epochs:
        found.append(Epoch(change(epoch)))
        found[-1].until, found[-1].fails = epoch.until, epoch.fails
    return found


CHANGES: dict[str, Callable[[Epoch], Any]] = {
    "the end is missing": lambda epoch: epoch[:-1],
    "one is missing": lambda epoch: epoch[:3] + epoch[4:],
    "one came twice": lambda epoch: epoch[:3] + epoch[2:],
    "nothing came": lambda epoch: [],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("free", [True, False])
def test_the_driver_reports_a_loader_that_differs_from_the_model(change: str, free: bool) -> None:
    life = first_life(lambda life: model.is_known(life) and life.free == free and life.items > 20 and not life.main)
    right = plans.only_read(life)
    model.compare(life, right)
    with pytest.raises(Differs):
        model.compare(life, changed(right, CHANGES[change]))


def test_the_order_counts_and_out_of_order_that_of_one_worker() -> None:
    epoch = Epoch(range(10))
    epoch.shares = [list(range(0, 10, 2)), list(range(1, 10, 2))]
    epoch.check([], [1, 0, 2], free=True)
    with pytest.raises(Differs, match="item 0 is 1 instead of 0"):
        epoch.check([], [1, 0, 2], free=False)
    with pytest.raises(Differs, match="worker 0 came in another order"):
        epoch.check([2], [1, 0], free=True)
    with pytest.raises(Differs, match="too many"):
        epoch.check([2, 1], [2], free=True)


def test_the_driver_reports_a_loader_that_resumes_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    load = plans.DataLoader2.load_state_dict

    def off_by_one(self: Any, state: Any) -> None:
        load(self, state)
        next(iter(self), None)

    monkeypatch.setattr(plans.DataLoader2, "load_state_dict", off_by_one)
    monkeypatch.setattr(plans.Life, "may_press", False)
    found = 0
    for seed in range(1, 40):
        life = plans.Life(seed)
        if life.kind != "workers" and life.items > 20:
            try:
                run.check(life)
            except Differs:
                found += 1
    assert found > 2
