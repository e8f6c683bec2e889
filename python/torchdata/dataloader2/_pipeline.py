"""The pipeline of a loader: the pipe graph, and the service that runs it.

A loader runs copies of the user's graph and service. The loader also stores an unchanged copy of both, and can recreate
the running copies from this copy. Only the thread that begins an epoch or loads a state may change the graph or the
service.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torchdata._reporting import add_note
from torchdata._threads import Work
from torchdata.dataloader2._arguments import require_pipe, require_service
from torchdata.dataloader2.graph.serialization import GraphTemplate
from torchdata.dataloader2.graph.settings import pause_pipes, resume_pipes
from torchdata.dataloader2.services.interface import ReadingServiceInterface, contract_of
from torchdata.dataloader2.services.length import advice_on, length_of_epoch
from torchdata.dataloader2.services.sequential import holds_nothing
from torchdata.dataloader2.services.sequential import in_shards as running_shards
from torchdata.dataloader2.state.identity import Identity
from torchdata.dataloader2.state.position import Shard
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.graph.traversal import is_pipe
from torchdata.datapipes._pipe.skipping import skipper_of
from torchdata.datapipes._pipe.state.hooks import hooks_of
from torchdata.datapipes.iter.threads.prefetching import end_threads
from torchdata.datapipes.iter.threads.synchronizing import FullSync


class Pipeline:
    def __init__(
        self,
        graph: GraphTemplate,
        adapters: list[Any] | None,
        service: GraphTemplate,
        serialize: Callable[[GraphTemplate], bytes],
        *,
        is_adapted: bool = False,
    ) -> None:
        self.adapters = adapters
        self.passed_service = service
        self._serialize = serialize
        self.service = self._adapted_service()
        self.service_state: bytes | None = None
        self.is_taken_over = False
        self.skips = False
        self._length: int | str | None = None  # if the length is unknown, the text of the error
        self.datapipe: Any = None
        #: The graph that the adapters have returned, before the reading service changes it.
        self.snapshot = graph
        self.take(graph, is_adapted=is_adapted)

    def _adapted_service(self) -> Any:
        service = self.passed_service.copy()
        for adapter in self.adapters or ():
            if service is not None and hasattr(adapter, "adapt_reading_service"):
                service = adapter.adapt_reading_service(service)
                require_service(service)
        return service

    def take(self, snapshot: GraphTemplate, *, is_adapted: bool = False) -> None:
        datapipe = snapshot.copy()
        if datapipe is not None and self.adapters and not is_adapted:
            datapipe = self.adapted(datapipe)
            snapshot = GraphTemplate(datapipe)
        self.datapipe = datapipe
        self.name = "no pipe yet" if datapipe is None else type(datapipe).__qualname__
        self.snapshot = snapshot
        self.identity = Identity(snapshot, self._serialize)

    def adapted(self, datapipe: Any) -> Any:
        for adapter in self.adapters or ():
            changed = adapter(datapipe)
            if not is_pipe(changed):
                raise TypeError(f"an adapter must return the pipe to read, but {adapter!r} returned {changed!r}")
            datapipe = changed
        return datapipe

    @property
    def contract(self) -> ReadingServiceInterface:
        return contract_of(self.service)

    def require_pipe(self) -> None:
        """Raises TypeError if the pipe of the loader is missing or invalid. The result of a reading service is not
        checked, because a service may return an object that is not a pipe.
        """
        if not self.is_taken_over:
            require_pipe(self.datapipe)

    def note_identity(self) -> None:
        if not self.is_taken_over:
            self.identity.note(self.datapipe)

    def hand_over(self, resumed: Callable[[], Sequence[Shard] | None], in_shards: bool, full_stats: bool) -> None:
        """If the service fails, the loader keeps the original graph.

        The function `resumed` returns the shards of the epoch to resume, or None to begin a new epoch.
        """
        if in_shards:
            self.service = running_shards(self.service)
        if self.service is None:
            return
        self._length = None
        self.skips = is_pipe(self.datapipe) and skipper_of(Graph(self.datapipe)) is not None
        service, contract, state = self.service, self.contract, self.service_state
        contract.before_initialize(full_stats, resumed, contract.rank_in_epoch)
        if state is not None and not contract.is_checkpointable and holds_nothing(state):
            state = None
        try:
            if state is None:
                self.datapipe = service.initialize(self.datapipe)
            elif contract.is_checkpointable:
                self.datapipe = service.restore(self.datapipe, state)
            else:
                raise TypeError(
                    "Cannot restore from non-checkpointable reading service: the loaded state contains the state of "
                    f"a reading service, but {type(service).__name__} is not a CheckpointableReadingServiceInterface"
                )
        except BaseException:
            self.datapipe = self.snapshot.copy()
            raise
        self.is_taken_over = True

    def take_back(self) -> None:
        if self.service is not None and self.is_taken_over:
            self.service.finalize()
            self.service = self._adapted_service()
            self.is_taken_over = False
        end_threads(self.datapipe)  # running threads would continue to draw random numbers

    def length(self) -> int:
        """Raises TypeError if the number of items is unknown."""
        if self.datapipe is None:
            raise TypeError("this DataLoader2 has no length, because it has no pipe yet")
        self.require_pipe()
        contract = self.contract
        try:
            length = contract.count_items(self.datapipe)
        except TypeError as error:  # the pipe's own error is raised, because old code matches its message
            add_note(error, advice_on(error))
            raise
        if length is not None:
            return length
        if not self.is_taken_over:
            return length_of_epoch(self.datapipe, contract)
        if self._length is None:
            try:
                self._length = length_of_epoch(self.snapshot.copy(), contract)
            except TypeError as error:
                self._length = str(error)
        if isinstance(self._length, str):
            raise TypeError(self._length)
        return self._length

    def works(self) -> list[Work]:
        """Returns a `Work` for each pipe of the main process that runs threads; `Work.close` ends these threads."""
        pipes = Graph(self.datapipe) if is_pipe(self.datapipe) else ()
        works = (hooks_of(pipe)._threads_at_work() for pipe in pipes)
        return [work for work in works if work is not None]

    def leave_ranks(self, for_good: bool) -> None:
        """Notifies other ranks that this rank has left the epoch. If `for_good` is True, all other ranks raise an
        error."""
        for pipe in Graph(self.datapipe):
            if isinstance(pipe, FullSync):
                pipe.leave(for_good)

    # -- pausing -----------------------------------------------------------------------------------

    def pause(self) -> None:
        """`pause` must be called only if `can("pause")` is True."""
        if self.service is None:
            pause_pipes(self.datapipe)
        else:
            self._apply(self.service._pause())

    def resume(self) -> None:
        """`resume` must be called only if `can("resume")` is True."""
        if self.service is None:
            resume_pipes(self.datapipe)
        else:
            self._apply(self.service._resume())

    def limit(self, num_batches: int | None) -> None:
        if self.service is not None and self.can("limit"):
            self._apply(self.service._limit(num_batches), num_batches)

    def _apply(self, function: Callable[..., Any] | None, *values: Any) -> None:
        if function is not None:
            self.datapipe = function(self.datapipe, *values)

    def can(self, what: str) -> bool:
        if self.service is None or getattr(self.contract, f"_{what}") is not None:
            return True
        warnings.warn(f"{type(self.service).__name__}: ReadingService doesn't support `{what}`.", stacklevel=4)
        return False
