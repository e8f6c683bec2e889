"""Strikes loaders for a while: `python -m chaos --seconds 600 --seed 1`."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from chaos.drive import run_seed
from chaos.plans import METHODS


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=1, help="the first seed; the following runs take the following ones"
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long to begin runs")
    parser.add_argument("--runs", type=int, default=1 << 30, help="how many runs to begin at most")
    parser.add_argument("--start-methods", default=",".join(METHODS))
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--lines", type=int, default=100, help="lines of output to show of a run that failed")
    options = parser.parse_args()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has it in the background, and children would
        signal.signal(signal.SIGINT, signal.default_int_handler)
    methods = options.start_methods.split(",")
    started, seed, last = time.monotonic(), options.seed, options.seed + options.runs
    failed, latencies, struck, hung = [], defaultdict(list), 0, Counter()
    with ThreadPoolExecutor(options.jobs) as pool:
        running = {}
        while True:
            while len(running) < options.jobs and seed < last and time.monotonic() - started < options.seconds:
                running[pool.submit(run_seed, seed, methods)] = seed
                seed += 1
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                which, outcome = running.pop(future), future.result()
                struck += outcome.struck is not None or outcome.plan.victim == "self"
                if outcome.plan.hang:
                    hung[outcome.plan.hang] += 1
                if outcome.latency is not None:
                    latencies[outcome.plan.victim, outcome.plan.blow].append(outcome.latency)
                if outcome.wrong:
                    failed.append(which)
                    report(which, options.start_methods, outcome, options.lines)
    for (victim, blow), times in sorted(latencies.items()):
        times.sort()
        at = [times[int(len(times) * share)] for share in (0.5, 0.95)]
        print(f"{victim:8} {blow:8} {len(times):5} times, noticed after {at[0]:.3f} s, 95 % within {at[1]:.3f} s")
    if hung:
        print(f"hung and replaced: {', '.join(f'{count} by {way}' for way, count in sorted(hung.items()))}")
    seconds = time.monotonic() - started
    print(f"{seed - options.seed} runs in {seconds:.0f} s, {struck} of them struck; {len(failed)} failed: {failed}")
    return 1 if failed else 0


def report(seed, methods, outcome, lines):
    print(f"seed {seed} failed after {outcome.seconds:.1f} s: {'; '.join(outcome.wrong)}")
    print(f"again: python -m chaos --seed {seed} --runs 1 --start-methods {methods}")
    print(f"    {outcome.plan.describe()}")
    said = [line.get("phase") for line in outcome.said if "phase" in line]
    print(f"    it came to {said[-1] if said else 'nothing'}; struck: {outcome.struck}, process {outcome.victim}")
    shown = outcome.printed.rstrip().splitlines()
    if len(shown) > lines:
        shown = [*shown[: lines // 2], "…", *shown[-lines // 2 :]]
    print("\n".join("    " + line for line in [*map(str, outcome.said[-3:]), *shown]), flush=True)


if __name__ == "__main__":
    sys.exit(main())
