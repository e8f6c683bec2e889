"""Creates and starts the children of one loader one after another. Signals may arrive at any moment of a start.

Role: runs in the main process. The class of a child depends on the start method (`new_child`). A start is never
interrupted, because signals that the main process handles are delivered only between two starts. If a handler raises an
exception, the caller must stop the children that were started. A new child blocks signals until it has its own signal
handling.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing import current_process, resource_tracker, spawn
from multiprocessing.context import BaseContext, ForkProcess, SpawnProcess
from typing import Any, NoReturn

from torchdata._engine.processes.crossing import PREFIX
from torchdata._engine.processes.exit_messages import NO_GUARD, UNGUARDED, why_not_started
from torchdata._engine.processes.fork import ForkedChild, fork_all
from torchdata._engine.processes.forker import ForkingProcess, RemoteChild, SpawnedChild, forker_of_program
from torchdata._engine.processes.interrupts import InterruptsDeferred, StartGivenUp, interrupts_blocked
from torchdata._engine.processes.process import ChildProcess

#: Start methods with which each child imports the program.
_SPAWNING = ("spawn", "forkserver")


def start_method_of(context: BaseContext) -> str:
    """Returns the start method of a context. If a user's own context names no known start method, the class of the
    context's processes determines the method.
    """
    method = context.get_start_method()
    if method in ("fork", *_SPAWNING) or not hasattr(context, "Process"):
        return method
    process = context.Process()
    return "spawn" if isinstance(process, SpawnProcess) else "fork" if isinstance(process, ForkProcess) else method


def new_child(
    context: BaseContext,
    name: str,
    target: Callable[..., object],
    args: tuple[Any, ...],
    modules: Sequence[str] = (),
    forker: ForkingProcess | None = None,
) -> ChildProcess:
    """Returns a child that is not started yet.

    Args:
        modules: the names of the modules that the child's function imports. A spawned forking process imports the
            modules once for all its children.
        forker: the process that forks the child; None to create the child as the start method does.
    """
    make = getattr(context, "make_child", None)
    if make is not None:  # the context does not belong to multiprocessing, and its children may run on other machines
        child: ChildProcess = make(name, args)
        return child
    method, process_name = start_method_of(context), f"{PREFIX}{name}"
    if method == "fork" and forker is None:
        return ForkedChild(name, process_name, target, args)
    if method == "spawn":
        return SpawnedChild(context, name, process_name, target, args)
    find = partial(forker_of_program, (target.__module__, *modules)) if forker is None else lambda: forker
    return RemoteChild(find, name, process_name, target, args)


def start_all(
    children: Iterable[ChildProcess], start_method: str, started: Callable[[int], object] = lambda index: None
) -> None:
    """Starts the children. If the start fails or is interrupted, the children that were already started keep running.

    Args:
        started: a function that is called with the number of each started child. `start_all` passes on exceptions of
            `started`.

    Raises:
        OSError: the system cannot start another process; the message names the child and the remedy.
        AssertionError: this process is a daemon of multiprocessing, which must not have children.
    """
    assert not current_process().daemon, "daemonic processes are not allowed to have children"
    children = list(children)
    spawns = start_method in _SPAWNING
    if spawns and _imports_the_program():
        _refuse_to_start()
    with InterruptsDeferred() as deferred:
        if spawns or any(isinstance(child, SpawnedChild) for child in children):
            # The resource tracker is started before the first child, because the start of the tracker unblocks signals
            # that must stay blocked for a child.
            _ensure_tracker()
        forked = [child for child in children if isinstance(child, ForkedChild)]
        if forked:
            return fork_all(forked, started, deferred.deliver)
        for index, child in enumerate(children):
            while not _start(child):
                deferred.deliver()
            started(index)
            deferred.deliver()


def _imports_the_program() -> bool:
    """Returns whether this process is a child that is still importing the program. While a child imports the program,
    multiprocessing refuses to start processes."""
    try:
        spawn.get_preparation_data("")
    except RuntimeError:
        return True
    return False


def _refuse_to_start() -> NoReturn:
    """Called if a child process imports a program without a `__main__` guard. A child of this package exits with a code
    that reports the missing guard. In a child that another library or the program itself has started, raises
    RuntimeError.
    """
    if current_process().name.startswith(PREFIX):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(NO_GUARD)  # only the main process may run exit handlers
    raise RuntimeError(UNGUARDED)


def _ensure_tracker() -> None:
    try:
        with interrupts_blocked():  # signals that are sent to all processes must not end the process
            resource_tracker.ensure_running()
    except OSError as error:
        raise why_not_started("multiprocessing's resource tracker, which worker processes need,", error) from error


def _start(child: ChildProcess) -> bool:
    """Starts one child. Returns False if a signal arrived and the forking process was ended before it was running."""
    try:
        child.start()
    except StartGivenUp:
        return False
    return True
