"""Seeds for random pipes that were given none.

Role: one place that decides which global generator seeds come from. Runs in whichever process iterates the
pipe, at the start of an iteration.
"""

from __future__ import annotations

import random
import sys

#: Whether this process runs a replica of a graph, as a worker does. Its runtime says so.
is_replica = False


def draw_seed(last: int | None = None) -> int:
    """A fresh seed of 63 bits: from torch's global generator where torch is loaded, else from Python's.

    So `torch.manual_seed` (or, without torch, `random.seed`) makes a run repeatable. The replicas of a pipe before a
    `sharding_filter` must draw alike, or items are lost and doubled, and their global generators differ: there a seed
    follows from the last one, where a pipe is read again in one epoch (`cycle`).

    Args:
        last: the seed of the pipe's last iteration.
    """
    if is_replica and last is not None:
        return random.Random(f"after {last}").getrandbits(63)
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())
    return random.getrandbits(63)
