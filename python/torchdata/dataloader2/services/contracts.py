"""The object that answers the loader for its reading service: the service itself, or the defaults in its place.

Role: pure functions. They are called in the main process where a loader, or an adapter, is given a service.
"""

from __future__ import annotations

from typing import Any

from torchdata.dataloader2.graph import DataPipe
from torchdata.dataloader2.services.interface import ReadingServiceInterface, Shares

__all__ = ["contract_of", "divided"]


class _NoService(ReadingServiceInterface):
    """The service of a loader without a service: it reads the graph with the pipes' own seeds."""

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        return datapipe

    def with_shards(self) -> ReadingServiceInterface:
        from torchdata.dataloader2.services.multiprocessing import MultiProcessingReadingService

        return MultiProcessingReadingService.without_workers()

    def count_items(self, datapipe: DataPipe) -> int:
        return len(datapipe)

    def count_shares(self) -> Shares:
        return Shares()


class _Answers(ReadingServiceInterface):
    """The defaults for a service of another class, which has only the methods of torchdata 0.9.

    Args:
        service: the service. The loader calls its methods of torchdata 0.9 itself.
    """

    def __init__(self, service: Any) -> None:
        self._service = service
        for name in ("_pause", "_resume", "_limit"):
            vars(self)[name] = getattr(service, name, None)

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        pipe: DataPipe = self._service.initialize(datapipe)
        return pipe

    def count_shares(self) -> Shares:
        raise TypeError(f"it depends on how {type(self._service).__name__} shares out the items")


def contract_of(service: Any) -> ReadingServiceInterface:
    """Returns the object that answers a loader for its service: the service itself, if it has this interface.

    Args:
        service: the service; None reads the graph as it is. A service of another class has the defaults.
    """
    if isinstance(service, ReadingServiceInterface):
        return service
    return _NoService() if service is None else _Answers(service)


def divided(service: Any, splits: int) -> ReadingServiceInterface:
    """The service that runs each epoch in `splits` shards over all ranks, instead of the given service or of none.

    Raises:
        ValueError: the service cannot run shards.
    """
    contract = contract_of(service).with_shards()
    if not contract.divide_into(splits):
        raise ValueError(
            f"splits={splits} needs a reading service of this package that runs the graph, and "
            f"{type(service).__name__} does not run shards"
        )
    return contract
