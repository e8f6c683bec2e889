"""Base seeds for the processes of `ParallelMapper`.

Role: runs in the thread of the main process that resets a node. A seed is what a loader of torch would draw there from
the global generator, but it is drawn from a copy: the main process's random numbers stay those of a program without
processes, so a program that restores the generator before it resumes gets the numbers of the uninterrupted run.
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
    """Within the outermost such block of a thread, no two calls of `base_seed` return the same number."""
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
    """The seed of a group of processes, which repeats after `torch.manual_seed`."""
    with one_reset():
        return int(torch.empty((), dtype=torch.int64).random_(generator=_local.copy).item())
