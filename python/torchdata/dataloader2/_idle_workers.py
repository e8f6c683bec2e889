"""Workers without work, because the data has fewer parts than there are workers.

Role: pure functions over the number of items from each worker, which the loader has at the end of an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchdata._reporting import warn_outside

#: With fewer items per worker, the dataset is small or the run is a trial, and idle workers do not matter.
_LEAST = 10


def are_idle(shares: Sequence[int]) -> bool:
    """Whether some workers gave no items, and all other workers gave enough to justify a warning."""
    return 0 in shares and min(filter(None, shares), default=0) >= _LEAST


def warn_of_idle(shares: Sequence[int]) -> None:
    """Warns of workers that gave no items."""
    idle = [str(worker) for worker, items in enumerate(shares) if not items]
    working = len(shares) - len(idle)
    named = f"{', '.join(idle[:-1])} and {idle[-1]} have" if len(idle) > 1 else f"{idle[0]} has"
    warn_outside(
        f"worker process{'es' if len(idle) > 1 else ''} {named} given no item in this epoch, the other"
        f"{'s up to' if working > 1 else ''} {max(shares)}: probably fewer files, shards or blocks of "
        f"ShardingPolicy ({working}) are divided among the workers than there are workers ({len(shares)}). Use "
        f"num_workers={working}, or more and smaller shards and blocks",
        UserWarning,
    )
