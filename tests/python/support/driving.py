"""The common parts of the drivers of random loaders: seeds one after the other, for so long, and a report of them."""

from __future__ import annotations

import argparse
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

#: Seconds between two lines that say how far a driver is.
SAID = 60.0


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """The options of all of them."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--start-methods", default="fork", help="to choose from, as in fork,spawn")
    parser.add_argument("--cadence-zero", action="store_true", help="a snapshot after each item")
    return parser


def drive(options: argparse.Namespace, plan_of: Callable[[int], Any], check: Callable[[Any], int], noun: str) -> int:
    """Runs plans, of one seed after the other; 1 where one failed.

    Args:
        options: what `parser_of` has parsed.
        plan_of: from a seed, what is to be run.
        check: runs it, and returns how much of what `noun` names there was.
        noun: what is counted.
    """
    warnings.simplefilter("ignore")
    warnings.filterwarnings("always", ".* did not end within .*")  # a process is left behind then
    started, failed, seed, count = time.monotonic(), [], options.seed, 0
    said = started
    while time.monotonic() - started < options.seconds:
        if options.runs is not None and seed >= options.seed + options.runs:
            break
        plan = plan_of(seed)
        if options.cadence_zero:
            plan.cadence = 0.0, 0.0
        try:
            count += check(plan)
        except Exception:
            failed.append(seed)
            print(plan, traceback.format_exc()[-1500:], sep="\n", flush=True)
        seed += 1
        if time.monotonic() > said + SAID:  # a driver that is ended has told what it did
            said = time.monotonic()
            print(f"so far {seed - options.seed} runs, {count} {noun}; {len(failed)} failed", flush=True)
    print(f"{seed - options.seed} runs, {count} {noun}; {len(failed)} failed: {failed}")
    return 1 if failed else 0
