"""Starts the workers of a loader in different ways (backends), for tests that run with every backend."""

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hosts import LocallyRemote
from ray_cluster import nodes
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService, RayReadingService
from torchdata.datapipes.iter import IterableWrapper

WORKERS = 2


class Spawned:
    is_slow = False
    #: Whether tests run all pipelines.
    has_all = False
    victims = ("worker", "dispatching")

    def service(self, workers: int = WORKERS, **options: Any) -> MultiProcessingReadingService:
        return MultiProcessingReadingService(workers, "spawn", **options)

    def kill(self, loader: DataLoader2[Any], victim: str, rng: random.Random) -> None:
        processes = loader.reading_service.engine_processes().pids
        self._end(processes[-1] if victim == "dispatching" else processes[rng.randrange(WORKERS)])

    @staticmethod
    def _end(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)


class Carried(Spawned):
    has_all = True
    victims = ("worker", "host", "dispatching")

    def service(self, workers: int = WORKERS, **options: Any) -> MultiProcessingReadingService:
        return LocallyRemote(workers, **options)

    def kill(self, loader: DataLoader2[Any], victim: str, rng: random.Random) -> None:
        if victim == "dispatching":
            return super().kill(loader, victim, rng)
        actor = loader.reading_service.made.actors[-1 - rng.randrange(WORKERS)]
        if victim == "host":
            actor.cut()
        elif not actor.host._child.ended:
            self._end(actor.host._child.pid)


class OnRay(Spawned):
    is_slow = True
    victims = ("worker", "host", "dispatching")

    def __init__(self, **options: Any) -> None:
        self._options = options

    def service(self, workers: int = WORKERS, **options: Any) -> MultiProcessingReadingService:
        return RayReadingService(workers, **self._options, **options)

    def kill(self, loader: DataLoader2[Any], victim: str, rng: random.Random) -> None:
        if victim == "dispatching":
            return super().kill(loader, victim, rng)
        processes = loader.reading_service.engine_processes()._processes
        up = [one.about for one in processes if getattr(one, "about", None) is not None and not one.ended]
        if up:
            about = rng.choice(up)
            self._end(about.host if victim == "host" else about.pid)


BACKENDS = ("spawned processes", "carriers", "Ray over two nodes")
#: Backends with links between machines. Other files test spawned processes.
WITH_CARRIERS = BACKENDS[1:]


@contextmanager
def on_two_nodes() -> Iterator[OnRay]:
    with nodes(2):
        backend = OnRay(ray_remote_args={"scheduling_strategy": "SPREAD"})
        # Opens the connections between the nodes by reading a loader, so that no test reports them as leaks.
        with DataLoader2(IterableWrapper(range(2)).sharding_filter(), reading_service=backend.service()) as loader:
            list(loader)
        yield backend
