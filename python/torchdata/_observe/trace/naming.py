"""The pipes of one process in its log: each is numbered when it is first iterated, and said what it is.

Role: used by the writers of logs, in main and in children.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from torchdata._importing import import_whole
from torchdata._observe.stats.labels import location_of
from torchdata._reporting import name_of
from torchdata.datapipes._pipe.graph.traversal import sources_of
from torchdata.datapipes.datapipe import IterDataPipe, token_of

if TYPE_CHECKING:
    from torchdata._native import IterationToken, TraceLog

__all__ = ["Names"]


class Names:
    """The numbers of pipes in a log.

    Args:
        log: where it is written what they are.
    """

    def __init__(self, log: TraceLog) -> None:
        self._log = log
        self._next = itertools.count()
        # By token, which is kept alive: its address belongs to nobody else as long as the log is written.
        self._numbers: dict[int, tuple[int, IterationToken]] = {}

    def number(self, datapipe: Any) -> int:
        """The number of a pipe; the first time, the log is told its name, its place, and the pipes that it reads."""
        token = token_of(datapipe)
        known = self._numbers.get(id(token))
        if known is not None:
            return known[0]
        number = self._numbers.setdefault(id(token), (next(self._next), token))[0]
        sources = [
            self.number(source)
            for source in sources_of(datapipe)
            if isinstance(source, IterDataPipe) and hasattr(source, "__dict__")
        ]
        told = {"name": name_of(datapipe), "location": location_of(datapipe), "reads": sources}
        self._log.name(number, import_whole("json").dumps(told))
        return number
