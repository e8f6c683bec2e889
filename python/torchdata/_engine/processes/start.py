"""Making and starting the children of one loader, one after the other, so that a signal can come at any moment.

Role: main's side. Each start method has a kind of child (`new_child`). A start is done as a whole: the signals that
main handles are delivered between two of them, and the children that run by then are the caller's to end. A child has
these signals blocked until it leaves them to main.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing import current_process, resource_tracker, spawn
from multiprocessing.context import BaseContext, ForkProcess, SpawnProcess
from typing import Any, NoReturn

from torchdata._engine.processes.crossing import PREFIX
from torchdata._engine.processes.exit_messages import NO_GUARD, UNGUARDED, why_not_started
from torchdata._engine.processes.fork import ForkedChild, fork_all
from torchdata._engine.processes.forker import Forker, RemoteChild, SpawnedChild, forker_of_program
from torchdata._engine.processes.interrupts import InterruptsDeferred, StartGivenUp, interrupts_blocked
from torchdata._engine.processes.process import ChildProcess

__all__ = ["new_child", "start_all", "start_method_of"]

#: Start methods that import the program once more.
_SPAWNING = ("spawn", "forkserver")


def start_method_of(context: BaseContext) -> str:
    """The start method of a context, which may be the user's own. The class of its processes determines it, not its
    name.
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
    forker: Forker | None = None,
) -> ChildProcess:
    """A child that is not started yet.

    Args:
        context: multiprocessing's context of the start method.
        name: what the child is called.
        target: what it runs.
        args: what that is called with.
        forker: the process that forks it; None for that of the start method, if one does.
    """
    make = getattr(context, "make_child", None)
    if make is not None:  # no context of multiprocessing's: its children are no processes of this machine
        child: ChildProcess = make(name, args)
        return child
    method, process_name = start_method_of(context), f"{PREFIX}{name}"
    if method == "fork" and forker is None:
        return ForkedChild(name, process_name, target, args)
    if method == "spawn":
        return SpawnedChild(context, name, process_name, target, args)
    find = partial(forker_of_program, target.__module__) if forker is None else lambda: forker
    return RemoteChild(find, name, process_name, target, args)


def start_all(
    children: Iterable[ChildProcess], start_method: str, started: Callable[[int], object] = lambda index: None
) -> None:
    """Starts the children; if that fails or is interrupted, some of them run.

    Args:
        children: the children.
        start_method: multiprocessing's name of how.
        started: called with the number of each child that was started. Its errors are passed on.

    Raises:
        OSError: the system has no room for another process; the message names the child and the remedy.
        AssertionError: this process is a daemon of multiprocessing's, which is to have no children.
    """
    assert not current_process().daemon, "daemonic processes are not allowed to have children"
    children = list(children)
    spawns = start_method in _SPAWNING
    if spawns and _imports_the_program():
        _refuse_to_start()
    with InterruptsDeferred() as deferred:
        if spawns or any(isinstance(child, SpawnedChild) for child in children):
            # Started with the first child it would take the mask off again, with which it starts itself.
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
    """Whether this process, a child of some library's, still imports the program: multiprocessing starts none then."""
    try:
        spawn.get_preparation_data("")
    except RuntimeError:
        return True
    return False


def _refuse_to_start() -> NoReturn:
    """Ends a process that imports the program, which has no guard. A child of this package tells the main process by
    its exit code.

    Raises:
        RuntimeError: it is another library's child, or the program's own.
    """
    if current_process().name.startswith(PREFIX):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(NO_GUARD)  # past what the program does as it ends: it was to run in the main process alone
    raise RuntimeError(UNGUARDED)


def _ensure_tracker() -> None:
    try:
        with interrupts_blocked():  # no signal that is sent to all processes ends it
            resource_tracker.ensure_running()
    except OSError as error:
        raise why_not_started("multiprocessing's resource tracker, which worker processes need,", error) from error


def _start(child: ChildProcess) -> bool:
    """Starts one child; False where a signal ended a forking process that was not up yet."""
    try:
        child.start()
    except StartGivenUp:
        return False
    return True
