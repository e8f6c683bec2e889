"""Draws a random loader from a seed."""

import random
from typing import Any

from random_graphs import users
from random_graphs.graphs import Graph


class Loader:
    def __init__(self, number: int, services: tuple[str, ...] = ("none", "in process", *5 * ("workers",))) -> None:
        rng = random.Random(f"loader {number}")
        self.number = number
        self.graph = Graph(number)
        self.service = rng.choice(services)
        self.workers = rng.choice([1, 2, 2, 4])
        self.sharing = rng.choice(["filter", "dispatch", "dispatch", "replicated"])
        self.drawn = sorted({rng.random() for _ in range(rng.choice([1, 1, 1, 2]))})
        self.arrays = rng.random() < 0.5
        self.keeps = rng.choice([0, 0, 5, 30])
        self.in_main = rng.choice([None, None, 0, 1, 2])
        self.options = {
            "worker_prefetch_cnt": rng.choice([0, 1, 3, 10]),
            "main_prefetch_cnt": rng.choice([0, 1, 3, 10]),
            "memory_budget": rng.choice([None, 0, 1 << 16, 1 << 20]),
        }
        #: The minimum time between two snapshots, in seconds and as a multiple of the time to take the last snapshot.
        self.cadence = rng.choice([(0.0, 0.0), (0.0, 0.0), (0.001, 1.0), (0.02, 100.0)])

    def pipe(self) -> Any:
        graph = self.graph
        share = {"filter": self._filtered, "dispatch": self._dispatched}.get(self.sharing)
        shares = graph.number_of_shares() if share is not None else 0
        chosen = {int(drawn * shares) for drawn in self.drawn[: 1 if self.sharing == "filter" else 2]}
        pipe = graph.build(dict.fromkeys(chosen, share) if share is not None else None)
        if self.arrays:
            pipe = pipe.map(users.array)
        if self.in_main is None or self.service != "workers":
            return pipe
        pipe = pipe.pin_memory(pin_memory_fn=users.unpinned)
        if self.in_main and self.arrays:
            pipe = pipe.map(users.number)
        rng = random.Random(f"main {self.number}")
        for _ in range(self.in_main):
            pipe = graph.over(rng, pipe)
        return pipe

    def _filtered(self, pipe: Any) -> Any:
        return pipe.sharding_filter()

    def _dispatched(self, pipe: Any) -> Any:
        if not self.arrays:
            return pipe.sharding_round_robin_dispatch()
        return pipe.map(users.array).sharding_round_robin_dispatch().map(users.number)

    def __str__(self) -> str:
        how = self.service
        if how == "workers":
            how = f"{self.workers} workers, {self.options}, in main: {self.in_main}"
        more = f"{self.sharing} at {self.drawn}, arrays: {self.arrays}, keeps {self.keeps}, cadence {self.cadence}"
        message = f"{self.graph}, {how}, {more}"
        self.pipe()
        return f"{message}, all stages: {', '.join(self.graph.names)}"
