"""Whole lives of random graphs in loaders: what `random_lives` does to loaders, to those of `random_graphs`.

    python -m graph_lives --seconds 600 --seed 1          # in tests/python/support; runs seeds 1, 2, 3, …
    python -m graph_lives --seed 17 --runs 1              # one of them again

No epoch is left early: how far threads had run then is a matter of speed, and some of these pipes remember it.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import random_lives
from driving import drive, parser_of
from life_plans import Life, only_read
from random_graphs.check import NotComparable, start
from random_graphs.loaders import Loader
from random_pipelines import Differs


class GraphLife(Life):
    """A life of a graph, drawn from a seed."""

    def __init__(self, seed: int, methods: tuple[str, ...] = ("fork",)) -> None:
        super().__init__(seed, methods)
        dice = random.Random(f"graph life {seed}")
        self.graph = graph = Loader(seed)
        self.kind, self.workers, self.options, self.cadence = (
            graph.service,
            graph.workers,
            graph.options,
            graph.cadence,
        )
        self.threads = graph.graph.flavour == "threads"
        self.moves, self.block, self.auto, self.free = False, None, False, False
        self.restarts = self.kind == "workers" and dice.random() < 0.5
        self.ranks = self.ranks and self.kind != "none"
        self.loader_seed = seed % 1000
        self.epochs = [(None, None)] * dice.choice([1, 2])
        self.lasts = True
        self.draws_in_main = self.kind != "workers" and graph.graph.flavour == "global"
        self.skips = graph.graph.flavour != "global"
        self.main, self.before, self.behind = [], [], []

    def pipe(self) -> Any:
        start(self.seed)  # some pipes read their sources while they are made
        return self.graph.pipe()

    def __repr__(self) -> str:
        more = f"restarts: {self.restarts}, ranks: {self.ranks}, {len(self.epochs)} epochs"
        return f"seed {self.seed}: {self.graph}, {more}"


def check(life: GraphLife) -> int:
    """Runs a life; returns how many things were done in it.

    Raises:
        Differs: it gives something else than a loader that is only read.
        NotComparable: the graph fails, or does not repeat itself.
    """
    try:
        runs = [only_read(life) for _ in range(2)]
    except Exception as error:
        raise NotComparable(str(error)) from error
    if runs[0] != runs[1]:
        raise NotComparable("runs differ")
    try:
        return random_lives.check(life)
    except Differs:
        # Threads that draw beside each other do so in the same order more often than not.
        if any(only_read(life) != runs[0] for _ in range(8)):
            raise NotComparable("runs differ") from None
        raise


def check_if_comparable(life: GraphLife) -> int:
    """The same; 0 where that cannot be said."""
    try:
        return check(life)
    except NotComparable:
        return 0


def main() -> int:
    options = parser_of(__doc__).parse_args()
    methods = tuple(options.start_methods.split(","))
    return drive(options, lambda seed: GraphLife(seed, methods), check_if_comparable, "things done")


if __name__ == "__main__":
    sys.exit(main())
