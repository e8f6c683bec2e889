"""Ranges around the pipes of the main process, for torch's profiler and for NVTX.

Role: runs in main, in the thread that iterates. PyTorch is used if the program has loaded it, and NVTX if it uses
CUDA already: nothing is initialised for want of a range.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["range_maker"]


class _Open(threading.local):
    """The ranges that a thread is in, the innermost last: (torch's, whether there is one of NVTX)."""

    def __init__(self) -> None:
        self.ranges: list[tuple[Any, bool]] = []


_open = _Open()


def range_maker(name: str) -> Callable[[bool], None] | None:
    """The function that begins (True) and ends (False) a range of that name; None if PyTorch is not loaded."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "autograd"):
        return None
    name = f"torchdata: {name}"

    def make(begins: bool) -> None:
        if begins:
            _begin(torch, name)
        elif _open.ranges:
            _end(torch)

    return make


def _begin(torch: Any, name: str) -> None:
    recorded = torch.autograd.profiler.record_function(name)
    recorded.__enter__()
    on_gpu = bool(torch.cuda.is_initialized())
    if on_gpu:
        torch.cuda.nvtx.range_push(name)
    _open.ranges.append((recorded, on_gpu))


def _end(torch: Any) -> None:
    recorded, on_gpu = _open.ranges.pop()
    if on_gpu:
        torch.cuda.nvtx.range_pop()
    recorded.__exit__(None, None, None)
