"""Draws a random graph of nodes from a seed."""

import functools
import random
import time
from typing import Any

from torch.utils.data import DistributedSampler

from node_streams import Uncheckpointed
from random_nodes import sources
from torchdata import nodes
from torchdata.nodes import BaseNode, Batcher, IterableWrapper, Mapper, ParallelMapper, Prefetcher, SamplerWrapper

CATEGORIES = ("lists and pipes", "samplers", "streams", "several sources", "nodes without checkpoints")


def add(amount: int, item: Any) -> Any:
    return [add(amount, one) for one in item] if isinstance(item, (list, tuple)) else item + amount


def add_at_odds(amount: int, item: Any) -> Any:
    if hash(str(item)) % 5 == 0:
        time.sleep(0.0005)
    return add(amount, item)


def is_kept(number: int, item: Any) -> bool:
    return len(str(item)) % number != 0


class Graph:
    def __init__(
        self,
        seed: int,
        processes: bool = False,
        in_order: bool = True,
        common: bool = False,
        bare: bool = False,
        threads: bool = True,
    ) -> None:
        self.seed, self.processes, self.in_order = seed, processes, in_order
        self.common, self.bare, self.threads = common, bare, threads
        self.words: list[str] = []
        self.kinds: set[str] = set()
        self.counts = False

    @property
    def category(self) -> str:
        return next((one for one in reversed(CATEGORIES) if one in self.kinds), CATEGORIES[0])

    @property
    def shows_reading_ahead(self) -> bool:
        return (self.counts and bool(self.kinds & {"several sources", "cycled"})) or {
            "weighted",
            "cycled",
        } <= self.kinds

    def build(self) -> BaseNode[Any]:
        self.chance, self.words, self.kinds, self.counts = random.Random(self.seed), [], set(), False
        self.processes_left = 1 if self.processes else 0
        node = self.source(depth=0)
        for _ in range(self.chance.randint(0, 5)):
            node = self.step(node, depth=0)
        if not self.in_order:
            node = self.mapper(node, in_order=False)
        return node

    def add_word(self, word: str) -> None:
        self.words.append(word)

    def source(self, depth: int) -> BaseNode[Any]:
        kinds = ["range", "counting", "sampler", "sampler", "distributed", "stateful distributed", "stream", "stream"]
        kinds += ["pipe", "random pipe"] * (not self.common) + ["bare"] * 4 * self.bare
        kinds += ["weighted", "weighted"] * (depth < 2) + ["round robin"] * (depth < 2 and not self.common)
        kind, size = self.chance.choice(kinds), self.chance.choice([0, 1, 2, 5, 9])
        if kind in ("weighted", "round robin"):
            self.kinds |= {"several sources", kind}
            return self.several(kind, depth)
        self.add_word(f"{kind}({size})")
        if kind == "range":
            return IterableWrapper(range(size))
        if kind == "counting":
            return sources.Counting(size)
        if kind == "bare":
            self.kinds.add("nodes without checkpoints")
            return Uncheckpointed(size)
        if kind == "stream":
            return self.stream(size)
        if "pipe" in kind:
            return self.pipe(kind, size)
        self.kinds.add("samplers")
        self.counts = True
        return self.sampler(kind, size)

    def stream(self, size: int) -> BaseNode[Any]:
        name = self.chance.choice(list(sources.STREAMS))
        self.kinds.add("streams")
        self.counts |= "Counts" in name
        self.add_word(name)
        return IterableWrapper(sources.STREAMS[name](size))

    def pipe(self, kind: str, size: int) -> BaseNode[Any]:
        from torchdata.datapipes.iter import IterableWrapper as PipeOf

        if kind == "pipe":
            return IterableWrapper(PipeOf(range(size)).map(functools.partial(add, 1)).batch(2).unbatch())
        self.counts = True
        return nodes.from_pipe(PipeOf(range(size)).shuffle(buffer_size=4), seed=self.chance.randint(0, 9))

    def sampler(self, kind: str, size: int) -> BaseNode[Any]:
        from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

        if kind == "sampler":
            updater = self.chance.choice([None, functools.partial(add, 2)])
            return SamplerWrapper(sources.Shuffled(size), self.chance.randint(0, 3), updater)
        cls = DistributedSampler if kind == "distributed" else StatefulDistributedSampler
        return SamplerWrapper(cls(range(2 * size + 2), 2, 1, seed=3))  # type: ignore[arg-type]

    def several(self, kind: str, depth: int) -> BaseNode[Any]:
        names = "abc"[: self.chance.randint(1, 3)]
        parts: dict[str, BaseNode[Any]] = {}
        self.add_word(kind)
        for name in names:
            self.add_word(f"{name}:")
            parts[name] = self.source(depth + 1)
            for _ in range(self.chance.randint(0, 2)):
                parts[name] = self.step(parts[name], depth + 1)
        criteria = [value for name, value in vars(nodes.StopCriteria).items() if name.isupper()]
        if self.common:
            criteria.remove(nodes.StopCriteria.CYCLE_FOREVER)  # epochs would never end
        criterion = self.chance.choice(sorted(criteria))
        self.add_word(criterion)
        if kind == "round robin":
            node: BaseNode[Any] = nodes.MultiNodeRoundRobinSampler(parts, criterion)
        else:
            weights = {name: self.chance.choice([0.1, 1.0, 3.0]) for name in names}
            self.counts |= depth > 0
            node = nodes.MultiNodeWeightedSampler(parts, weights, criterion, rank=0, world_size=1, seed=self.seed)
        # The number of items is limited, because a sampler that chooses nodes at random may yield very many items.
        return sources.First(node, 60) if self.common else nodes.Header(node, 12)

    def step(self, node: BaseNode[Any], depth: int) -> BaseNode[Any]:
        chance = self.chance
        kinds = ["map", "batch", "rebatch", "prefetch", "prefetch", "parallel", "parallel"]
        kind = chance.choice(kinds + ["filter", "header", "cycle", "pipe and back"] * (not self.common))
        self.add_word(kind)
        if kind == "map":
            return Mapper(node, functools.partial(add, 1))
        if kind == "filter":
            return nodes.Filter(node, functools.partial(is_kept, chance.randint(2, 5)))
        if kind == "header":
            return nodes.Header(node, chance.randint(0, 9))
        if kind == "batch":
            return Batcher(node, chance.randint(1, 4), drop_last=chance.random() < 0.5)
        if kind == "rebatch":
            return nodes.Unbatcher(Batcher(node, chance.randint(1, 4), drop_last=chance.random() < 0.5))
        if kind == "prefetch":
            return self.prefetcher(node)
        if kind == "cycle":
            self.kinds.add("cycled")
            return nodes.Header(nodes.Cycler(node, chance.choice([None, 1, 2])), 20)
        if kind == "pipe and back":
            return nodes.from_pipe(nodes.to_pipe(node).map(functools.partial(add, 2)))
        return self.mapper(node)

    def frequency(self) -> int:
        return self.chance.randint(1, 4) if self.common else self.chance.randint(0, 4)

    def prefetcher(self, node: BaseNode[Any]) -> BaseNode[Any]:
        factor, frequency = self.chance.randint(1, 4), self.frequency()
        self.add_word(f"Prefetcher({factor}, snapshot_frequency={frequency})")
        return Prefetcher(node, factor, snapshot_frequency=frequency) if self.threads else node

    def mapper(self, node: BaseNode[Any], in_order: bool = True) -> BaseNode[Any]:
        chance = self.chance
        workers = chance.randint(0, 3)
        method = "thread"
        if self.processes_left and workers:  # starting processes takes time
            self.processes_left, method, workers = 0, "process", min(workers, 2)
        options = {
            "in_order": in_order,
            "method": method,
            "max_concurrent": chance.choice([None, 1]),
            "snapshot_frequency": self.frequency(),
            "prebatch": chance.choice([None, None, 1, 3]),
        }
        self.add_word(f"ParallelMapper({workers}, {options})")
        if not self.threads:
            return Mapper(node, functools.partial(add, 3))
        return ParallelMapper(node, functools.partial(add_at_odds, 3), workers, **options)
