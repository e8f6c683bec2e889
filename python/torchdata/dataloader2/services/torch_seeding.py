"""Seeding torch's generators, of all devices, at the cost of seeding them.

Role: `torch.manual_seed` also seeds devices that nobody has used yet: it leaves a note for each kind of device, with
the text of the stack that asked, for the error message of a device that cannot be seeded later. Making these texts (a
walk of the stack each, with a look at each source file on disk) takes ten to fifty times as long as all the seeding.
A worker seeds at the start of every epoch, where the first item waits for it.

The seeding itself stays torch's own: the same generators, the same seeds, whatever devices this torch knows. Runs in
workers and in the dispatching process, at the start of an epoch.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["seed_torch"]

_LIMIT = "tracebacklimit"


def seed_torch(torch: Any, seed: int) -> None:
    """Does `torch.manual_seed(seed)`, without texts of the stack."""
    missing = object()
    limit = getattr(sys, _LIMIT, missing)
    # A limit of the standard library's: no text of a stack has more entries than this.
    setattr(sys, _LIMIT, 0)
    try:
        torch.manual_seed(seed)
    finally:
        if limit is missing:
            delattr(sys, _LIMIT)
        else:
            setattr(sys, _LIMIT, limit)
