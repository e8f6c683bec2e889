"""The reading service that runs a loader's graph in shards.

Role: pure functions in the main process, for an epoch that resumes with its original shards or has a fixed number of
them.
"""

from __future__ import annotations

from typing import Any

from torchdata.dataloader2.services.interface import ReadingServiceInterface, contract_of
from torchdata.dataloader2.services.multiprocessing import MultiProcessingReadingService
from torchdata.dataloader2.services.sequential import SequentialReadingService


def in_shards(service: Any) -> ReadingServiceInterface:
    """Returns the service that runs a graph in shards, in its workers or in the main process, instead of the given
    service.
    """
    if service is None:
        return MultiProcessingReadingService.without_workers()
    contract = contract_of(service).with_shards()
    if contract.runs_shards() or (contract is not service and not isinstance(service, ReadingServiceInterface)):
        return contract  # it runs shards itself, or does not belong to this package
    return SequentialReadingService(contract, MultiProcessingReadingService.without_workers())


def divided(service: Any, splits: int) -> ReadingServiceInterface:
    """Returns the service that runs each epoch in `splits` shards over all ranks, instead of the given service.

    Raises:
        ValueError: the service cannot run shards.
    """
    contract = in_shards(service)
    if not contract.runs_shards():
        raise ValueError(
            f"splits={splits} needs a reading service of this package that runs the graph, and "
            f"{type(service).__name__} does not run shards"
        )
    contract.divide_into(splits)
    return contract
