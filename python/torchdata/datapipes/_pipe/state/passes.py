"""Lets nodes and `StatefulDataLoader` iterate over a pipe repeatedly, and save and restore its position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchdata.datapipes._pipe.state.iteration import forget_state, iterate


class PipePasses:
    """Iterates over a pipe. The first iteration after a state was loaded resumes; all other iterations start from the
    beginning."""

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
        """Prepares the pipe for a new iteration, for example by setting its seeds."""
