"""What `DataLoader2` asks of a reading service.

Role: the contract between the loader, which owns a copy of the service, and the service, which owns whatever
runs the pipe graph. All methods are called in the main process, in the thread that uses the loader.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias

from torchdata.dataloader2.graph import DataPipe

if TYPE_CHECKING:
    from torchdata.dataloader2.random import SeedGenerator

__all__ = ["CheckpointableReadingServiceInterface", "IterResetFn", "PrefetchCount", "ReadingServiceInterface"]

#: The key of a service's own state in the state of its loader.
READING_SERVICE_STATE_KEY_NAME = "reading_service_state"

#: A number of items that are read ahead, or that it is to be chosen.
PrefetchCount: TypeAlias = int | Literal["auto"]

#: Changes the pipe graph at the start of an epoch.
IterResetFn: TypeAlias = Callable[[DataPipe], DataPipe]


class ReadingServiceInterface(ABC):
    """How a loader runs its pipe graph: in this process, in workers, on several machines.

    The loader makes a copy of the service, so a service must be picklable until `initialize` is called; open
    files, start threads and processes there and not in `__init__`.

    A service may also define `_pause(pause_fn=None)`, `_resume(resume_fn=None)` and
    `_limit(num_batches, limit_fn=None)`; `DataLoader2Iterator.limit` needs them.
    """

    @abstractmethod
    def initialize(self, datapipe: DataPipe) -> DataPipe:
        """Takes over the pipe graph. Called once, before the first epoch.

        Args:
            datapipe: the last pipe of the loader's graph.

        Returns:
            The pipe that the loader is to read: the same one, or one that stands for the graph elsewhere.
        """

    def finalize(self) -> None:  # noqa: B027 - optional
        """Releases everything that the service holds. Called once, when the loader shuts down."""

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn | None = None
    ) -> IterResetFn | None:
        """Prepares an epoch. Called before the loader makes the iterator of the epoch.

        Args:
            seed_generator: the loader's source of seeds; drawing from it is what makes runs repeatable.
            iter_reset_fn: what the service before this one in a `SequentialReadingService` returned.

        Returns:
            A function that is still to be applied to the graph by the next service or, at last, by the loader.
        """
        return iter_reset_fn

    def finalize_iteration(self) -> None:  # noqa: B027 - optional
        """Ends an epoch. Called once for every epoch begun, whether it ran to its end, failed or was given up."""

    def set_prefetch_counts(self, main: PrefetchCount | None, worker: PrefetchCount | None) -> None:  # noqa: B027 - optional
        """Sets how many items are read ahead in the main process and in each worker; None leaves a count as it is, and
        "auto" leaves it to what the loader counts.

        Called by `PrefetchPolicy`, before `initialize`. Services that read nothing ahead ignore it.
        """


class CheckpointableReadingServiceInterface(ReadingServiceInterface):
    """A reading service whose own state belongs into the state of the loader."""

    @abstractmethod
    def checkpoint(self) -> bytes:
        """The state of the service. Called by `DataLoader2.state_dict`."""

    @abstractmethod
    def restore(self, datapipe: DataPipe, serialized_state: bytes) -> DataPipe:
        """Takes over the pipe graph in the state that `checkpoint` saved. Called once in place of `initialize`.

        Args:
            datapipe: the last pipe of the loader's graph.
            serialized_state: what `checkpoint` returned.

        Returns:
            The pipe that the loader is to read.
        """
