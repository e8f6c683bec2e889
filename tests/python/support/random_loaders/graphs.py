"""Runs random operations on loaders of random graphs (see `random_graphs`)."""

import argparse
import random
from typing import Any

from drivers.frame import Driver, Skipped
from random_graphs.check import more as graph_options
from random_graphs.check import with_torch
from random_graphs.loaders import Loader
from random_loaders import run
from random_loaders.pipelines import Differs
from random_loaders.plans import LoaderPlan, only_read
from resuming import start


class GraphLoaderPlan(LoaderPlan):
    def __init__(self, seed: int, methods: tuple[str, ...] = ("fork",)) -> None:
        super().__init__(seed, methods, fault=False)
        rng = random.Random(f"graph life {seed}")
        self.graph = graph = Loader(seed)
        self.kind, self.workers, self.options = graph.service, graph.workers, graph.options
        self.cadence, self.keeps = graph.cadence, graph.keeps
        self.threads = graph.graph.flavour == "threads"
        self.moves, self.block, self.auto, self.free, self.touches = False, None, False, False, False
        self.restarts = self.kind == "workers" and self.method != "remote" and rng.random() < 0.5
        self.ranks = self.ranks and self.kind != "none"
        self.loader_seed = seed % 1000
        self.epochs = [(None, None)] * rng.choice([1, 2])
        self.armed = [False] * (len(self.epochs) + 1)  # in graphs, no function fails on purpose
        self.draws_in_main = self.kind != "workers" and graph.graph.flavour == "global"
        self._choose_splits()
        self.lasts = self.shuffles = True
        if self.splits is not None:  # A common part serves all shards only if few pipes follow the sharding filter.
            graph.sharing, graph.shares, graph.in_main = "filter", [0.999 - 0.3 * rng.random() ** 2], None
        self.main, self.before, self.after = [], [], []

    def pipe(self) -> Any:
        start(self.seed)  # some pipes read their sources during construction
        return self.graph.pipe()

    def numbers(self) -> list[int | None]:
        return [number for number in super().numbers() if number != 0]  # a dispatching process needs workers

    def __repr__(self) -> str:
        more = f"restarts: {self.restarts}, ranks: {self.ranks}, {len(self.epochs)} epochs, busy: {self.busy}"
        return f"seed {self.seed}: {self.graph}, {more}"


def check(plan: GraphLoaderPlan) -> int:
    try:
        runs = [only_read(plan) for _ in range(2)]
    except TimeoutError:
        raise  # a graph that hangs is a fault
    except Exception as error:
        *_, last = str(error).strip().splitlines() or [repr(error)]
        raise Skipped(last) from error
    if runs[0] != runs[1]:
        raise Skipped("runs differ")
    try:
        return run.check(plan)
    except Differs:
        # The timing of threads may cause different items even without interruptions, which is not an error.
        if any(only_read(plan) != runs[0] for _ in range(8)):
            raise Skipped("runs differ") from None
        raise


def plan_of(seed: int, options: argparse.Namespace) -> GraphLoaderPlan:
    plan = GraphLoaderPlan(seed, tuple(options.start_methods.split(",")))
    plan.presses &= not options.no_interrupts
    return plan


def more(parser: argparse.ArgumentParser) -> None:
    run.more(parser)
    graph_options(parser)


DRIVER = Driver(plan_of, check, "things done", around=with_torch, is_quiet=run.is_quiet, more=more)
