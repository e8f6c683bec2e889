"""Runs a graph through several reading services, one after another.

Calls that end an epoch or a run are forwarded to the services in reverse order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torchdata._handlers import is_of_handler
from torchdata._plain_pickles import from_plain, is_sealed, loads_plain, seal, to_plain, unseal
from torchdata.dataloader2.graph import DataPipe
from torchdata.dataloader2.graph.serialization import damaged
from torchdata.dataloader2.services.interface import (
    AskRank,
    CheckpointableReadingServiceInterface,
    IterResetFn,
    RankInEpoch,
    ReadingServiceInterface,
    Resumed,
    Shares,
    contract_of,
)
from torchdata.dataloader2.services.multiprocessing import MultiProcessingReadingService
from torchdata.dataloader2.state.layout import READING_SERVICE_STATE_KEY_NAME

if TYPE_CHECKING:
    from torchdata.dataloader2.random.seed_generator import SeedGenerator


def holds_nothing(serialized_state: Any) -> bool:
    """Returns whether `serialized_state` is empty, or a state of a `SequentialReadingService` that contains no state of
    any service."""
    try:
        return not serialized_state or all(map(holds_nothing, _states_in(serialized_state)))
    except ValueError:
        return False  # this state was not saved by a `SequentialReadingService`


def _states_in(serialized_state: Any) -> list[Any]:
    """`_states_in` accepts states of this version and of torchdata 0.9. Raises ValueError for a damaged state, and for
    a state of another service.
    """
    if not isinstance(serialized_state, bytes):
        raise damaged(READING_SERVICE_STATE_KEY_NAME, f"it is of type {type(serialized_state).__name__}")
    if is_sealed(serialized_state):
        saved = unseal(serialized_state, "the state of the reading services")
        states = from_plain(saved, "a reading service").get("states") if isinstance(saved, dict) else None
    else:
        try:
            states = loads_plain(serialized_state)
        except ValueError:
            how = "it is not the state of a SequentialReadingService, or is truncated"
            raise damaged(READING_SERVICE_STATE_KEY_NAME, how) from None
    if not isinstance(states, list):
        raise ValueError("the state of the reading services does not belong to a SequentialReadingService")
    return states


class SequentialReadingService(CheckpointableReadingServiceInterface):
    """Runs the pipe graph through several reading services, for example a distributed and a multi-process service.

    Args:
        *reading_services: the services. Each service receives the pipe that the previous service returned.

    Raises:
        TypeError: an argument is not a reading service.

    Example:
        >>> from torchdata.dataloader2 import DistributedReadingService, MultiProcessingReadingService
        >>> from torchdata.dataloader2 import SequentialReadingService
        >>> service = SequentialReadingService(DistributedReadingService(), MultiProcessingReadingService(2))
    """

    def __init__(self, *reading_services: ReadingServiceInterface) -> None:
        for index, service in enumerate(reading_services):
            if not callable(getattr(service, "initialize", None)):
                raise TypeError(
                    "SequentialReadingService takes reading services one by one, but argument number "
                    f"{index} is {service!r}, which has no `initialize`"
                )
        self.reading_services = reading_services

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        """Passes `datapipe` through all services. Each service receives the pipe that the previous service returned.
        Returns the pipe of the last service."""
        for service in self.reading_services:
            datapipe = service.initialize(datapipe)
        return datapipe

    def finalize(self) -> None:
        """Finalizes all services, in reverse order. After an error in one service, the remaining services are still
        called."""
        self._in_reverse("finalize")

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn | None = None
    ) -> IterResetFn | None:
        """Prepares an epoch in each service, with seeds from `seed_generator`. The first service receives
        `iter_reset_fn`, and each later service receives the function that the previous service returned. Returns the
        function of the last service."""
        for service in self.reading_services:
            iter_reset_fn = service.initialize_iteration(seed_generator=seed_generator, iter_reset_fn=iter_reset_fn)
        return iter_reset_fn

    def finalize_iteration(self) -> None:
        """Ends the epoch in all services, in reverse order."""
        self._in_reverse("finalize_iteration")

    def _in_reverse(self, method: str) -> None:
        first: Exception | None = None
        for service in reversed(self.reading_services):
            try:
                getattr(service, method)()
            except Exception as error:
                if first is None or is_of_handler(error):
                    error.__context__, first = error.__context__ or first, error
                else:
                    first.add_note(f"{type(service).__name__}.{method} failed after that, too: {error!r}")
        if first is not None:
            raise first

    def checkpoint(self) -> bytes:
        """Returns the states of all services that have the method `checkpoint`."""
        saves = [getattr(service, "checkpoint", None) for service in self.reading_services]
        states = [save() if callable(save) else b"" for save in saves]
        return seal(to_plain({"states": states}, "a reading service"))

    def restore(self, datapipe: DataPipe, serialized_state: bytes) -> DataPipe:
        """Passes `datapipe` through all services. A service with the method `restore` also receives its own state from
        `serialized_state`; the other services are initialized. Returns the pipe of the last service.

        Raises:
            ValueError: the state was saved with another number or kind of services, or is damaged.
        """
        states = _states_in(serialized_state)
        if len(states) != len(self.reading_services) and all(map(holds_nothing, states)):
            return self.initialize(datapipe)  # no service had a state
        if len(states) != len(self.reading_services):
            raise ValueError(
                f"the state holds {len(states)} reading services, but this SequentialReadingService has "
                f"{len(self.reading_services)}; build it from the same services before loading the state"
            )
        for service, state in zip(self.reading_services, states, strict=True):
            is_empty = not state and isinstance(service, SequentialReadingService)
            restore = None if is_empty else getattr(service, "restore", None)
            datapipe = restore(datapipe, state) if callable(restore) else service.initialize(datapipe)
        return datapipe

    # -- questions of the loader -------------------------------------------------------------------

    @property
    def _contracts(self) -> list[ReadingServiceInterface]:
        return list(map(contract_of, self.reading_services))

    def before_initialize(self, full_stats: bool, resumed: Resumed, ranks: AskRank) -> None:
        for service in self._contracts:
            service.before_initialize(full_stats, resumed, ranks)

    def count_shares(self) -> Shares:
        """Returns the number of workers of each rank and the number of ranks, from all services."""
        workers, ranks = 0, None
        for service in self._contracts:
            shares = service.count_shares()
            workers, ranks = shares.workers or workers, ranks if shares.ranks is None else shares.ranks
        return Shares(workers, ranks)

    def with_shards(self) -> ReadingServiceInterface:
        """Returns a `SequentialReadingService` of the results of `with_shards` of all services."""
        return SequentialReadingService(*(service.with_shards() for service in self._contracts))

    def runs_shards(self) -> bool:
        """Returns whether one of the services runs shards."""
        return any(service.runs_shards() for service in self._contracts)

    def divide_into(self, splits: int) -> None:
        """Divides each epoch into `splits` shards."""
        for service in self._contracts:
            service.divide_into(splits)

    def has_workers(self) -> bool:
        """Returns whether one of the services has workers."""
        return any(service.has_workers() for service in self._contracts)

    def rank_in_epoch(self) -> RankInEpoch | None:
        """Returns the rank from the first service that has a rank."""
        return next(filter(None, (service.rank_in_epoch() for service in self._contracts)), None)

    def agree_on_seeds(self, seed_generator: SeedGenerator) -> None:
        """Calls `agree_on_seeds(seed_generator)` of each service."""
        for service in self._contracts:
            service.agree_on_seeds(seed_generator)

    def keep_seeds(self) -> None:
        """Calls `keep_seeds` of each service."""
        for service in self._contracts:
            service.keep_seeds()

    def stats_notes(self) -> Sequence[str]:
        """Returns the sentences of all services for the statistics."""
        return [note for service in self._contracts for note in service.stats_notes()]

    def engine_processes(self) -> Any:
        """Returns the processes of the first service that runs processes."""
        return next(filter(None, (service.engine_processes() for service in self._contracts)), None)

    def _pause(self, pause_fn: IterResetFn | None = None) -> IterResetFn | None:
        return self._forwarded("_pause", pause_fn)

    def _resume(self, resume_fn: IterResetFn | None = None) -> IterResetFn | None:
        return self._forwarded("_resume", resume_fn)

    def _limit(self, num_batches: int | None, limit_fn: Callable[..., Any] | None = None) -> Callable[..., Any] | None:
        return self._forwarded("_limit", limit_fn, num_batches)

    def _forwarded(self, name: str, function: Callable[..., Any] | None, *arguments: Any) -> Callable[..., Any] | None:
        """Calls the method `name` of all services. Each service receives the function that the previous service
        returned."""
        for method in filter(None, (getattr(service, name) for service in self._contracts)):
            function = method(*arguments, function)
        return function


def in_shards(service: Any) -> ReadingServiceInterface:
    """Returns a service that runs the graph in shards, either in workers or in the main process."""
    if service is None:
        return MultiProcessingReadingService.without_workers()
    contract = contract_of(service).with_shards()
    if contract.runs_shards() or (contract is not service and not isinstance(service, ReadingServiceInterface)):
        return contract  # the service runs shards itself, or does not belong to this package
    return SequentialReadingService(contract, MultiProcessingReadingService.without_workers())


def divided(service: Any, splits: int) -> ReadingServiceInterface:
    """Returns a service with `splits` shards for each epoch; raises ValueError if `service` cannot run shards."""
    contract = in_shards(service)
    if not contract.runs_shards():
        raise ValueError(
            f"splits={splits} needs a reading service of this package that runs the graph, and "
            f"{type(service).__name__} does not run shards"
        )
    contract.divide_into(splits)
    return contract
