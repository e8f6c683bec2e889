"""Seeds torch's generators, including all devices, without additional cost.

Role: `torch.manual_seed` also seeds devices that were not used yet. For each kind of device, it stores the text of the
caller's stack, for the error message of a device that cannot be seeded later. Creating these texts (by walking the
stack and checking each source file on disk) takes ten to fifty times as long as the seeding itself. A worker seeds at
the start of every epoch, when its first item is awaited.

The seeding itself is torch's own: the same generators and seeds for all devices that this torch supports. Runs in
workers and in the dispatching process, at the start of an epoch.
"""

from __future__ import annotations

import sys
from typing import Any

_LIMIT = "tracebacklimit"


def seed_torch(torch: Any, seed: int) -> None:
    """Does the same as `torch.manual_seed(seed)`, without texts of the stack."""
    missing = object()
    limit = getattr(sys, _LIMIT, missing)
    # A limit in the standard library for the number of entries in a stack text.
    setattr(sys, _LIMIT, 0)
    try:
        torch.manual_seed(seed)
    finally:
        if limit is missing:
            delattr(sys, _LIMIT)
        else:
            setattr(sys, _LIMIT, limit)
