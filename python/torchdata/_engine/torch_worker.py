"""Tells torch that this process is a worker, for code that asks `torch.utils.data.get_worker_info()`.

Role: called in a worker when it has its graph and at the start of each epoch. Torch need not be loaded: then it is told
when it is imported.
"""

from __future__ import annotations

import sys
from typing import Any

from torchdata._importing import call_when_imported

__all__ = ["tell_torch"]

_MODULE = "torch.utils.data"


def tell_torch(worker_id: int, num_workers: int, datapipe: Any) -> None:
    """Makes `get_worker_info()` of torch describe this worker.

    Args:
        worker_id: the number of this worker, from 0.
        num_workers: the number of workers.
        datapipe: the graph that it reads, which torch calls its dataset.
    """

    def tell(module: Any) -> None:
        worker = module._utils.worker
        seed = sys.modules["torch"].initial_seed()
        worker._worker_info = worker.WorkerInfo(
            id=worker_id, num_workers=num_workers, seed=seed, dataset=datapipe
        )

    loaded = sys.modules.get(_MODULE)
    if loaded is None:
        call_when_imported("worker info", {_MODULE: tell})
    else:
        tell(loaded)
