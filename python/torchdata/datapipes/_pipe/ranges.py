"""Shows the work of each pipe as a named range in PyTorch's profiler, for pipes in the main process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from torchdata._reporting import name_of

#: Whether pipes are shown in the profiler; False in a forked child, because the parent's profiler does not record
#: there.
_is_main = True


def ranges() -> tuple[dict[str, Any], Callable[[Any], Callable[[None, None, None], object]]] | None:
    profiler = sys.modules.get("torch.autograd.profiler")
    return (vars(profiler), _begin) if profiler is not None and _is_main else None


def _begin(datapipe: Any) -> Callable[[None, None, None], object]:
    recorded: Any = sys.modules["torch.autograd.profiler"].record_function(f"torchdata: {name_of(datapipe)}")
    recorded.__enter__()
    end: Callable[[None, None, None], object] = recorded.__exit__
    return end


def _forget() -> None:
    global _is_main
    _is_main = False


os.register_at_fork(after_in_child=_forget)
