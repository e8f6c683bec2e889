"""The functions that reading services apply to a pipe graph when a process starts and between its epochs."""

from torchdata.dataloader2.services.program import WorkerInfo, process_init_fn, process_reset_fn

__all__ = ["WorkerInfo", "process_init_fn", "process_reset_fn"]
