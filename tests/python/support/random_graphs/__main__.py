"""Checks random graphs for some minutes, by themselves and in loaders: `python -m random_graphs 10`."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress

from random_graphs.check import NotComparable, check_graph
from random_graphs.check_loaders import check_loader
from random_graphs.graphs import Graph
from random_graphs.loaders import METHODS, Loader

#: Seconds that one graph takes at most: beyond them, something was waited for until that was given up.
LONG = 60.0


KINDS = ("graphs", "loaders")


class Checked:
    """The results of the graphs of one kind."""

    def __init__(self, kind: str, options: argparse.Namespace) -> None:
        self.kind, self.options = kind, options
        self.numbers = itertools.islice(itertools.count(options.seed), options.graphs)
        self.seconds = 0.0
        self.graphs = self.ways = 0
        self.skipped: Counter[str] = Counter()
        self.wrong: list[int] = []
        self.long: list[int] = []

    def check_next(self) -> bool:
        """Checks one more; False where there is none, or enough went wrong."""
        number = next(self.numbers, None)
        if number is None or len(self.wrong) == self.options.stop:
            return False
        began = time.monotonic()
        try:
            self.ways += self._check(number)
            self.graphs += 1
        except NotComparable as error:
            self.skipped[str(error)[:60]] += 1
        except Exception as error:
            self.wrong.append(number)
            text = traceback.format_exception(error)
            print(*text[-8:] if self.options.graphs != 1 else text, sep="", flush=True)
        seconds = time.monotonic() - began
        self.seconds += seconds
        if seconds > LONG:
            self.long.append(number)
        return True

    def _check(self, number: int) -> int:
        options = self.options
        if self.kind == "graphs":
            return check_graph(Graph(number), options.most, away=options.away / 10)
        methods = {name: METHODS[name] for name in options.start_methods.split(",")}
        return check_loader(Loader(number), options.most // 2, methods, options.away)

    def __str__(self) -> str:
        said = f"{self.kind}: {self.graphs}, {self.ways} ways through them, {len(self.wrong)} wrong: {self.wrong}"
        if self.long:
            said += f"\n  took longer than {LONG:g} s: {self.long}"
        return f"{said}\n  {self.skipped.total()} were not comparable: {self.skipped.most_common(8)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("minutes", type=float, nargs="?", default=1.0)
    parser.add_argument("--seed", type=int, default=1, help="of the first graph; the next ones have the next ones")
    parser.add_argument("--graphs", type=int, help="how many of each kind at most")
    parser.add_argument(
        "--kind",
        choices=[*KINDS, "all"],
        default="all",
        help="by themselves, or in loaders",
    )
    parser.add_argument("--most", type=int, default=12, help="ways through each graph; half as many through a loader")
    parser.add_argument("--start-methods", default="fork,forkserver,spawn", help="of workers")
    parser.add_argument("--away", type=float, default=0.05, help="share of the ways on which fresh interpreters go on")
    parser.add_argument("--no-torch", action="store_true", help="without torch's pipes and generator")
    parser.add_argument("--stop", type=int, default=20, help="after how many that went wrong")
    parser.add_argument(
        "--switch", type=float, help="seconds between two threads of a process, where not Python's 0.005"
    )
    options = parser.parse_args()
    if options.switch is not None:
        sys.setswitchinterval(options.switch)
    if not options.no_torch:
        with suppress(ImportError):
            import torch.utils.data  # noqa: F401
    kinds = [Checked(kind, options) for kind in KINDS if options.kind in (kind, "all")]
    end = time.monotonic() + 60 * options.minutes
    left = list(kinds)
    while left and time.monotonic() < end:
        behind = min(left, key=lambda kind: kind.seconds)  # each gets as much time
        if not behind.check_next():
            left.remove(behind)
    print(*kinds, sep="\n")
    return 1 if any(kind.wrong for kind in kinds) else 0


if __name__ == "__main__":
    sys.exit(main())
