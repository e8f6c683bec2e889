"""Seeds for random pipes that were given none.

Role: one place that decides which global generator seeds come from. Runs in whichever process iterates the
pipe, at the start of an iteration.
"""

from __future__ import annotations

import random
import sys


def draw_seed() -> int:
    """A fresh seed of 63 bits: from torch's global generator where torch is loaded, else from Python's.

    So `torch.manual_seed` (or, without torch, `random.seed`) makes a run repeatable.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())
    return random.getrandbits(63)
