"""Starts the children of a loader, although signals may arrive at any moment.

The main process delivers signals only between two starts of children, so that no start is interrupted. If a signal
handler raises an exception, the caller must stop the children that have already started.
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

_SPAWNING = ("spawn", "forkserver")


def start_method_of(context: BaseContext) -> str:
    """Returns the start method of a context. If a user's context has an unknown start method, the class of its
    processes determines the result.
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
    """Creates a child without starting it.

    Args:
        modules: names of the modules that the child's function needs. With "forkserver", the forking process imports
            `modules` once for all children.
        forker: the process that forks the child, or None to use the context's start method.
    """
    make = getattr(context, "make_child", None)
    if make is not None:  # a context with `make_child` may start children on other machines
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
    """Starts the children. If the start fails or is interrupted, children that have already started keep running."""
    assert not current_process().daemon, (
        "daemonic processes are not allowed to have children, such as the workers of a loader: start this process "
        "with daemon=False, or use num_workers=0"
    )
    children = list(children)
    spawns = start_method in _SPAWNING
    if spawns and _imports_the_program():
        _refuse_to_start()
    with InterruptsDeferred() as deferred:
        if spawns or any(isinstance(child, SpawnedChild) for child in children):
            # Multiprocessing's resource tracker is started before the children, because its start unblocks signals,
            # which must stay blocked while a child starts.
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
    """Returns whether this process is a child that is still importing the program, where multiprocessing refuses to
    start processes.
    """
    try:
        spawn.get_preparation_data("")
    except RuntimeError:
        return True
    return False


def _refuse_to_start() -> NoReturn:
    """If this process is a child of the engine, exits with the code for a missing `__main__` guard. If another library
    or the program has started this process, raises RuntimeError.
    """
    if current_process().name.startswith(PREFIX):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(NO_GUARD)  # only the main process may run exit handlers
    raise RuntimeError(UNGUARDED)


def _ensure_tracker() -> None:
    try:
        with interrupts_blocked():  # Ctrl-C in a terminal must not end the resource tracker
            resource_tracker.ensure_running()
    except OSError as error:
        raise why_not_started("multiprocessing's resource tracker, which worker processes need,", error) from error


def _start(child: ChildProcess) -> bool:
    """Returns False if a signal arrived while the forking process was starting."""
    try:
        child.start()
    except StartGivenUp:
        return False
    return True
