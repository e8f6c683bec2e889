"""Simulates hosts of remote workers in this process, without Ray."""

import gc
import pickle
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from process_checks import shared_mappings, wait_for
from torchdata._engine.processes.process import ChildProcess
from torchdata._engine.remote.dispatching import DispatchingChild, pickled
from torchdata._engine.remote.host import About, Host, Pulled, Pushed, RemoteSetup
from torchdata._engine.remote.worker import RemoteWorker
from torchdata._engine.workers.child import ChildSetup
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService


class LocalActor:
    """Delays each call by up to `delay` seconds, and its result by up to `delay` seconds."""

    identity = "here"

    def __init__(self, host: Host, seed: int, delay: float) -> None:
        self.host, self._rng, self._delay = host, random.Random(seed), delay
        self._pools = {name: ThreadPoolExecutor(3) for name in ("push0", "pull0", "push1", "pull1", "look")}
        self._is_cut = False

    def check(self) -> None:
        if self._is_cut:
            raise ConnectionError("the host has exited")

    def _call(self, pool: str, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        before, after = self._rng.random() * self._delay, self._rng.random() * self._delay
        arguments = pickle.loads(pickle.dumps(arguments, protocol=5))

        def run() -> Any:
            time.sleep(before)
            result = pickle.loads(pickle.dumps(function(*arguments), protocol=5))
            time.sleep(after)
            self.check()
            return result

        return self._pools[pool].submit(run)

    def begin(self) -> Future[About]:
        return self._call("pull0", self.host.begin)

    def push(self, lane: int, pushed: Pushed) -> None:
        self._call(f"push{lane}", self.host.push, lane, pushed)

    def pull(self, lane: int, most: int) -> Future[Pulled]:
        return self._call(f"pull{lane}", self.host.pull, lane, most)

    def current_frame(self, wakes: bool) -> Future[tuple[str, str]]:
        return self._call("look", self.host.current_frame, wakes)

    def end(self) -> Future[None]:
        return self._call("look", self.host.end)

    def cut(self) -> None:
        self._is_cut = True
        self.host._child.kill()

    def kill(self) -> None:
        self.host._child.kill()
        for pool in self._pools.values():
            pool.shutdown(wait=False)


class LocalHosts:
    def __init__(self, seed: int, chunk_bytes: int, delay: float) -> None:
        self.chunk_bytes, self._seed, self._delay = chunk_bytes, seed, delay
        self.actors: list[LocalActor] = []

    def get_start_method(self) -> str:
        return "ray"

    def make_child(self, name: str, args: tuple[ChildSetup]) -> ChildProcess:
        (setup,) = args
        if setup.dispatches:
            return DispatchingChild(name, setup)
        return RemoteWorker(self, name, *args)

    def host(self, setup: ChildSetup) -> LocalActor:
        host = Host(RemoteSetup.of(setup, 4 << 20), pickled(setup.program))
        self.actors.append(LocalActor(host, self._seed + len(self.actors), self._delay))
        return self.actors[-1]

    def is_of_host(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionError)

    def why(self, error: BaseException) -> str:
        return f"the host reports: {error}"


class LocallyRemote(MultiProcessingReadingService):
    def __init__(self, *args: Any, seed: int = 0, chunk_bytes: int = 1 << 16, delay: float = 0.004, **options: Any):
        super().__init__(*args, **options)
        self.hosts = seed, chunk_bytes, delay

    def _workers_for(self, shards: int) -> int:
        return shards

    def _context(self) -> Any:
        self.made = LocalHosts(*self.hosts)
        return self.made


@pytest.fixture(autouse=True)
def hosts_have_ended(nothing_is_left: None) -> Iterator[None]:
    """Waits until the simulated hosts, which are threads of this process, have released their shared memory."""
    before = shared_mappings()  # A failed earlier test may have left mappings.
    yield

    def have_exited() -> bool:
        gc.collect()
        return bool(shared_mappings() <= before)

    wait_for(have_exited)


def read_here_and_there(
    make: Callable[[], Any], count: int, services: list[Callable[[], Any]], rng: random.Random, least: int, most: int
) -> list[Any]:
    got: list[Any] = []
    state: bytes | None = None
    while len(got) < count:
        with DataLoader2(make(), reading_service=rng.choice(services)()) as loader:
            loader.seed(5)
            if state is not None:
                loader.load_state_dict(pickle.loads(state))
            steps = rng.randrange(least, most)
            for item in loader:
                got.append(item)
                steps -= 1
                if not steps:
                    break
            state = pickle.dumps(loader.state_dict())
    return got
