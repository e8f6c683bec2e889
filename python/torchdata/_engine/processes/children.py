"""Making the children of a loader: the process object of each start method.

Role: main's side. `start.py` starts them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any

from torchdata._engine.processes.bootstrap import PREFIX, ChildName
from torchdata._engine.processes.fork import ForkedChild
from torchdata._engine.processes.forker import ForkedProcess, Forker, forker_of_program
from torchdata._engine.processes.shutdown import ChildProcess

__all__ = ["new_child"]


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
    method, process_name = context.get_start_method(), f"{PREFIX}{name}"
    if method == "fork" and forker is None:
        return ForkedChild(name, process_name, target, args)
    if method == "spawn":
        kind: Any = context.Process  # type: ignore[attr-defined]
        return ChildProcess(kind(target=target, args=args, name=ChildName(process_name), daemon=True), name)
    find = partial(forker_of_program, target.__module__) if forker is None else lambda: forker
    return ChildProcess(ForkedProcess(find, process_name, target, args), name)
