"""Prefetcher: reads its source ahead in a thread."""

from __future__ import annotations

from typing import Any, ClassVar

from torchdata.datapipes._pipe.checks import check_int
from torchdata.nodes._read_ahead import Function, ReadSource
from torchdata.nodes.base_node import BaseNode, PassingNode, T, check_node

__all__ = ["Prefetcher", "ThreadedNode"]


class ThreadedNode(PassingNode[T]):
    """A node that reads its source in threads. Subclasses define the work of the threads in `_begin`."""

    _of_a_run: ClassVar[frozenset[str]] = frozenset({"_advance", "_run"})

    _run: ReadSource | None = None

    def __init__(self, source: BaseNode[Any], snapshot_frequency: int) -> None:
        super().__init__()
        #: The name of the node in messages.
        self._called = type(self).__name__
        self.source = check_node(self._called, "source", source)
        self.snapshot_frequency = check_int(self._called, "snapshot_frequency", snapshot_frequency, least=0)

    def _begin(self, state: dict[str, Any] | None) -> ReadSource:
        raise NotImplementedError(f"{type(self).__name__} must define _begin")

    def _begin_with(
        self, functions: list[Function], state: dict[str, Any] | None, *, limit: int, **options: Any
    ) -> ReadSource:
        settings = {"in_order": True, "frequency": self.snapshot_frequency, **options}
        return ReadSource(self._called, self.source, functions, limit=limit, state=state, **settings)

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """See `BaseNode.reset`. The threads of the last run end, and new threads read ahead from the new position.

        If the last epoch is not over, the source is first read ahead up to the limit. The state of the source (for
        example, the number of epochs in a sampler) therefore does not depend on how far the threads had read.

        Raises:
            TimeoutError: the source took more than a minute for one item.
            ValueError: a field of the state is missing or out of range.
        """
        if self._run is not None:
            self._run.leave(read_on=initial_state is None)
            self._run = None
        self._run = self._begin(initial_state)
        self._advance = self._run.next
        super().reset(initial_state)

    def get_state(self) -> dict[str, Any]:
        """See `BaseNode.get_state`. The state does not include items that were read ahead. A load rereads them."""
        if self._run is None:  # `state_dict` resets a new node, so the last reset has failed
            raise RuntimeError(f"{self._called} has no state: its last reset() has failed; reset it")
        return self._run.state()

    def __len__(self) -> int:
        """Returns the number of items per epoch.

        Raises:
            TypeError: the length of the source is unknown.
        """
        return len(self.source)

    def shutdown(self) -> None:
        """See `BaseNode.shutdown`. Waits a few seconds for user functions that are running in threads."""
        run = self._close_run()
        super().shutdown()
        if run is not None:
            run.join(_SECONDS)

    def _close_run(self) -> ReadSource | None:
        """Ends the threads of the current run, if there is one. Another thread may begin the next run during this
        call."""
        run = self._run
        if run is not None:
            run.close()
        return run


#: The number of seconds that `shutdown` waits for threads, which end after their current call.
_SECONDS = 5.0


class Prefetcher(ThreadedNode[T]):
    """Reads its source ahead in a thread, so that waiting for the source overlaps with later work.

    An error of the source is raised in the position of its item.

    Args:
        source: the node to read. The source runs in the thread, together with all its own sources.
        prefetch_factor: the maximum number of buffered items.
        snapshot_frequency: the number of items between saved states of the source; 1 by default. After loading a state,
            at most this number of items is reread. Use more than 1 if the source's state is large. 0 saves a state
            only at the beginning.

    Raises:
        TypeError: `source` is not a node, or a number is not an integer.
        ValueError: `prefetch_factor` is not positive, or `snapshot_frequency` is negative.

    Example:
        >>> from torchdata.nodes import IterableWrapper, Prefetcher
        >>> list(Prefetcher(IterableWrapper(range(3)), prefetch_factor=2))
        [0, 1, 2]
    """

    def __init__(self, source: BaseNode[T], prefetch_factor: int, snapshot_frequency: int = 1) -> None:
        super().__init__(source, snapshot_frequency)
        self.prefetch_factor = check_int("Prefetcher", "prefetch_factor", prefetch_factor, least=1)

    def _begin(self, state: dict[str, Any] | None) -> ReadSource:
        return self._begin_with([None], state, limit=self.prefetch_factor)
