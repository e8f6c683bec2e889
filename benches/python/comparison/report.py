"""Computes medians, ratios and verdicts from the runs, and prints the results as a table in plain text."""

from __future__ import annotations

import statistics

from comparison.memory import Course
from comparison.workloads import BEFORE, OURS, WORKERS, Goal, Workload

Runs = dict[str, list[dict[str, float]]]
"""For each contender, the lines that its runs printed. The list is empty if the contender could not run."""

PLAIN = "plain generators"


def ratio_of(mine: list[float], theirs: list[float]) -> float:
    """Divides the results of runs that directly followed each other, and returns the median ratio, so that slow changes
    of the machine's speed cancel out."""
    return statistics.median(a / b for a, b in zip(mine, theirs, strict=False))


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def _verdict(met: bool | None) -> str:
    return {True: "met", False: "MISSED", None: "not measured"}[met]


def _goal_line(goal: str, measured: str, met: bool | None) -> str:
    return f"    goal: {goal}: {measured}{': ' if measured else ''}{_verdict(met)}"


class Report:
    def __init__(self) -> None:
        self.verdicts: list[tuple[str, str, str, bool | None]] = []
        self.speeds: dict[str, list[float]] = {}

    def _judge(self, title: str, goal: str, measured: str, met: bool | None) -> None:
        self.verdicts.append((title, goal, measured, met))
        print(_goal_line(goal, measured, met), flush=True)

    def workload(self, workload: Workload, runs: Runs) -> None:
        figures = {name: [run["value"] for run in done] for name, done in runs.items()}
        if workload.kind == "in_process":
            figures[PLAIN] = [run["plain"] for run in runs[OURS]]
        mine = figures[OURS]
        print(f"\n{workload.title} [{workload.name}]")
        for name, values in figures.items():
            if not values:
                print(f"  {name:28}{'failed':>12}")
                continue
            median = statistics.median(values) * workload.scale
            ours = "" if name == OURS or not mine else f"   ours/this {_number(ratio_of(mine, values))}"
            print(f"  {name:28}{_number(median):>12} {workload.unit:9}{ours}")
        if before := figures.get(BEFORE):
            pairs = zip(mine, before, strict=False)
            # A ratio of times is inverted, so that a larger ratio always means that this version is faster.
            self.speeds[workload.name] = [a / b if workload.unit.endswith("/s") else b / a for a, b in pairs]
            return
        for goal in workload.goals:
            self._goal(workload, goal, mine, figures.get(goal.rival, []))
        if workload.name == "arrays":
            self._memcpys(workload, mine, next((done for name, done in runs.items() if "no loader" in name), []))

    def _goal(self, workload: Workload, goal: Goal, mine: list[float], theirs: list[float]) -> None:
        if not mine or not theirs:
            self._judge(workload.title, goal.text, "", None)
            return
        ratio = ratio_of(mine, theirs)
        self._judge(workload.title, goal.text, _number(ratio), goal.met(ratio))

    def _memcpys(self, workload: Workload, mine: list[float], floors: list[dict[str, float]]) -> None:
        """Prints the transport time of an item as a multiple of the time for a memory copy. The transport time is the
        time per item, minus the time to create an item divided by the number of workers."""
        for key, where in (("memcpy_s", "in cache"), ("far_memcpy_s", "out of cache")):
            goal = f"beyond producing it at most 1.5 memcpys ({where})"
            if not mine or not floors:
                self._judge(workload.title, goal, "", None)
                continue
            pairs = list(zip(mine, floors, strict=False))
            copies = statistics.median((1 / a - floor["made_s"] / WORKERS) / floor[key] for a, floor in pairs)
            microseconds = statistics.median(floor[key] for floor in floors) * 1e6
            measured = f"{copies:.2f} memcpys of {microseconds:.1f} µs"
            self._judge(workload.title, goal, measured, copies <= 1.5)

    def memory(self, course: Course | None, seconds: float) -> None:
        title, goal = "memory in a long run", "main and workers are flat"
        print(f"\n{title} [memory]: 150 KiB arrays for {seconds:.0f} s")
        if course is None:
            self._judge(title, goal, "", None)
            return
        level, growth, peak, shared = (
            part / 1e6 for part in (course.level, course.growth, course.peak, course.peak_shared)
        )
        print(f"  PSS {level:.1f} MB, peak {peak:.1f} MB, of it shared memory at most {shared:.1f} MB")
        self._judge(title, goal, f"{growth:+.2f} MB in the second half", course.flat)

    def summary(self) -> None:
        """Prints all goals in one table, with missed goals last."""
        if self.speeds:
            print("\nTimes as fast as before: median, and lowest to highest pair of runs")
            for name, speeds in sorted(self.speeds.items(), key=lambda one: statistics.median(one[1])):
                print(f"  {name:32}{statistics.median(speeds):6.3f}   {min(speeds):.3f} to {max(speeds):.3f}")
            middle = statistics.geometric_mean(map(statistics.median, self.speeds.values()))
            print(f"  geometric mean of {len(self.speeds)} rows: {middle:.3f}")
            return
        print("\nGoals")
        for title, goal, measured, met in sorted(self.verdicts, key=lambda one: one[3] is not True):
            print(f"  {_verdict(met):13}{title}: {goal}{f' ({measured})' if measured else ''}")
        counts = [sum(one[3] is state for one in self.verdicts) for state in (True, False, None)]
        print("  {} met, {} missed, {} not measured".format(*counts))
