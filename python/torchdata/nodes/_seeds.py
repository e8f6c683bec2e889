"""Base seeds for the processes of `ParallelMapper`.

Role: runs in the thread of the main process that resets a node. A seed is the number that PyTorch's loader would draw
from the global generator, but is drawn from a copy of this generator. The random numbers of the main process are
therefore the same as in a program without worker processes. If a program restores the global generator before it
resumes, the processes get the same seeds as in the uninterrupted run.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["base_seed", "one_reset"]

_local = threading.local()


@contextmanager
def one_reset() -> Iterator[None]:
    """Returns a context in which each call of `base_seed` by this thread returns a different number. Nested contexts
    have no effect."""
    if getattr(_local, "copy", None) is not None:
        yield
        return
    _local.copy = torch.Generator()
    _local.copy.set_state(torch.default_generator.get_state())
    try:
        yield
    finally:
        _local.copy = None


def base_seed() -> int:
    """Returns the seed of a group of processes, which is reproducible after `torch.manual_seed`."""
    with one_reset():
        return int(torch.empty((), dtype=torch.int64).random_(generator=_local.copy).item())
