"""Draws plans of operations on a loader from a seed."""

import os
import random
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosts import LocallyRemote
from random_loaders.epochs import Epoch, read_epoch
from random_loaders.pipelines import STEPS, Failing, begin
from rank_threads import ThreadGroup, _Meeting
from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    InProcessReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.dataloader2.reading_service import ReadingServiceInterface
from torchdata.dataloader2.services.sequential import divided
from torchdata.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper

LASTING = {"summed", "cache"}
HANGS_AFTER = 0.8
#: The relative frequency of each fault of a process. "SIGSTOP" stops the process forever, and "halt" only for a while.
FAULTS = {
    ("child", "SIGKILL"): 6,
    ("child", "SIGXCPU"): 2,
    ("child", "SIGSTOP"): 2,
    ("child", "halt"): 2,
    ("main", "SIGKILL"): 2,
    ("main", "SIGTERM"): 1,
    ("main", "SIGINT"): 2,
    ("terminal", "SIGINT"): 4,
    ("self", "_exit"): 3,
}


@dataclass
class Fault:
    victim: str
    what: str
    #: What the loader does during the fault: "start", "read", "end" (after an epoch), "pause" or "shutdown".
    moment: str
    delay: float
    again: bool

    @property
    def number(self) -> signal.Signals:
        return signal.Signals[self.what] if self.what.startswith("SIG") else signal.SIGSTOP


class Touched(ReadingServiceInterface):
    def initialize(self, datapipe: Any) -> Any:
        return datapipe

    def _pause(self, pause_fn: Any = None) -> Any:
        return touch

    def _resume(self, resume_fn: Any = None) -> Any:
        return touch

    def _limit(self, num_batches: Any, limit_fn: Any = None) -> Any:
        return touch


def touch(datapipe: Any, _count: Any = None) -> None:
    datapipe.touched = getattr(datapipe, "touched", 0) + 1


