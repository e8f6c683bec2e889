"""Creates a random graph from a seed."""

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from random_graphs.stages import GLOBAL, OVER_ONE, OVER_SEVERAL, SOURCES, THREADED, torch_stages
from random_graphs.users import small
from torchdata.datapipes.iter import Mapper


def _is_cache(name: str) -> bool:
    return "on_disk" in name


LONGEST = 40


@dataclass
class Graph:
    number: int
    only: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        rng = random.Random(f"plan {self.number}")
        self.flavour = rng.choice(["plain", "plain", "global", "threads"])
        #: Threads draw random numbers in an order that depends on timing, so graphs with threads are always seeded.
        self.is_seeded = self.flavour == "threads" or rng.random() < 0.6
        #: How a graph is seeded: pipe by pipe ("pipes"), before each epoch ("graph"), or only once ("once").
        self.seeding = random.Random(f"seeding {self.number}").choice(["pipes", "graph", "graph", "once"])
        self.epochs = rng.choice([1, 2, 2, 3])
        self.depth = rng.choice([1, 1, 2, 2, 3, 3, 4, 5, 6, 8])
        self.reads_ahead = random.Random(f"ahead {self.number}").random() < 0.4
        self.names: list[str] = []
        self._grown_pipes = 0
        self._changes: dict[int, Callable[[Any], Any]] = {}

    def build(self, changes: dict[int, Callable[[Any], Any]] | None = None) -> Any:
        self.names, self._grown_pipes, self._changes = [], 0, changes or {}
        rng = random.Random(f"graph {self.number}")
        pipe = self._grown(rng, self.depth)
        pipe = pipe.header(LONGEST) if rng.random() < 0.8 else pipe.map(small).header(LONGEST).map(small)
        if self.flavour == "global" and self.reads_ahead:  # A single thread draws all random numbers.
            self.names.append("prefetch")
            pipe = pipe.prefetch(rng.choice([1, 3, 20]))
            if rng.random() < 0.5:
                pipe = Mapper(self._chosen(rng, OVER_ONE, pipe), small)
        if "torch" in sys.modules and rng.random() < 0.1:  # no other pipe may read this pipe
            self.names.append("torch_map")
            pipe = torch_stages()["torch_map"](rng, pipe)
        return pipe

    def number_of_shares(self) -> int:
        self.build()
        return self._grown_pipes

    def over(self, rng: random.Random, pipe: Any) -> Any:
        return Mapper(self._chosen(rng, OVER_ONE, pipe), small)

    def _grown(self, rng: random.Random, depth: int) -> Any:
        pipe = self._stage(rng, depth)
        change = self._changes.get(self._grown_pipes)
        self._grown_pipes += 1
        return pipe if change is None else change(pipe)

    def _stage(self, rng: random.Random, depth: int) -> Any:
        if depth == 0:
            sources = (
                SOURCES if self.flavour != "threads" else {**SOURCES, "sampler": SOURCES["range"]}
            )  # a shuffling sampler would draw random numbers
            return Mapper(self._chosen(rng, sources, rng.choice([0, 1, 3, 5, 9, 12])), small)
        if rng.random() < 0.15:
            pipes = [self._grown(rng, rng.randrange(depth)) for _ in range(rng.choice([1, 2, 2, 3]))]
            return Mapper(self._chosen(rng, OVER_SEVERAL, pipes), small)
        below = self._grown(rng, depth - 1)
        return Mapper(self._chosen(rng, self._stages(rng), below), small)

    def _stages(self, rng: random.Random) -> dict[str, Any]:
        if self.flavour == "global" and rng.random() < 0.35:
            return GLOBAL
        if self.flavour == "threads" and rng.random() < 0.35:
            return THREADED
        if "torch" in sys.modules and rng.random() < 0.08:
            return torch_stages()
        rows = {name: stage for name, stage in OVER_ONE.items() if name.startswith("row ")}
        others = {name: stage for name, stage in OVER_ONE.items() if name not in rows}
        return others if rng.random() < 0.6 else rows

    def _chosen(self, rng: random.Random, stages: dict[str, Any], below: Any) -> Any:
        names = [name for name in stages if self.only is None or name in self.only] or list(stages)
        name = rng.choice(names)
        while _is_cache(name) and any(map(_is_cache, self.names)):  # Two sections with the same files would hang.
            name = rng.choice(names)
        self.names.append(name)
        return stages[name](rng, below)

    def __str__(self) -> str:
        self.build()
        how = f"seeded: {self.seeding}" if self.is_seeded else "not seeded"
        return f"graph {self.number} ({self.flavour}, {how}, {self.epochs} epochs): {', '.join(self.names)}"
