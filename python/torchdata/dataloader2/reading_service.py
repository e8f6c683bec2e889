"""Reading services: how a loader runs its pipe graph.

Role: users may replace functions in this module, such as `process_init_fn`, so the engine looks these functions up here
at each call.
"""

from __future__ import annotations

import warnings
from typing import Any

from torchdata._publishing import publish
from torchdata.dataloader2.services.distributed import DistributedReadingService
from torchdata.dataloader2.services.in_process import InProcessReadingService
from torchdata.dataloader2.services.interface import (
    CheckpointableReadingServiceInterface,
    RankInEpoch,
    ReadingServiceInterface,
    Shares,
)
from torchdata.dataloader2.services.multiprocessing import MultiProcessingReadingService
from torchdata.dataloader2.services.on_ray import RayReadingService
from torchdata.dataloader2.services.program import WorkerInfo, process_init_fn, process_reset_fn
from torchdata.dataloader2.services.sequential import SequentialReadingService

__all__ = [
    "CheckpointableReadingServiceInterface",
    "DistributedReadingService",
    "InProcessReadingService",
    "MultiProcessingReadingService",
    "PrototypeMultiProcessingReadingService",
    "RankInEpoch",
    "RayReadingService",
    "ReadingServiceInterface",
    "SequentialReadingService",
    "Shares",
    "WorkerInfo",
    "process_init_fn",
    "process_reset_fn",
]


class PrototypeMultiProcessingReadingService(ReadingServiceInterface):
    """The former name of `MultiProcessingReadingService`. Creates this service, and issues a `FutureWarning`.

    Example:
        >>> import warnings
        >>> from torchdata.dataloader2.reading_service import PrototypeMultiProcessingReadingService
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", FutureWarning)
        ...     service = PrototypeMultiProcessingReadingService(num_workers=2)
        >>> type(service).__name__
        'MultiProcessingReadingService'
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Creates a `MultiProcessingReadingService` with the same arguments."""
        warnings.warn(
            "`PrototypeMultiProcessingReadingService` is deprecated; use `MultiProcessingReadingService`, which takes "
            "the same arguments.",
            FutureWarning,
            stacklevel=2,
        )
        return MultiProcessingReadingService(*args, **kwargs)


publish(globals(), *(globals()[name] for name in __all__))
