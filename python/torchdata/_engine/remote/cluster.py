"""Starts and monitors worker hosts on other machines with Ray, and transmits their messages.

This module runs in the main process. A worker group creates its workers through a `Cluster` instead of a
multiprocessing context. Ray is imported when a cluster is created.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from torchdata._engine.processes.process import ChildProcess
from torchdata._engine.processes.shutdown import end_before_others
from torchdata._engine.remote.dispatching import DispatchingChild, pickled
from torchdata._engine.remote.host import About, Host, Pulled, Pushed, RemoteSetup
from torchdata._engine.remote.worker import RemoteWorker, VersionsDiffer
from torchdata._engine.workers.child import ChildSetup
from torchdata._engine.workers.group import default_budget
from torchdata._engine.workers.program import Program
from torchdata._optional import optional_import

_LEFT = "the program has left the cluster (ray.shutdown) while workers ran there"
_GROUPS = {"push0": 1, "pull0": 1, "push1": 1, "pull1": 1, "look": 1}


class Cluster:
    """The items in all workers together may use `memory_budget` bytes of shared memory, by default a quarter of the
    machine's memory.
    """

    #: A host stops adding items to a message for the main process once the message has this many bytes.
    chunk_bytes = 8 << 20

    def __init__(self, needed_by: str, options: dict[str, Any], num_workers: int, memory_budget: int | None) -> None:
        self._ray = ray = optional_import("ray", extra="ray", needed_by=needed_by)
        end_before_others()
        #: Ray's own lock, which Ray acquires whenever the program joins or leaves a cluster.
        self.door: threading.RLock = _door(ray, needed_by)
        if not ray.is_initialized():
            _join(ray)
        #: Contains the job's id. A program that leaves and rejoins the cluster gets another job id, and has lost its
        #: actors.
        self._context = ray.get_runtime_context()
        self._stay = self._context.get_job_id()
        self._budget = (default_budget() if memory_budget is None else memory_budget) // num_workers
        options = {"num_cpus": 1, **options, "max_restarts": 0, "max_task_retries": 0}
        #: Ray's references to received answers; the next request to a host drops these references.
        self.spent: list[Any] = []
        self._kind = ray.remote(**options, concurrency_groups=_GROUPS)(Host)
        #: The programs in Ray's store, by `id()`: each program is pickled only once.
        self._programs: dict[int, tuple[Program, Any]] = {}

    def get_start_method(self) -> str:
        return "ray"

    def make_child(self, name: str, args: tuple[ChildSetup]) -> ChildProcess:
        """The dispatching process runs on the main process's machine."""
        (setup,) = args
        return DispatchingChild(name, setup) if setup.dispatches else RemoteWorker(self, name, *args)

    @property
    def is_left(self) -> bool:
        """Returns whether the program has left this object's cluster, even if it has joined another cluster."""
        with self.door:
            try:
                return bool(self._context.get_job_id() != self._stay)
            except RuntimeError:
                return True

    @contextmanager
    def stay(self) -> Iterator[None]:
        """Prevents other threads from ending the program's connection to the Ray cluster (`ray.shutdown`).

        Code that calls Ray or deletes Ray's references must run in this context, because Ray ends the process if
        another thread leaves the cluster meanwhile.

        Raises ConnectionError if the program has left the cluster.
        """
        with self.door:
            if self.is_left:
                raise ConnectionError(_LEFT)
            yield

    def check(self) -> None:
        with self.stay():
            pass

    def host(self, setup: ChildSetup) -> _Actor:
        """Requests a host, without waiting until the host has started."""
        assert isinstance(setup.program, Program)
        with self.stay():
            handle = self._kind.remote(RemoteSetup.of(setup, self._budget), self._stored(setup.program))
        return _Actor(self, self._ray, handle)

    def _stored(self, program: Program) -> Any:
        known = self._programs.get(id(program))
        if known is None:
            known = self._programs[id(program)] = program, self._ray.put(pickled(program))
        return known[1]

    def is_of_host(self, error: BaseException) -> bool:
        """Returns whether the error of a call shows that the host no longer exists."""
        return isinstance(error, self._ray.exceptions.RayActorError)

    def why(self, error: BaseException) -> str:
        """Returns the reason why a host has ended, given the error of a call."""
        if self.is_left:  # other errors are consequences of leaving the cluster
            return _LEFT
        cause = getattr(error, "cause", None)
        if cause is not None:  # code in the host process has raised the error
            return f"its host reports: {type(cause).__name__}: {cause}"
        # Lines that begin with a space are omitted, because they contain only the name and the ids of Ray's actor.
        message = " ".join(line for line in str(error).splitlines() if line[:1].strip()).rstrip(". ")
        return message if isinstance(error, VersionsDiffer) else f"Ray reports: {message or repr(error)}"


class _Actor:
    """Calls the methods of a `Host` in the cluster. Each call immediately returns a future, which may contain an error
    of Ray."""

    def __init__(self, cluster: Cluster, ray: Any, handle: Any) -> None:
        self._cluster, self._ray, self._handle = cluster, ray, handle
        self.identity: str = handle._actor_id.hex()

    def check(self) -> None:
        """Raises ConnectionError if the program has left the cluster."""
        self._cluster.check()

    def _call(self, name: str, *args: Any, group: str | None = None) -> Any:
        return getattr(self._handle, name)._remote(args, {}, concurrency_group=group)

    def _ask(self, name: str, *args: Any, group: str | None = None) -> Future[Any]:
        with self._cluster.stay():
            reference = self._call(name, *args, group=group)
            answer: Future[Any] = reference.future()
            vars(answer).pop("object_ref", None)  # another thread might drop the reference in this attribute
            self._cluster.spent.clear()
            _keep_until_done(answer, reference, self._cluster.spent)
        return answer

    def begin(self) -> Future[About]:
        return self._ask("begin")

    def push(self, lane: int, pushed: Pushed) -> None:
        with self._cluster.stay():
            self._call("push", lane, pushed, group=f"push{lane}")

    def pull(self, lane: int, most: int) -> Future[Pulled]:
        return self._ask("pull", lane, most, group=f"pull{lane}")

    def current_frame(self, wakes: bool) -> Future[tuple[str, str]]:
        return self._ask("current_frame", wakes, group="look")

    def end(self) -> Future[None]:
        return self._ask("end", group="look")

    def kill(self) -> None:
        with self._cluster.stay():
            self._ray.kill(self._handle, no_restart=True)


def _keep_until_done(answer: Future[Any], reference: Any, spent: list[Any]) -> None:
    """Keeps Ray's `reference` alive until `answer` is done, and then adds it to the list `spent`, which the next
    request to a host empties."""
    held = [reference]
    answer.add_done_callback(lambda _: spent.append(held.pop()))


def _door(ray: Any, needed_by: str) -> Any:
    found = getattr(ray._private.worker, "_connect_or_shutdown_lock", None)
    if found is None:
        raise ImportError(
            f"{needed_by} needs Ray 2.49 or later, and this is {ray.__version__}: pip install --upgrade 'ray>=2.49'"
        )
    return found


def _join(ray: Any) -> None:
    try:
        ray.init(address="auto", log_to_driver=sys.flags.dev_mode)
    except ConnectionError as error:
        raise ConnectionError(
            "RayReadingService found no Ray cluster to join: call ray.init() before for one on this machine, start one "
            "by `ray start --head` (and `ray start --address=…` on other machines), or let RAY_ADDRESS name one"
        ) from error
