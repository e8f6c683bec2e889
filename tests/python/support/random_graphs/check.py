"""Saves and loads a graph at any position, and compares the items with an uninterrupted run."""

import argparse
import contextlib
import pickle
import random
import warnings
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from drivers.frame import Driver, Skipped
from pipes_table import seed
from random_graphs.elsewhere import elsewhere
from random_graphs.graphs import Graph
from resuming import start
from torchdata.dataloader2.graph.settings import set_graph_random_seed
from torchdata.dataloader2.random import SeedGenerator
from torchdata.datapipes._pipe.graph.traversal import walk
from torchdata.datapipes.state import iterate, load_generators, load_state, save_generators, save_state, threads_paused


class Different(AssertionError):
    """Raised if a resumed run yields other items than the uninterrupted run."""


class Plain:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.pipe = graph.build()

    def begin(self, epoch: int) -> None:
        if not self.graph.is_seeded:
            return
        number = 1000 * self.graph.number + epoch
        if self.graph.seeding == "pipes":
            seed(self.pipe, number)
        elif epoch == 0 or self.graph.seeding == "graph":
            set_graph_random_seed(self.pipe, SeedGenerator(number))

    def items(self) -> Iterator[Any]:
        self.iterator: Any = iterate(self.pipe)
        return self.iterator  # type: ignore[no-any-return]

    def save(self) -> bytes:
        # For every fourth graph without a disk cache, the iterator is deleted before the state is saved.
        if self.graph.number % 4 == 0 and not any("on_disk" in name for name in self.graph.names):
            self.iterator = None
        with threads_paused(walk(self.pipe)):  # Paused threads draw no random numbers.
            return pickle.dumps((save_state(self.pipe), save_generators()))

    def load(self, saved: bytes) -> None:
        state, generators = pickle.loads(saved)
        load_state(self.pipe, state)
        # If a plain graph has one seed for all its pipes, the global random generators need not be restored.
        if not (self.graph.is_seeded and self.graph.seeding != "pipes" and self.graph.flavour == "plain"):
            load_generators(generators)

    def close(self) -> None:
        # An iterator that is not deleted would keep file locks, and would continue in a later run.
        self.iterator = None
        for pipe in reversed(walk(self.pipe)):
            if hasattr(type(pipe), "shutdown"):
                pipe.shutdown()


def whole(graph: Graph, reader: type[Plain] = Plain) -> list[list[Any]]:
    runs = []
    for _ in range(2):
        start(graph.number)
        try:
            run = reader(graph)
            epochs = []
            for epoch in range(graph.epochs + 1):
                run.begin(epoch)
                epochs.append(list(islice(run.items(), 10_000)))
            run.close()
        except Exception as error:
            raise Skipped(repr(error)) from error
        runs.append(epochs)
    if runs[0] != runs[1]:
        raise Skipped("two runs differ")
    return runs[0]


def check(
    graph: Graph,
    expected: list[list[Any]],
    epoch: int,
    position: int,
    chain: list[int],
    reader: type[Plain],
    away: bool = False,
) -> None:
    """Saves a graph at `position` (-1 means before the first item), and resumes from the state. For each number in
    `chain`, the resumed graph yields this number of items, and is then saved and resumed again."""
    start(graph.number)
    run = reader(graph)
    for earlier in range(epoch):
        run.begin(earlier)
        _same(list(run.items()), expected[earlier], "an epoch before the stop")
    run.begin(epoch)
    ended = position < 0 < epoch
    done = _read(run, [] if ended else expected[epoch], 0, position)
    saved = run.save()
    run.close()
    arguments = (graph, expected, epoch, ended, done, saved, chain, reader)
    if away:
        elsewhere(__name__, "resume", *arguments)
    else:
        resume(*arguments)


def resume(
    graph: Graph,
    expected: list[list[Any]],
    epoch: int,
    ended: bool,
    done: int,
    saved: bytes,
    chain: list[int],
    reader: type[Plain],
) -> None:
    rest = [] if ended else expected[epoch]
    for link, count in enumerate(chain):
        start(graph.number)  # To determine a length, some pipes read their sources during construction.
        run = reader(graph)
        start(17)
        if len(chain) > 1 and link % 2:  # loads the state into a graph that was read before
            with suppress(Exception):  # With other random numbers, the graph may fail, but can still load a state.
                list(islice(run.items(), 2))
        run.load(saved)
        if link + 1 < len(chain):
            done = _read(run, rest, done, count)
            saved = run.save()
            run.close()
    _same(list(run.items()), rest[done:], "the rest of the epoch")
    if ended:
        _same(list(run.items()), expected[epoch], "the epoch after that")
    for later in range(epoch + 1, graph.epochs + 1):
        run.begin(later)
        _same(list(run.items()), expected[later], f"epoch {later}")
    run.close()


def _read(run: Plain, expected: list[Any], done: int, count: int) -> int:
    if count < 0:
        return done
    iterator = run.items()
    _same(list(islice(iterator, count)), expected[done : done + count], "the items before the stop")
    return min(done + count, len(expected))


def _same(found: list[Any], expected: list[Any], what: str) -> None:
    if found != expected:
        raise Different(f"{what}: {found} instead of {expected}")


def positions(
    graph: Graph, expected: list[list[Any]], most: int, rng: random.Random
) -> list[tuple[int, int, list[int]]]:
    ways = [(epoch, position) for epoch in range(graph.epochs) for position in range(-1, len(expected[epoch]) + 2)]
    if len(ways) > most:
        ways = rng.sample(ways, most)
    return [(*way, [rng.choice([-1, 0, 1, 2, 5, 50]) for _ in range(rng.choice([1, 2, 3]))]) for way in ways]


def check_graph(graph: Graph, most: int = 12, reader: type[Plain] = Plain, away: float = 0.0) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = whole(graph, reader)
        ways = positions(graph, expected, most, random.Random(f"ways {graph.number}"))
        rng = random.Random(f"away {graph.number}")
        for way in ways:
            try:
                check(graph, expected, *way, reader, away=rng.random() < away)
            except Exception as error:
                # If even complete runs differ, the timing of threads is the cause, which is not an error.
                if isinstance(error, Different) and any(whole(graph, reader) != expected for _ in range(8)):
                    raise Skipped("runs differ") from error
                error.add_note(f"{graph}; epoch, position, chain: {way}")
                raise
    return len(ways)


@contextlib.contextmanager
def with_torch(options: argparse.Namespace) -> Iterator[None]:
    if not options.no_torch:
        with suppress(ImportError):
            import torch.utils.data  # noqa: F401
    yield


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-torch", action="store_true", help="without torch's pipes and generator")


DRIVER = Driver(
    lambda seed, _: Graph(seed),
    lambda graph: check_graph(graph, away=0.005),
    "ways through graphs",
    limit=120.0,
    around=with_torch,
    more=more,
    is_quiet=lambda _: False,
)
