"""Loaders on Ray whose workers, actors, raylets and nodes exit at random: `python -m drivers ray --seconds 600`.

All runs use one cluster of three nodes and the head. Each run has a random pipeline, options and moments, and its items
are compared with those of workers on this machine. At an item, or shortly after, an event occurs: a worker, an actor or
the dispatching process is killed or stopped, a raylet is killed or stopped, a node is removed, the main process leaves
and rejoins the cluster, or the loader is abandoned and another one, here or on Ray, resumes from its state. If a
process hangs, its stacks are printed and the driver ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from drivers.frame import Driver
from process_checks import MULTIPROCESSING
from ray_cluster import add, join, nodes, raylet_of
from remote_pipelines import array, drawn, many, numbered, plain, reading, wide
from torchdata._engine import snapshots
from torchdata._engine.remote.dispatching import DispatchingChild
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService, RayReadingService, WorkerExitedError
from torchdata.datapipes.iter import IterableWrapper

NODES = 3
#: Seconds after which a worker without a result counts as hung, and seconds of a moment.
TIMEOUT, MOMENT = 4.0, 0.6
#: Seconds after which a node with a stopped raylet is removed, if Ray has not noticed.
DEAF = 15.0


def dealt(count: int) -> Any:
    return IterableWrapper(range(count)).shuffle().map(reading).sharding_round_robin_dispatch(MULTIPROCESSING)


PIPELINES: dict[str, Callable[[int], Any]] = {
    "numbers": lambda count: numbered(count).map(reading).batch(2),
    "arrays": lambda count: numbered(count).map(reading).map(array),
    "random": lambda count: numbered(count).map(reading).map(drawn),
    "uneven": lambda count: numbered(count).map(reading).flatmap(many),
    "bytes": lambda count: numbered(count).map(reading).map(wide),
    "dealt": lambda count: dealt(count).map(drawn),
    "dealt bytes": lambda count: dealt(count).map(wide),
}
#: The events and their frequencies.
EVENTS = {
    "worker": 8, "actor": 8, "dispatcher": 4, "stop worker": 1, "stop actor": 1,
    "raylet": 2, "node": 1, "stop raylet": 1, "leave": 1, "state": 3, "call": 3,
}  # fmt: skip
#: Events without an exit.
GENTLE = {"state", "call"}


@dataclass
class Plan:
    """A run.

    Args:
        seed: determines everything.
        pipeline: the name of a pipeline.
        count: how many numbers it reads.
        workers: the number of workers.
        options: the options of the service.
        in_order: whether items are in order.
        events: the events by epoch and item.
        cadence: how often snapshots are taken; None for the default.
    """

    seed: int
    pipeline: str
    count: int
    workers: int
    options: dict[str, Any]
    in_order: bool
    events: dict[tuple[int, int], str]
    cadence: tuple[float, float] | None = None
    told: list[str] = field(default_factory=list)


def plan_of(seed: int) -> Plan:
    """The plan of a seed."""
    dice = random.Random(seed)
    count = dice.choice([600, 900, 1500])
    # Each worker makes progress between two exits, because three at one item would be an error.
    places = sorted(dice.sample(range(2 * count // 100), dice.randrange(4, 12)))
    kinds = dice.choices(list(EVENTS), list(EVENTS.values()), k=len(places))
    events = {divmod(100 * place + dice.randrange(40), count): kind for place, kind in zip(places, kinds, strict=True)}
    options = {
        "worker_prefetch_cnt": dice.choice([2, 20, 200]),
        "chunk_bytes": dice.choice([1, 1 << 16, 8 << 20]),
        "scheduling": dice.choice([None, "SPREAD"]),
        "memory_budget": dice.choice([None, 4 << 20]),
    }
    pipeline, in_order = dice.choice(list(PIPELINES)), dice.random() < 0.8
    return Plan(
        # The random draws of an item depend on its worker.
        seed, pipeline, count, dice.randrange(1, 4), options, in_order or pipeline == "dealt", events,
        dice.choice([None, None, (0.0, 0.0)]),
    )  # fmt: skip


class Run:
    """Executes a plan.

    Args:
        plan: the plan.
        machines: the cluster.
        happened: counts the events.
    """

    def __init__(self, plan: Plan, machines: Any, happened: Counter[str]) -> None:
        self.plan, self.machines, self.happened = plan, machines, happened
        self.dice = random.Random(plan.seed + 1)
        #: Events that are still to occur.
        self.later: list[threading.Timer] = []

    def remote(self) -> RayReadingService:
        return RayReadingService(
            self.plan.workers, on_worker_exit="restart", in_order=self.plan.in_order, timeout=TIMEOUT,
            on_timeout="restart", patience=20 * TIMEOUT, ray_remote_args={"num_cpus": 1}, **self.plan.options,
        )  # fmt: skip

    def local(self) -> MultiProcessingReadingService:
        # Not forked, because after `ray.init` a fork can block Ray's part of this process.
        return MultiProcessingReadingService(self.plan.workers, "spawn", in_order=self.plan.in_order)

    def pipe(self) -> Any:
        return PIPELINES[self.plan.pipeline](self.plan.count)

    def check(self) -> int:
        """Compares the items with those of local workers; returns how many exits there were."""
        with DataLoader2(self.pipe(), reading_service=self.local()) as loader:
            loader.seed(self.plan.seed)
            wanted = [list(map(plain, loader)) for _ in range(2)]
        before = self.deaths()
        got: list[list[Any]] = [[], []]
        state: bytes | None = None
        events = dict(self.plan.events)
        epoch = 0
        while epoch < 2:
            service = self.local() if state is not None and self.dice.random() < 0.3 else self.remote()
            with DataLoader2(self.pipe(), reading_service=service) as loader:
                loader.seed(self.plan.seed)
                if state is not None:
                    loader.load_state_dict(pickle.loads(state))
                epoch, state = self.go_on(loader, epoch, got, events)
                for one in self.later:
                    one.join()
        for number, (items, right) in enumerate(zip(got, wanted, strict=True)):
            if not self.plan.in_order:
                items, right = sorted(map(repr, items)), sorted(map(repr, right))
            assert items == right, f"epoch {number}: {len(items)} items, not {len(right)}; {self.plan.told}"
        return self.deaths() - before

    def deaths(self) -> int:
        return sum(count for kind, count in self.happened.items() if kind not in GENTLE)

    def go_on(
        self, loader: DataLoader2[Any], epoch: int, got: list[list[Any]], events: dict[tuple[int, int], str]
    ) -> tuple[int, bytes | None]:
        """Reads until both epochs are over or the loader is abandoned; returns the epoch and the state at that time."""
        while epoch < 2:
            for item in loader:
                got[epoch].append(plain(item))
                kind = events.pop((epoch, len(got[epoch])), None)
                if kind is None:
                    continue
                self.plan.told.append(f"{kind} at {len(got[epoch])} of {epoch}")
                if kind in ("state", "leave"):
                    state = pickle.dumps(loader.state_dict())
                    self.happened[kind] += 1
                    if kind == "leave":
                        self.leave(loader)
                    return epoch, state
                self.strike(loader, kind)
            epoch += 1
        return epoch, None

    def leave(self, loader: DataLoader2[Any]) -> None:
        """Makes the main process leave the cluster. Sent items still arrive, followed by an error. The process then
        rejoins.
        """
        import ray

        ray.shutdown()
        if isinstance(loader.reading_service, RayReadingService):
            with contextlib.suppress(WorkerExitedError, ConnectionError):
                for _ in loader:
                    pass
        loader.shutdown()
        join(self.machines)

    def strike(self, loader: DataLoader2[Any], kind: str) -> None:
        """Causes an event, immediately or a moment later, concurrently with the main process."""
        if kind == "call":
            self.happened[kind] += 1
            loader.reading_service._pause()
            loader.reading_service._resume()
        elif kind in ("raylet", "stop raylet", "node"):
            self.happened[kind] += 1
            self.strike_node(kind)
        elif self.dice.random() < 0.5:
            self.strike_process(loader, kind)
        else:
            later = threading.Timer(MOMENT * self.dice.random(), self.strike_process, (loader, kind))
            later.daemon = True
            later.start()
            self.later.append(later)

    def strike_node(self, kind: str) -> None:
        victim = self.dice.choice([one for one in self.machines.worker_nodes if one is not None])
        if kind != "node":
            os.kill(raylet_of(victim), signal.SIGKILL if kind == "raylet" else signal.SIGSTOP)
        if kind == "stop raylet":
            self.machines.worker_nodes.remove(victim)
            gone = threading.Timer(DEAF, victim.kill_all_processes, (), {"check_alive": False, "allow_graceful": False})
            gone.start()
        else:
            self.machines.remove_node(victim, allow_graceful=False)
        add(self.machines, num_cpus=2)

    def strike_process(self, loader: DataLoader2[Any], kind: str) -> None:
        processes = loader.reading_service.engine_processes()._processes
        up = [one for one in processes if getattr(one, "about", None) is not None and not one.ended]
        here = [one for one in processes if isinstance(one, DispatchingChild) and not one.ended]
        if not up or (kind == "dispatcher" and not here):  # an exit of a local worker is an error
            return
        self.happened[kind] += 1
        about = self.dice.choice(up).about
        pid = here[0].pid if kind == "dispatcher" else about.host if "actor" in kind else about.pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP if kind.startswith("stop") else signal.SIGKILL)


def check(plan: Plan, machines: Any, happened: Counter[str]) -> int:
    """Executes a plan on a cluster; returns how many exits there were."""
    usual = snapshots.cadence
    if plan.cadence is not None:
        snapshots.cadence = lambda count: plan.cadence  # type: ignore[assignment]
    try:
        return Run(plan, machines, happened).check()
    finally:
        snapshots.cadence = usual


#: The cluster of the program, and the events so far.
_machines: list[Any] = []
_happened: Counter[str] = Counter()


@contextlib.contextmanager
def cluster(_options: Any) -> Iterator[None]:
    with nodes(NODES) as machines:
        _machines[:] = [machines]
        yield
    print(f"in all: {dict(_happened)}")


DRIVER = Driver(
    lambda seed, _: plan_of(seed),
    lambda plan: check(plan, _machines[0], _happened),
    "deaths",
    limit=400.0,
    around=cluster,
    forks=False,  # Ray's data in a process does not survive a fork
)