class LoaderPlan:
    may_press = True
    away = 0.03

    def __init__(self, seed: int, methods: tuple[str, ...] = ("fork",), fault: bool | None = None) -> None:
        self.seed, self.methods = seed, methods
        rng = random.Random(f"life {seed}")
        self.kind = rng.choice(["none", "in process", *5 * ["workers"]])
        self.workers = rng.choice([1, 2, 2, 3, 4])
        self.method = rng.choice(methods)
        self.items = rng.choice([0, 1, 7, 23, 40, 60, 250])
        self.shuffles = rng.random() < 0.6
        self.threads = rng.random() < 0.25
        self.before = [self._step(rng) for _ in range(rng.randrange(3))]
        if rng.random() < 0.2:
            self.before.insert(rng.randrange(len(self.before) + 1), rng.choice(["summed", "cache"]))
        self.shard = rng.choice(["filter", "filter", "dispatch", "dispatch"])
        self.after = [self._step(rng, after=True) for _ in range(rng.randrange(4))]
        self.main = rng.choice([[], [], [], ["pin"], ["pin", "batch"], ["pin", "prefetch"]])
        self.options: dict[str, Any] = {
            "worker_prefetch_cnt": rng.choice([0, 1, 3, 10]),
            "main_prefetch_cnt": rng.choice([0, 2, 10]),
            "memory_budget": rng.choice([None, None, 0, 1 << 16, 1 << 20]),
        }
        budgets = random.Random(f"snapshots {seed}")
        self.options["snapshot_budget"] = budgets.choice([None, 64 << 20, 0, 1 << 12, 1 << 14])
        self.cadence = rng.choice([(0.0, 0.0), (0.0, 0.0), (0.001, 1.0), (0.02, 100.0)])
        self.loader_seed = rng.choice([None, 3, 5]) if self.kind == "none" else rng.choice([3, 5])
        self.restarts = self.kind == "workers" and rng.random() < 0.5
        self.ranks = self.kind != "none" and rng.random() < 0.15
        self.touches = self.kind == "workers" and rng.random() < 0.1 and not self.restarts
        self.moves = self.kind == "workers" and rng.random() < 0.4
        if self.moves:
            steps = ["shuffle", "plain", "filter", "flatmap", "skewed", "generated", "header", "cycle", "prefetch"]
            self.before = [rng.choice(steps) for _ in range(rng.randrange(4))]
            self.after = [rng.choice(["plain", "large", "mixed", "prefetch"]) for _ in range(rng.randrange(3))]
            self.main = rng.choice([[], [], ["pin"], ["pin", "prefetch"]])
        self.auto = self.moves and rng.random() < 0.3 and not self.ranks  # ranks refuse `num_workers="auto"`
        self.block = rng.choice([2, 3]) if self.moves and self.shard == "filter" and rng.random() < 0.3 else None
        if self.block is not None:
            self.after.insert(0, "block")
        if self.shard == "dispatch" and "cycle" in self.after:
            # The plan has no `header` pipe after the dispatch, so that the dispatched items do not depend on timing.
            self.after = [step for step in self.after if step != "header"]
        self._choose_failing(rng)
        self._choose_fault(rng, fault)
        steps = {*self.before, *self.after}
        if LASTING & steps and (self.threads or self.shard == "dispatch"):
            # The plan has no `header` pipe, so that the states of other pipes do not depend on timing.
            self.before, self.after = (
                [step for step in part if step != "header"] for part in (self.before, self.after)
            )
        leaves = not LASTING & steps
        self.epochs = [
            (
                rng.choice([None, None, None, rng.randrange(100)]),
                rng.randint(1, self.items + 1) if leaves and rng.random() < 0.4 else None,
            )
            for _ in range(rng.choice([1, 2, 3]))
        ]
        #: For each epoch: whether the file `flag` exists, which makes failing functions raise.
        self.armed = [rng.random() < 0.6 for _ in range(len(self.epochs) + 1)]
        self.flag = os.path.join(tempfile.gettempdir(), f"torchdata-plan-{os.getpid()}-{seed}")
        self.free = self.kind == "workers" and rng.random() < 0.3
        if self.free:
            self.options["in_order"] = False
            self.main = [step for step in self.main if step != "batch"]
        steps = {*self.before, *self.after}
        self.draws_in_main = self.kind != "workers" and (self.loader_seed is None or "drawing" in steps)
        self.lasts = not LASTING.isdisjoint(steps)
        self.keeps = rng.choice([0, 0, 5, 40])
        self.presses = self.may_press and rng.random() < 0.6
        #: What keeps the main process busy: "timer", "thread", "handler", or nothing.
        self.busy = rng.choice(["", "", "timer", "thread", "handler"] if not self.restarts else ["", "", "timer"])
        #: "shutdown" ends the loader after an epoch, "midway" within an epoch, and "dropped" by garbage collection.
        self.ending = rng.choice(["shutdown", "shutdown", "midway", "dropped"])
        self.timeout = rng.choice([None, None, 100.0])
        if self.method == "remote":
            self.restarts, self.moves, self.auto = False, False, False
        self._choose_splits()
        self._choose_skipped()

    def _choose_skipped(self) -> None:
        rng = random.Random(f"skipped {self.seed}")
        if "failing" in [*self.before, *self.after] or rng.random() > 0.25:
            return
        part = self.before if self.moves else rng.choice([self.before, self.after])
        at = rng.randrange(len(part) + 1)
        raising = rng.choices(["broken", "torn"], k=rng.choice([1, 2]))
        part[at:at] = raising
        if part is self.before or rng.random() < 0.5:
            part.insert(rng.randrange(at + len(raising), len(part) + 1), "on_error")
        if part is self.after:
            part.append("on_error")

    def _choose_splits(self) -> None:
        self.splits: int | None = None
        rng = random.Random(f"splits {self.seed}")
        if self.kind == "workers" and self.method != "remote" and self.block is None and rng.random() < 0.3:
            self.splits, self.moves = rng.choice([1, 2, 3, 6]), True
            if rng.random() < 0.5:
                self._choose_common_part(rng)

    def _choose_common_part(self, rng: random.Random) -> None:
        self.shard, self.threads, self.lasts = "filter", False, False
        unsuited = {"prefetch", "threads", *LASTING}
        self.before = [rng.choice(["filter", "flatmap", "skewed"]), *(s for s in self.before if s not in unsuited)]
        self.after = [step for step in self.after if step not in unsuited | {"cycle", "generated"}]

    def _step(self, rng: random.Random, after: bool = False) -> str:
        steps = ["shuffle", "plain", "filter", "flatmap", "skewed", "slow", "generated", "header", "cycle"]
        steps += ["prefetch"] if self.threads else ["drawing", "drawing"]
        if after:
            steps += ["batch", "large", "mixed", "mixed", "threads", "few", "summed", "cache"]
        return rng.choice(steps)

    def _choose_failing(self, rng: random.Random) -> None:
        self.failure = rng.choice(["error", "error", "odd", "exit"] if self.kind == "workers" else ["error", "odd"])
        if rng.random() < 0.2 and LASTING.isdisjoint([*self.before, *self.after]):
            part = rng.choice([self.before, self.after])
            part.insert(rng.randrange(len(part) + 1), "failing")

    def _choose_fault(self, rng: random.Random, wanted: bool | None) -> None:
        self.fault: Fault | None = None
        chance = rng.random() < 0.3 if wanted is None else wanted
        if not chance or self.kind != "workers" or self.method == "remote":
            return
        ((victim, what),) = rng.choices(list(FAULTS), list(FAULTS.values()))
        moment = rng.choice(["start", "start", "read", "read", "end", "pause", "shutdown"])
        longest = 1.0 if moment == "start" and self.method != "fork" else 0.1
        self.fault = Fault(victim, what, moment, longest * rng.random() ** 2, rng.random() < 0.5)
        self.restarts, self.auto = False, False
        self.before, self.after = ([step for step in part if step != "failing"] for part in (self.before, self.after))
        if victim == "self":
            part = self.after if self.shard == "filter" else rng.choice([self.before, self.after])
            part.append("failing")
            self.failure = what

    def steps(self, pipe: Any, steps: list[str]) -> Any:
        for step in steps:
            if step == "failing":
                pipe = pipe.map(Failing(self.flag, self.failure))
            elif step == "block":
                pipe = pipe.batch(self.block)
            else:
                pipe = STEPS[step](pipe)
        return pipe

    def source(self) -> Any:
        pipe: Any = IterableWrapper(range(self.items))
        return self.steps(pipe.shuffle() if self.shuffles else pipe, self.before)

    def pipe(self) -> Any:
        pipe = self.source()
        if self.shard == "filter":
            pipe = pipe.sharding_filter()
        else:
            pipe = pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
        return self.steps(self.steps(pipe, self.after), self.main if self.kind == "workers" else [])

    def arm(self, epoch: int, is_reference: bool = False) -> None:
        self.set_flag(self.fault is None and self.armed[epoch] and not (is_reference and self.free))

    def set_flag(self, is_set: bool) -> None:
        if is_set:
            Path(self.flag).touch()
        else:
            Path(self.flag).unlink(missing_ok=True)

    def numbers(self) -> list[int | None]:
        if self.method == "remote":
            return [None]
        # A loader without workers replays items in one order, so `main` cannot resume an epoch with `in_order=False`.
        has_no_workers = self.shard == "filter" and not (self.free and self.main)
        has_no_workers &= self.failure != "exit"  # without workers, the main process itself would exit
        return [None, 1, 2, 3, 4, *([0] if has_no_workers else [])]

    def made(self, workers: int | str | None = None, restarts: bool | None = None) -> DataLoader2[Any]:
        adapters = [] if self.block is None else [ShardingPolicy(self.block)]
        return DataLoader2(self.pipe(), adapters, self.service_of(workers, restarts))

    def service_of(self, workers: int | str | None = None, restarts: bool | None = None) -> Any:
        services: list[Any] = []
        if self.touches:
            services.append(Touched())
        if self.ranks:
            services.append(DistributedReadingService(30, process_group=ThreadGroup((_Meeting(1), _Meeting(1)), 0)))
        workers = self.workers if workers is None else workers
        if self.kind == "in process" or (self.kind == "workers" and not workers):
            services.append(InProcessReadingService(prefetch_cnt=3 if self.threads else 0))
        elif self.kind == "workers":
            options = {"timeout": self.timeout, **self.options}
            if self.restarts if restarts is None else restarts:
                options |= {"on_worker_exit": "restart", "on_timeout": "restart", "timeout": HANGS_AFTER}
            elif self.fault is not None and self.fault.what == "SIGSTOP":
                options["timeout"] = 1.0 if self.method == "fork" else 5.0
            if self.method == "remote":  # carriers connect processes, as for workers on other machines
                services.append(LocallyRemote(workers, **options))
            else:
                services.append(MultiProcessingReadingService(workers, self.method, **options))
        service = SequentialReadingService(*services) if len(services) > 1 else services[0] if services else None
        return service if self.splits is None else divided(service, self.splits)

    def __repr__(self) -> str:
        return f"seed {self.seed}: { ({name: what for name, what in vars(self).items() if name != 'seed'}) }"


def only_read(plan: LoaderPlan) -> list[Epoch]:
    begin()
    epochs = []
    with plan.made(restarts=False) as loader:
        if plan.loader_seed is not None:
            loader.seed(plan.loader_seed)
        for number, (seed, until) in enumerate([*plan.epochs, (None, None)]):
            plan.arm(number, is_reference=True)
            if seed is not None:
                loader.seed(seed)
            epochs.append(read_epoch(loader, None if plan.free else until))
            epochs[-1].until = until
    plan.set_flag(False)
    return epochs
