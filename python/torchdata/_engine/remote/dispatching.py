"""Spawns the dispatching process, on the main process's machine, for workers on other machines.

Neither the dispatching process nor a worker imports the user's main module, so the main module can lack a `__main__`
guard. The pickled program contains the definitions of the main module.
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
from torchdata._handlers import raise_if_of_handler


class DispatchingChild(SpawnedChild):
    def __init__(self, name: str, setup: ChildSetup) -> None:
        assert isinstance(setup.program, Program)
        # The shared memory is kept, because a later dispatching process may load the program from it.
        self._program = SharedPickle(pickled(setup.program))
        arguments = (replace(setup, program=self._program),)
        super().__init__(get_context("spawn"), name, f"{PREFIX}{name}", run_child, arguments)

    def _launch(self) -> int:
        with without_main():
            return super()._launch()


def pickled(program: Program) -> bytes:
    """Definitions in the main module are pickled by value."""
    from torchdata._by_value import dumps

    try:
        return dumps(program)
    except Exception as error:
        raise_if_of_handler(error)
        raise TypeError(program.why_unpicklable("ray", error)) from error


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {name: vars(main).pop(name) for name in ("__file__", "__spec__") if name in vars(main)}
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(hidden)
