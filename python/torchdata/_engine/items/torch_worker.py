"""Makes a worker process look like a worker of torch: `get_worker_info()`, shared memory for collated batches, and
random seeds.

This module replaces functions of torch, immediately if torch is loaded, or else when torch is imported.
"""

from __future__ import annotations

import contextlib
import random
import sys
from typing import Any

from torchdata._importing import call_when_imported
from torchdata.datapipes._pipe import splitting
from torchdata.datapipes._pipe.splitting import watched_info
from torchdata.datapipes._pipe.state import generators

_MODULE = "torch.utils.data"


def set_worker_info(worker_id: int, num_workers: int, datapipe: Any, *, is_local: bool = False) -> None:
    """Makes torch see this process as a worker. If `is_local` is True, torch's own `default_collate` is kept, because
    it is faster for items that stay in this process."""

    def set_info(module: Any) -> None:
        show_worker(worker_id, num_workers, datapipe)
        if not is_local:
            collate_where_items_leave(module._utils.collate)

    loaded = sys.modules.get(_MODULE)
    if loaded is None:
        call_when_imported("worker info", {_MODULE: _set_info})
        splitting.set_info = set_info
    else:
        set_info(loaded)


def _set_info(module: Any) -> None:
    assert splitting.set_info is not None
    splitting.set_info(module)


def show_worker(worker_id: int, num_workers: int, dataset: Any) -> None:
    """Torch's worker module is taken from `sys.modules`, because `torch.utils` does not exist yet while torch is being
    imported.
    """
    worker: Any = sys.modules[f"{_MODULE}._utils.worker"]
    # While torch is being imported, `awaited` contains the seed for torch's generator.
    seed = generators.awaited.get("torch")
    if seed is None:
        seed = sys.modules["torch"].initial_seed()
    worker._worker_info = watched_info(worker, id=worker_id, num_workers=num_workers, seed=seed, dataset=dataset)


def seed_worker(base_seed: int, worker_id: int) -> None:
    import numpy
    import torch
    from torch.utils.data._utils.worker import _generate_state

    seed = base_seed + worker_id
    random.seed(seed)
    generators.seed_torch(torch, seed)
    numpy.random.seed(_generate_state(base_seed, worker_id))  # type: ignore[no-untyped-call]


def collate_where_items_leave(collate: Any) -> None:
    """Makes torch's `default_collate` write batches directly into the shared memory that the worker uses for sending.

    Torch's own function would create separate shared memory for each batch, so that the engine would have to copy the
    batch. In addition, torch's own function would convert each small array to a tensor, which takes longer than copying
    the array. Collate functions that users have registered in torch's table are kept.
    """
    torch = sys.modules["torch"]
    table = collate.default_collate_fn_map
    own_tensors, own_arrays = collate.collate_tensor_fn, collate.collate_numpy_array_fn
    if table.get(torch.Tensor) is not own_tensors:
        return
    import numpy

    from torchdata.datapipes.utils.collate import arrays_as_tensor, is_stackable, stacked_tensors

    def collate_tensors(batch: Any, *, collate_fn_map: Any = None) -> Any:
        if is_stackable(torch, batch):
            with contextlib.suppress(RuntimeError):  # torch's own function then raises this error to the user
                return stacked_tensors(torch, batch)
        return own_tensors(batch, collate_fn_map=collate_fn_map)

    def collate_arrays(batch: Any, *, collate_fn_map: Any = None) -> Any:
        stacked = None
        # if the user has replaced `collate_tensors`, the replacement expects tensors
        if (collate_fn_map or {}).get(torch.Tensor) is collate_tensors:
            stacked = arrays_as_tensor(torch, batch)
        return own_arrays(batch, collate_fn_map=collate_fn_map) if stacked is None else stacked

    table[torch.Tensor] = collate_tensors
    if table.get(numpy.ndarray) is own_arrays:
        table[numpy.ndarray] = collate_arrays
