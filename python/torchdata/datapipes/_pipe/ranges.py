"""Marks the work of each pipe as a named range for PyTorch's profiler.

Role: the ranges begin and end in the main process, in the thread that iterates. The module never imports PyTorch
itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from torchdata._reporting import name_of

__all__ = ["ranges"]

#: False in a forked child, where the profiler of the parent does not record.
_is_main = True


def ranges() -> tuple[dict[str, Any], Callable[[Any], Callable[[None, None, None], object]]] | None:
    """Returns the variables of PyTorch's profiler module, and the function that begins a range; None if PyTorch is not
    imported."""
    profiler = sys.modules.get("torch.autograd.profiler")
    return (vars(profiler), _begin) if profiler is not None and _is_main else None


def _begin(datapipe: Any) -> Callable[[None, None, None], object]:
    """Begins a profiler range for a call of the pipe, and returns the function that ends this range."""
    recorded: Any = sys.modules["torch.autograd.profiler"].record_function(f"torchdata: {name_of(datapipe)}")
    recorded.__enter__()
    end: Callable[[None, None, None], object] = recorded.__exit__
    return end


def _forget() -> None:
    global _is_main
    _is_main = False


os.register_at_fork(after_in_child=_forget)
