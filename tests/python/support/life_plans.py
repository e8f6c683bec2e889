"""Lives of loaders, drawn from a seed, and what a loader gives that is only read: see `random_lives`."""

from __future__ import annotations

import random
from typing import Any
from zlib import crc32

import random_pipelines
from life_epochs import Bad, Epoch, read_epoch
from random_pipelines import begin
from rank_threads import ThreadGroup, _Meeting
from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    InProcessReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from torchdata.dataloader2.adapter import ShardingPolicy

__all__ = ["Life", "only_read"]

#: The steps whose state lasts from epoch to epoch.
LASTING = {"summed", "cache"}
#: The steps behind a dispatch whose items do not depend on which worker gets an item, nor on when.
BY_ITEM = {"plain", "filter", "flatmap", "large", "prefetch", "cycle"}
#: Seconds after which a process hangs.
HANGS_AFTER = 0.8


def failing(item: Any) -> Any:
    """The item, or an error in its place."""
    if crc32(repr(item).encode()) % 23 == 0:
        raise Bad(item)
    return item


class Life(random_pipelines.Plan):
    """The acts of a life, drawn from a seed."""

    #: Whether Ctrl-C is pressed, at moments that follow from the clock.
    presses = True

    def __init__(self, seed: int, methods: tuple[str, ...] = ("fork",)) -> None:
        super().__init__(seed, methods)
        dice = random.Random(f"life {seed}")
        self.kind = dice.choice(["none", "in process", *5 * ["workers"]])
        self.loader_seed = dice.choice([None, 3, 5]) if self.kind == "none" else dice.choice([3, 5])
        self.restarts = self.kind == "workers" and dice.random() < 0.5
        self.ranks = self.kind != "none" and dice.random() < 0.15
        self.moves = self.kind == "workers" and dice.random() < 0.4
        if self.moves:
            steps = ["shuffle", "plain", "filter", "flatmap", "generated", "header", "cycle", "prefetch"]
            self.before = [dice.choice(steps) for _ in range(dice.randrange(4))]
            self.behind = [dice.choice(["plain", "large", "prefetch"]) for _ in range(dice.randrange(3))]
            self.main = dice.choice([[], [], ["pin"], ["pin", "prefetch"]])
        #: Whether loaders may take their number of workers from the state.
        self.auto = self.moves and dice.random() < 0.3
        #: Items of a batch behind the sharding, which is then in blocks.
        self.block = dice.choice([2, 3]) if self.moves and self.shard == "filter" and dice.random() < 0.3 else None
        if self.block is not None:
            self.behind.insert(0, "block")
        if self.shard == "dispatch" and "cycle" in self.behind:
            # How far the dispatching process runs in a pass that all leave is a matter of speed.
            self.behind = [step for step in self.behind if step != "header"]
        if dice.random() < 0.15 and LASTING.isdisjoint([*self.before, *self.behind]):
            part = dice.choice([self.before, self.behind])
            part.insert(dice.randrange(len(part) + 1), "failing")
        steps = {*self.before, *self.behind}
        if LASTING & steps and (self.threads or self.shard == "dispatch"):
            self.before, self.behind = (
                [step for step in part if step != "header"] for part in (self.before, self.behind)
            )
        leaves = not LASTING & steps
        #: Of each epoch: the seed that it is given, and after how many items it is left.
        self.epochs = [
            (
                dice.choice([None, None, None, dice.randrange(100)]),
                dice.randint(1, self.items + 1) if leaves and dice.random() < 0.4 else None,
            )
            for _ in range(dice.choice([1, 2, 3]))
        ]
        #: Whether items of a dispatching process come in any order.
        self.free = self.kind == "workers" and self.shard == "dispatch" and dice.random() < 0.4
        if self.free:
            self.options["in_order"], self.moves, self.auto = False, False, False
            self.before = [step for step in self.before if step != "failing"]
            self.behind = [step for step in self.behind if step in BY_ITEM]
            self.main = [step for step in self.main if step != "batch"]
        #: `skip` draws nothing.
        self.skips = "drawing" not in steps
        #: Whether the global generators of this process are drawn from.
        self.draws_in_main = self.kind != "workers" and (self.loader_seed is None or "drawing" in steps)
        #: Whether something may last from epoch to epoch.
        self.lasts = not LASTING.isdisjoint(steps)

    def _add(self, pipe: Any, step: str) -> Any:  # type: ignore[override]
        if step == "failing":
            return pipe.map(failing)
        if step == "block":
            return pipe.batch(self.block)
        return super()._add(pipe, step)

    def made(self, workers: int | str | None = None, restarts: bool | None = None) -> DataLoader2[Any]:
        """A loader, without a seed."""
        adapters = [] if self.block is None else [ShardingPolicy(self.block)]
        return DataLoader2(self.pipe(), adapters, self.service_of(workers, restarts))

    def service_of(self, workers: int | str | None = None, restarts: bool | None = None) -> Any:
        services: list[Any] = []
        if self.ranks:
            services.append(DistributedReadingService(30, process_group=ThreadGroup((_Meeting(1), _Meeting(1)), 0)))
        workers = self.workers if workers is None else workers
        if self.kind == "in process" or not workers:
            services.append(InProcessReadingService(prefetch_cnt=3 if self.threads else 0))
        elif self.kind == "workers":
            options = dict(self.options)
            if self.restarts if restarts is None else restarts:
                options |= {"on_worker_exit": "restart", "on_timeout": "restart", "timeout": HANGS_AFTER}
            services.append(MultiProcessingReadingService(workers, self.method, **options))
        if len(services) > 1:
            return SequentialReadingService(*services)
        return services[0] if services else None


def only_read(life: Life) -> list[Epoch]:
    """The epochs of a loader that is only read."""
    begin()
    epochs = []
    with life.made(restarts=False) as loader:
        if life.loader_seed is not None:
            loader.seed(life.loader_seed)
        for seed, until in life.epochs:
            if seed is not None:
                loader.seed(seed)
            epochs.append(read_epoch(loader, None if life.free else until))
            epochs[-1].until = until
        epochs.append(read_epoch(loader))
    return epochs
