"""Runs random programs and prints how many of each category went on exactly.

python -m random_stateful --programs 2000 --seed 1 [--python PATH] [--beside PATH]
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from random_stateful.judging import Judge, Verdict
from random_stateful.programs import CATEGORIES, program_of


def table(columns: dict[str, list[Verdict]]) -> str:
    """How many programs of each category were exact, a column for each interpreter."""
    lines = []
    for category in [*CATEGORIES, "all"]:
        cells = []
        for name, verdicts in columns.items():
            of_it = [one for one in verdicts if not one.unknowable and category in (one.program.category, "all")]
            cells.append(f"{name} {sum(not one.wrong for one in of_it)} of {len(of_it)}")
        lines.append(f"{category:35} " + ", ".join(f"{cell:22}" for cell in cells))
    for name, verdicts in columns.items():
        torch = [one for one in verdicts if one.unlike_torch is not None]
        told = [one.known for one in verdicts if "json" in one.known]
        reasons = Counter(one.unknowable for one in verdicts if one.unknowable)
        lines += [
            f"{name}:",
            f"  epochs of torch's loader: {sum(not one.unlike_torch for one in torch)} of {len(torch)}",
            f"  states that are JSON: {sum(one['json'] for one in told)} of {len(told)},"
            f" that are alike when asked for twice: {sum(one['alike'] for one in told)},"
            f" median size: {statistics.median([one['size'] for one in told] or [0]):.0f} bytes",
            f"  programs that nobody can go on with exactly: {sum(reasons.values())}",
        ]
        for reason, count in reasons.most_common():
            exact = sum(not one.wrong for one in verdicts if one.unknowable == reason)
            lines.append(f"    {count}, of which {exact} were exact: {reason}")
    return "\n".join(lines)


def report(verdict: Verdict, name: str, options: argparse.Namespace) -> None:
    program = verdict.program
    again = f"python -m random_stateful --programs 1 --seed {program.seed} --python {options.python}"
    print(f"{name}: seed {program.seed}, {program.category}: {program.words()}")
    print(f"    {verdict.wrong or 'unlike torch: ' + str(verdict.unlike_torch)}")
    print(f"    again: {again}", flush=True)


def main() -> int:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--seed", type=int, default=1, help="the first seed; later programs take the next ones")
    cli.add_argument("--programs", type=int, default=100, help="how many")
    cli.add_argument("--seconds", type=float, default=float("inf"), help="how long to begin programs")
    cli.add_argument("--python", default=sys.executable, help="the interpreter that is measured")
    cli.add_argument("--beside", help="an interpreter with another torchdata, which is counted beside")
    cli.add_argument("--limit", type=float, default=30, help="seconds after which a run counts as hung")
    cli.add_argument("--only", choices=CATEGORIES, help="only programs of this category")
    options = cli.parse_args()
    pythons = {"ours": options.python} | ({"beside": options.beside} if options.beside else {})
    columns: dict[str, list[Verdict]] = {name: [] for name in pythons}
    started = time.monotonic()
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(len(pythons)) as pool:
        judges = {name: stack.enter_context(Judge(python, options.limit)) for name, python in pythons.items()}
        for seed in range(options.seed, options.seed + options.programs):
            if time.monotonic() - started > options.seconds:
                break
            if options.only and program_of(seed).category != options.only:
                continue
            futures = {name: pool.submit(judge.judge, seed) for name, judge in judges.items()}
            for name, future in futures.items():
                verdict = future.result()
                columns[name].append(verdict)
                if name == "ours" and not verdict.unknowable and (verdict.wrong or verdict.unlike_torch):
                    report(verdict, name, options)
    print(table(columns))
    print(
        f"{len(columns['ours'])} programs from seed {options.seed} in {(time.monotonic() - started) / 60:.1f} minutes"
    )
    return int(any(one.wrong and not one.unknowable for one in columns["ours"]))


if __name__ == "__main__":
    sys.exit(main())
