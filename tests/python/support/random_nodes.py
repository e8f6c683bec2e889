"""Random graphs of nodes, their states at every position, and chains of saving and loading: what a run that was never
stopped yields is what comes, over several epochs, of which some are broken off.

    python random_nodes.py --seconds 600 --seed 1 [--processes]

A failure prints the seed and the graph; `--seed N --graphs 1` does it again.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import pickle
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import Sampler

from node_sources import Places
from node_streams import STREAMS, Uncheckpointed
from torchdata.datapipes.iter import IterableWrapper as PipeOf
from torchdata.nodes import (
    BaseNode,
    Batcher,
    Cycler,
    Filter,
    Header,
    IterableWrapper,
    Loader,
    Mapper,
    MultiNodeRoundRobinSampler,
    MultiNodeWeightedSampler,
    ParallelMapper,
    Prefetcher,
    SamplerWrapper,
    StopCriteria,
    Unbatcher,
    from_pipe,
    to_pipe,
)

EPOCHS = 4


class Shuffled(Sampler[int]):
    """A sampler whose order follows from the epoch, as that of DistributedSampler."""

    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.size))
        random.Random(self.epoch).shuffle(order)
        return iter(order)


def add(amount: int, item: Any) -> Any:
    """A function for mappers, of numbers and of nested lists of them."""
    return [add(amount, one) for one in item] if isinstance(item, (list, tuple)) else item + amount


def first_of(item: Any) -> Any:
    """The number in an item of a stream."""
    return item[-1] if isinstance(item, tuple) else item


def add_at_odds(amount: int, item: Any) -> Any:
    """The same, in a time that differs from item to item, so that threads overtake each other."""
    if hash(str(item)) % 5 == 0:
        time.sleep(0.0005)
    return add(amount, item)


def is_kept(number: int, item: Any) -> bool:
    """A function for filters."""
    return len(str(item)) % number != 0


class Graph:
    """A random graph and what it is made of, in words. It can be built any number of times.

    Args:
        seed: what it follows from.
        processes: whether there may be worker processes.
        in_order: whether only nodes that keep the order are taken.
        saves: whether all nodes have states.
    """

    def __init__(self, seed: int, processes: bool = False, in_order: bool = True, saves: bool = True) -> None:
        self.seed, self.processes, self.in_order, self.saves = seed, processes, in_order, saves
        self.words: list[str] = []

    def build(self) -> BaseNode[Any]:
        """The last node."""
        self.chance, self.words = random.Random(self.seed), []
        node = self.source(depth=0)
        for _ in range(self.chance.randint(0, 5)):
            node = self.step(node, depth=0)
        if not self.in_order:
            node = self.mapper(node, in_order=False)
        return node

    def say(self, word: str) -> None:
        self.words.append(word)

    def source(self, depth: int) -> BaseNode[Any]:
        kinds = ["range", "stateful", "sampler", "pipe", "random pipe", "stream", "stream", "stateful sampler"]
        kinds += ["weighted", "round robin"] * (depth < 2) + ["no states"] * 4 * (not self.saves)
        kind, size = self.chance.choice(kinds), self.chance.choice([0, 1, 2, 5, 9])
        self.say(f"{kind}({size})")
        if kind == "range":
            return IterableWrapper(range(size))
        if kind == "stateful":
            return IterableWrapper(Places(size))
        if kind == "no states":
            return Uncheckpointed(size)
        if kind in ("stream", "stateful sampler"):
            stream = self.chance.choice(STREAMS)
            self.say(stream.__name__)
            node = IterableWrapper(stream(size)) if kind == "stream" else SamplerWrapper(stream(size))
            return Mapper(node, first_of)
        if kind == "sampler":
            return SamplerWrapper(Shuffled(size), initial_epoch=self.chance.randint(0, 3))
        if kind == "pipe":
            return IterableWrapper(PipeOf(range(size)).map(functools.partial(add, 1)).batch(2).unbatch())
        if kind == "random pipe":
            return from_pipe(PipeOf(range(size)).shuffle(buffer_size=4), seed=self.chance.randint(0, 9))
        return self.several(kind, depth)

    def several(self, kind: str, depth: int) -> BaseNode[Any]:
        names = "abc"[: self.chance.randint(1, 3)]
        nodes: dict[str, BaseNode[Any]] = {}
        for name in names:
            self.say(f"{name}:")
            nodes[name] = self.source(depth + 1)
            for _ in range(self.chance.randint(0, 2)):
                nodes[name] = self.step(nodes[name], depth + 1)
        criterion = self.chance.choice(sorted(v for k, v in vars(StopCriteria).items() if k.isupper()))
        self.say(criterion)
        node: BaseNode[Any]
        if kind == "round robin":
            node = MultiNodeRoundRobinSampler(nodes, criterion)
        else:
            weights = {name: self.chance.choice([0.1, 1.0, 3.0]) for name in names}
            node = MultiNodeWeightedSampler(nodes, weights, criterion, rank=0, world_size=1, seed=self.seed)
        return Header(node, 12)

    def step(self, node: BaseNode[Any], depth: int) -> BaseNode[Any]:
        chance = self.chance
        kind = chance.choice(
            ["map", "filter", "header", "batch", "rebatch", "prefetch", "parallel", "cycle", "pipe and back"]
        )
        self.say(kind)
        if kind == "map":
            return Mapper(node, functools.partial(add, 1))
        if kind == "filter":
            return Filter(node, functools.partial(is_kept, chance.randint(2, 5)))
        if kind == "header":
            return Header(node, chance.randint(0, 9))
        if kind == "batch":
            return Batcher(node, chance.randint(1, 4), drop_last=chance.random() < 0.5)
        if kind == "rebatch":
            return Unbatcher(Batcher(node, chance.randint(1, 4), drop_last=chance.random() < 0.5))
        if kind == "prefetch":
            return Prefetcher(node, chance.randint(1, 4), snapshot_frequency=chance.randint(0, 4))
        if kind == "cycle":
            return Header(Cycler(node, chance.choice([None, 1, 2])), 20)
        if kind == "pipe and back":
            return from_pipe(to_pipe(node).map(functools.partial(add, 2)))
        return self.mapper(node)

    def mapper(self, node: BaseNode[Any], in_order: bool = True) -> BaseNode[Any]:
        chance = self.chance
        workers = chance.randint(0, 3)
        method = "thread"
        if self.processes and workers:
            self.processes, method, workers = (
                False,
                "process",
                min(workers, 2),
            )  # few, as each graph starts them anew
        options = {
            "in_order": in_order,
            "method": method,
            "max_concurrent": chance.choice([None, 1]),
            "snapshot_frequency": chance.randint(0, 4),
            "prebatch": chance.choice([None, None, 1, 3]),
        }
        self.say(f"ParallelMapper({workers}, {options})")
        return ParallelMapper(node, functools.partial(add_at_odds, 3), workers, **options)


def same(in_order: bool, left: list[Any], right: list[Any]) -> bool:
    return left == right if in_order else Counter(map(repr, left)) == Counter(map(repr, right))


class Check:
    """Holds one graph against its own uninterrupted run.

    Args:
        graph: the graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.positions = 0
        self.chance = random.Random(graph.seed + 1)
        self.loaders: list[Loader[Any]] = []
        #: How many items of each epoch are read; None for all.
        self.plan = [self.chance.choice([None, None, 0, 1, 3]) for _ in range(EPOCHS - 1)] + [None]

    def fresh(self) -> Loader[Any]:
        processes = self.graph.processes
        loader = Loader(self.graph.build())
        self.graph.processes = processes
        self.loaders.append(loader)
        return loader

    def run(self) -> None:
        try:
            self.compare()
        finally:
            for loader in self.loaders:
                loader.shutdown()

    def epochs(self, loader: Loader[Any], first: int = 0) -> list[list[Any]]:
        """The items of epochs, by the plan."""
        return [list(itertools.islice(loader, self.plan[epoch])) for epoch in range(first, EPOCHS)]

    def compare(self) -> None:
        whole = self.epochs(self.fresh())
        if not self.graph.saves:
            for epoch, items in enumerate(self.epochs(self.fresh())):
                self.expect(items, whole[epoch], epoch, "another run")
            return
        saving = self.fresh()
        resumed = self.fresh()
        for epoch, most in enumerate(self.plan):
            iterator = iter(saving)
            states = [pickle.dumps(saving.state_dict())]
            items: list[Any] = []
            for item in itertools.islice(iterator, most):
                items.append(item)
                states.append(pickle.dumps(saving.state_dict()))
            if most is None:
                states.append(pickle.dumps(saving.state_dict()))
            self.expect(items, whole[epoch], epoch, "while states are saved")
            for position, state in enumerate(states):
                if self.chance.random() < 0.5 or position >= len(items):
                    resumed = self.again(resumed)
                    self.resume(resumed, state, items[:position], whole, epoch)

    def again(self, used: Loader[Any]) -> Loader[Any]:
        """A new loader, or one that has stopped somewhere; with processes a new one only where it must be."""
        goes_on = self.graph.processes or self.chance.random() < 0.3
        return used if goes_on and self.goes_back() else self.fresh()

    def goes_back(self) -> bool:
        """Whether a loader that was itself begun from a state can go back to before the first epoch.

        For a stream that draws its orders that is a place as any other, for one that counts its epochs it is not; which
        of them it is shows in the first item of all, and this loader has not seen it.
        """
        return "Draws" not in self.graph.words

    def resume(self, loader: Loader[Any], state: bytes, seen: list[Any], whole: list[list[Any]], epoch: int) -> None:
        where = f"from position {len(seen)} of epoch {epoch}"
        seen, most, all_of_it = list(seen), self.plan[epoch], len(whole[epoch])
        if most is not None and len(seen) == all_of_it:  # whether the epoch is over is not known to a state
            return
        loader.load_state_dict(pickle.loads(state))
        for link in range(self.chance.randint(0, 2)):
            iterator = iter(loader)
            for _ in range(0 if len(seen) == all_of_it else self.chance.randint(0, 2)):
                if len(seen) + (most is not None) < all_of_it:
                    seen.append(next(iterator))
            saved = pickle.loads(pickle.dumps(loader.state_dict()))
            if self.chance.random() < 0.5:
                loader = self.again(loader)
            elif not self.goes_back():
                loader = self.fresh()
            loader.load_state_dict(saved)
            where += f", link {link} at {len(seen)}"
        if len(seen) == all_of_it and self.plan[epoch + 1 : epoch + 2] == [0]:
            return  # the loader begins the next epoch when an item is asked for, and here none is
        self.positions += 1
        if len(seen) < all_of_it:
            rest = list(itertools.islice(loader, None if most is None else most - len(seen)))
            self.expect(seen + rest, whole[epoch], epoch, where)
        for later, items in enumerate(self.epochs(loader, epoch + 1), epoch + 1):
            self.expect(items, whole[later], later, where)

    def expect(self, found: list[Any], wanted: list[Any], epoch: int, where: str) -> None:
        if self.graph.in_order or self.plan[epoch] is None:
            agree = same(self.graph.in_order, found, wanted)
        else:  # some of the items, of which nobody can say which
            agree = len(found) == len(wanted)
        if not agree:
            raise AssertionError(f"epoch {epoch} of {self.plan}, {where}: wanted {wanted}, but got {found}")


def run_many(
    seed: int,
    seconds: float,
    graphs: int | None = None,
    processes: bool = False,
    say: Callable[[str], Any] = print,
) -> tuple[int, int]:
    """Checks random graphs until the time is over. Returns how many, and at how many positions they were loaded."""
    until = time.monotonic() + seconds
    checked = positions = 0
    while time.monotonic() < until and (graphs is None or checked < graphs):
        number = seed + checked
        graph = Graph(number, processes, in_order=number % 5 != 0, saves=number % 7 != 0)
        check = Check(graph)
        try:
            check.run()
        except BaseException:
            say(f"seed {graph.seed}{' --processes' if processes else ''}: {' '.join(graph.words)}")
            raise
        checked += 1
        positions += check.positions
    return checked, positions


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    cli.add_argument("--seconds", type=float, default=60)
    cli.add_argument("--graphs", type=int)
    cli.add_argument("--processes", action="store_true", help="with a ParallelMapper over processes in the graphs")
    chosen = cli.parse_args()
    checked, positions = run_many(chosen.seed, chosen.seconds, chosen.graphs, chosen.processes)
    print(f"seed {chosen.seed}: {checked} graphs, loaded at {positions} positions", file=sys.stderr)


if __name__ == "__main__":
    main()
