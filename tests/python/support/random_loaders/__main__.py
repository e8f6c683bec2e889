"""Runs random loaders for a while: `python -m random_loaders --seconds 600 --seed 1`."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from random_loaders.plans import METHODS
from watchdog import run_module

#: Frames that say nothing.
DULL = ("/multiprocessing/", "<frozen runpy>", 'File "<string>"', "/threading.py")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=1, help="the first seed; the following runs take the following ones"
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long to begin runs")
    parser.add_argument("--runs", type=int, help="how many runs to begin at most")
    parser.add_argument("--start-methods", default=",".join(METHODS))
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--limit", type=float, default=240, help="seconds after which a run counts as hung")
    parser.add_argument("--lines", type=int, default=100, help="lines of output to show of a run that failed")
    options = parser.parse_args()
    methods = options.start_methods.split(",")
    started, runs, failed = time.monotonic(), 0, []
    seeds = (
        itertools.count(options.seed)
        if options.runs is None
        else iter(range(options.seed, options.seed + options.runs))
    )
    with ThreadPoolExecutor(options.jobs) as pool:
        running = {}
        while True:
            while len(running) < options.jobs and time.monotonic() - started < options.seconds:
                seed = next(seeds, None)
                if seed is None:
                    break
                running[pool.submit(run_seed, seed, methods, options.limit)] = seed
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                seed, ran = running.pop(future), future.result()
                runs += 1
                if not ran.ok:
                    failed.append(seed)
                    report(seed, options.start_methods, ran, options.lines)
    seconds = time.monotonic() - started
    print(f"{runs} runs in {seconds:.0f} s, seeds {options.seed} and on; {len(failed)} failed: {failed}")
    return 1 if failed else 0


def run_seed(seed, methods, limit=240.0):
    """Runs the plan of a seed in a process of its own."""
    arguments = ["random_loaders.run", "--seed", str(seed), "--start-methods", ",".join(methods)]
    return run_module(arguments, limit)


def report(seed, methods, ran, lines):
    print(f"seed {seed} failed after {ran.seconds:.1f} s: {ran.why}")
    print(f"again: python -m random_loaders --seed {seed} --runs 1 --start-methods {methods}")
    # The frames that lead to our own ones are the same in all stacks of hung processes.
    shown = [line for line in ran.output.rstrip().split("\n") if not any(one in line for one in DULL)]
    if len(shown) > lines:
        shown = [*shown[: lines // 2], "…", *shown[-lines // 2 :]]
    print("\n".join("    " + line for line in shown), flush=True)


if __name__ == "__main__":
    sys.exit(main())
