"""The dispatching process next to workers on other machines: a spawned process of main's machine.

Role: runs in main. Its program is pickled like that of the workers, including all definitions of the user's program,
which it does not import. The program therefore needs no guard, and its pipes are those of the main process.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

from torchdata._engine.processes.crossing import PREFIX, SharedPickle
from torchdata._engine.processes.forker import SpawnedChild
from torchdata._engine.workers.child import ChildSetup, run_child
from torchdata._engine.workers.program import Program

__all__ = ["DispatchingChild", "pickled", "without_main"]


class DispatchingChild(SpawnedChild):
    """The dispatching process.

    Args:
        name: what it is called in messages.
        setup: what it is set up with, which has its program.
    """

    def __init__(self, name: str, setup: ChildSetup) -> None:
        assert isinstance(setup.program, Program)
        # Kept: a child that replaces it has a memory of its own.
        self._program = SharedPickle(pickled(setup.program))
        arguments = (replace(setup, program=self._program),)
        super().__init__(get_context("spawn"), name, f"{PREFIX}{name}", run_child, arguments)

    def _launch(self) -> int:
        with without_main():
            return super()._launch()


def pickled(program: Program) -> bytes:
    """A program for a process that does not import main's, so by value what that defines.

    Raises:
        TypeError: it cannot be pickled.
    """
    from torchdata._by_value import dumps

    try:
        return dumps(program)
    except Exception as error:
        raise TypeError(program.why_unpicklable("ray", error)) from error


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Keeps a spawned process from importing this one's program."""
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {name: vars(main).pop(name) for name in ("__file__", "__spec__") if name in vars(main)}
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(hidden)
