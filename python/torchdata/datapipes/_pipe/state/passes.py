"""Reads a pipe in successive passes, and restores positions within them, for loaders that read any iterable.

Role: adapts a pipe to the interface of a `Stateful` iterable. Subclasses define the state. This module's code runs
where the pipe is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchdata.datapipes._pipe.state.iteration import forget_state, iterate

__all__ = ["PipePasses"]


class PipePasses:
    """Iterates over a pipe. Each iteration is a new pass, except the first iteration after a position was loaded."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        self._loaded = False

    def __iter__(self) -> Iterator[Any]:
        if self._loaded:
            self._loaded = False
        else:
            forget_state(self.pipe)
            self._prepare()
        return iterate(self.pipe)

    def _prepare(self) -> None:
        """Prepares the pipe for a new pass, for example by setting its seeds."""
