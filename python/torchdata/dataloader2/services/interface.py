"""The interface of reading services to `DataLoader2`.

A loader owns a copy of the service. The loader calls the methods of its copy of the service in the main process, in the
thread that uses the loader.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from torchdata.dataloader2.graph import DataPipe

if TYPE_CHECKING:
    from torchdata.dataloader2.random.seed_generator import SeedGenerator
    from torchdata.dataloader2.state.position import Shard


#: A function that changes the pipe graph at the start of an epoch.
IterResetFn: TypeAlias = Callable[[DataPipe], DataPipe]
#: A function that returns the shards of the epoch that a loader resumes, or None at the beginning of an epoch.
Resumed: TypeAlias = Callable[[], "Sequence[Shard] | None"]
AskRank: TypeAlias = Callable[[], "RankInEpoch | None"]


class Shares(NamedTuple):
    """The numbers of processes among which a service divides the items of an epoch.

    Args:
        workers: the number of worker processes of each rank; 0 (the default) if the graph runs in the main process.
            Each worker runs a copy of the graph up to the first pipe that cannot be replicated.
        ranks: the number of ranks of the distributed job; None without ranks.

    Example:
        >>> from torchdata.dataloader2 import Shares
        >>> Shares(workers=2)
        Shares(workers=2, ranks=None)
    """

    workers: int = 0
    ranks: int | None = None


class RankInEpoch(NamedTuple):
    """The rank of a loader in one epoch.

    Args:
        rank: the number of this rank, from 0.
        ranks: the number of ranks.
        keeps_seeds: whether the epoch uses the same seeds as a loader without ranks; False by default.

    Example:
        >>> from torchdata.dataloader2 import RankInEpoch
        >>> RankInEpoch(rank=0, ranks=2)
        RankInEpoch(rank=0, ranks=2, keeps_seeds=False)
    """

    rank: int
    ranks: int
    keeps_seeds: bool = False


class ReadingServiceInterface(ABC):
    """Base class of services that run the pipe graph of a loader: in this process, in workers, on several machines.

    The loader copies the service, so a service must be picklable until `initialize` is called. Open files and start
    threads or processes in `initialize`, not in `__init__`.

    A subclass must define only `initialize`; all other methods have defaults. The loader saves the position inside an
    epoch by `state_dict` of the pipe that `initialize` returns.

    Attributes:
        _pause: a method `_pause(pause_fn=None)` that stops reading ahead; None if the service cannot be paused. If
            `_pause` returns a function, the loader applies this function to its graph.
        _resume: a method `_resume(resume_fn=None)` that continues to read ahead; None if the service cannot be paused.
        _limit: a method `_limit(num_batches, limit_fn=None)` that `DataLoader2Iterator.limit` calls; None if the
            service does not need limits. The loader, not the service, counts the items.

    Example:
        >>> from torchdata.dataloader2 import DataLoader2, ReadingServiceInterface
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> class Shortened(ReadingServiceInterface):
        ...     def initialize(self, datapipe):
        ...         return datapipe.header(2)
        >>> list(DataLoader2(IterableWrapper(range(5)), reading_service=Shortened()))
        [0, 1]
    """

    _pause: ClassVar[Callable[..., Any] | None] = None
    _resume: ClassVar[Callable[..., Any] | None] = None
    _limit: ClassVar[Callable[..., Any] | None] = None
    #: Whether the service defines `checkpoint` and `restore`.
    is_checkpointable: ClassVar[bool] = False

    @abstractmethod
    def initialize(self, datapipe: DataPipe) -> DataPipe:
        """Takes over the pipe graph. The loader calls this method before the first epoch.

        Args:
            datapipe: the last pipe of the loader's graph.

        Returns:
            The pipe that the loader reads: `datapipe` itself, or a pipe that yields the items of the graph in other
            processes.
        """

    def finalize(self) -> None:  # noqa: B027 - optional
        """Releases everything that the service holds. The loader calls this method once, when it shuts down."""

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn | None = None
    ) -> IterResetFn | None:
        """Prepares an epoch. The loader calls this method before it creates the iterator of the epoch.

        Args:
            seed_generator: the loader's source of seeds. To make runs repeatable, draw all seeds from `seed_generator`.
            iter_reset_fn: the return value of the previous service in a `SequentialReadingService`; None if there
                is none.

        Returns:
            A function that changes the graph for this epoch, or None. The next service calls the returned function; the
            loader calls the function of the last service.
        """
        return iter_reset_fn

    def finalize_iteration(self) -> None:  # noqa: B027 - optional
        """Ends an epoch. The loader calls this method once for every epoch: at its end, after an error, or when the
        epoch is abandoned."""

    # -- questions of the loader -------------------------------------------------------------------

    def before_initialize(self, full_stats: bool, resumed: Resumed, ranks: AskRank) -> None:  # noqa: B027 - optional
        """Receives settings of the run. The loader calls this method once, before `initialize` or `restore`.

        Args:
            full_stats: whether the time of each pipe is measured.
            resumed: a function that returns the shards of the epoch that the loader resumes, or None at the beginning
                of an epoch. `resumed` must not be called before the rank is known.
            ranks: a function that returns the rank of the loader, or None if the rank is not known yet.
        """

    def with_shards(self) -> ReadingServiceInterface:
        """Returns the service that a loader without workers uses to finish an epoch that began in workers. By default,
        `with_shards` returns the service itself."""
        return self

    def runs_shards(self) -> bool:
        """Returns whether the service can run several shards of an epoch; False by default."""
        return False

    def divide_into(self, splits: int) -> None:  # noqa: B027 - optional
        """Divides each epoch into `splits` shards, over all ranks, if the service runs shards."""

    def count_items(self, datapipe: DataPipe) -> int | None:
        """Returns the number of items of an epoch, if known. `len(loader)` may call this method at any time.

        Args:
            datapipe: the graph that the loader reads; before `initialize`, the user's graph.

        Returns:
            The number of items; None if the loader should compute it from the length of the graph and the result of
            `count_shares`.
        """
        return None

    def count_shares(self) -> Shares:
        """Returns the number of workers and the number of ranks among which `sharding_filter` divides the items.
        `count_shares` may be called at any time, and starts no processes.

        Raises:
            TypeError: the numbers of processes and the loader's length are unknown; the message gives the reason.
        """
        raise TypeError(f"its length depends on how {type(self).__name__} divides the items")

    def has_workers(self) -> bool:
        """Returns whether worker processes of the main process run the graph; False by default."""
        return False

    def rank_in_epoch(self) -> RankInEpoch | None:
        """Returns the rank of the loader. Returns None without ranks, and before `initialize`."""
        return None

    def agree_on_seeds(self, seed_generator: SeedGenerator) -> None:  # noqa: B027 - optional
        """Makes this loader's seeds equal to the seeds of loaders on other ranks that must read the same items. The
        loader calls this method before a new epoch begins.

        Args:
            seed_generator: the loader's source of seeds, which is changed.
        """

    def keep_seeds(self) -> None:  # noqa: B027 - optional
        """Makes the next epoch use the seeds in the loaded state, which was saved without ranks."""

    def stats_notes(self) -> Sequence[str]:
        """Returns sentences to print below the table of `DataLoader2.stats`. Any thread may call this method at any
        time."""
        return ()

    def engine_processes(self) -> Any:
        """Returns the processes of this package's engine that run the graph. The loader shows the counters of the
        returned processes.

        Returns None if the service starts no processes of the engine; the loader then counts the items in the main
        process.
        """
        return None


class CheckpointableReadingServiceInterface(ReadingServiceInterface):
    """Base class of reading services that add their own state to the state of the loader.

    Example:
        >>> from torchdata.dataloader2 import CheckpointableReadingServiceInterface, DataLoader2
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> class Counted(CheckpointableReadingServiceInterface):
        ...     epochs = 0
        ...     def initialize(self, datapipe):
        ...         return datapipe
        ...     def initialize_iteration(self, seed_generator, iter_reset_fn=None):
        ...         self.epochs += 1
        ...     def checkpoint(self):
        ...         return str(self.epochs).encode()
        ...     def restore(self, datapipe, serialized_state):
        ...         self.epochs = int(serialized_state)
        ...         return datapipe
        >>> loader = DataLoader2(IterableWrapper(range(2)), reading_service=Counted())
        >>> list(loader), loader.state_dict()["reading_service_state"]
        ([0, 1], b'1')
    """

    is_checkpointable = True

    @abstractmethod
    def checkpoint(self) -> bytes:
        """Returns the state of the service. `DataLoader2.state_dict` calls this method."""

    @abstractmethod
    def restore(self, datapipe: DataPipe, serialized_state: bytes) -> DataPipe:
        """Takes over the pipe graph, and restores the state that `checkpoint` saved. The loader calls this method once,
        instead of `initialize`.

        Args:
            datapipe: the last pipe of the loader's graph.
            serialized_state: the return value of `checkpoint`.

        Returns:
            The pipe that the loader reads.
        """


class _NoService(ReadingServiceInterface):
    """Leaves the graph and the seeds of its pipes unchanged."""

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        return datapipe

    def count_items(self, datapipe: DataPipe) -> int:
        return len(datapipe)

    def count_shares(self) -> Shares:
        return Shares()


class _Answers(ReadingServiceInterface):
    """Adapts a service that was written for torchdata 0.9, by adding the methods that such a service lacks."""

    def __init__(self, service: Any) -> None:
        self._service = service
        for name in ("_pause", "_resume", "_limit"):
            vars(self)[name] = getattr(service, name, None)

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        pipe: DataPipe = self._service.initialize(datapipe)
        return pipe

    def count_shares(self) -> Shares:
        raise TypeError(f"its length depends on how {type(self._service).__name__} divides the items")


def contract_of(service: Any) -> ReadingServiceInterface:
    """Returns an object through which the loader can call every method of `ReadingServiceInterface`. A service that
    does not derive from `ReadingServiceInterface` is wrapped in an adapter. If `service` is None, the returned object
    leaves the graph unchanged.
    """
    if isinstance(service, ReadingServiceInterface):
        return service
    return _NoService() if service is None else _Answers(service)
