"""The loader: `DataLoader2` runs a pipe graph through a reading service, in the main process or in workers."""

from typing import TYPE_CHECKING

from torchdata._publishing import import_late
from torchdata._version import warn_if_replaced

if TYPE_CHECKING:
    from torchdata.dataloader2.dataloader2 import DataLoader2, DataLoader2Iterator
    from torchdata.dataloader2.dataloader2 import serialize_datapipe as serialize_datapipe
    from torchdata.dataloader2.error import PauseIteration, WorkerExitedError
    from torchdata.dataloader2.reading_service import (
        CheckpointableReadingServiceInterface,
        DistributedReadingService,
        InProcessReadingService,
        MultiProcessingReadingService,
        PrototypeMultiProcessingReadingService,
        RankInEpoch,
        RayReadingService,
        ReadingServiceInterface,
        SequentialReadingService,
        Shares,
    )
    from torchdata.dataloader2.shuffle_spec import ShuffleSpec
    from torchdata.dataloader2.state.describing import describe

__all__ = [
    "CheckpointableReadingServiceInterface",
    "DataLoader2",
    "DataLoader2Iterator",
    "DistributedReadingService",
    "InProcessReadingService",
    "MultiProcessingReadingService",
    "PauseIteration",
    "PrototypeMultiProcessingReadingService",
    "RankInEpoch",
    "RayReadingService",
    "ReadingServiceInterface",
    "SequentialReadingService",
    "Shares",
    "ShuffleSpec",
    "WorkerExitedError",
    "describe",
]

# The modules in `_LATE` are imported on first use, because worker processes do not need most of them.
_LATE = {
    "dataloader2": ["DataLoader2", "DataLoader2Iterator", "serialize_datapipe"],
    "error": ["PauseIteration", "WorkerExitedError"],
    "shuffle_spec": ["ShuffleSpec"],
    "state.describing": ["describe"],
}
import_late(globals(), {**_LATE, "reading_service": set(__all__).difference(*_LATE.values())})
warn_if_replaced(__name__)
