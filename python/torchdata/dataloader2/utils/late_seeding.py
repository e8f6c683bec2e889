"""Seeds for libraries that are imported in the middle of an epoch.

Role: a child seeds the global generators of the loaded libraries when an epoch begins. A user's function may
import one later, as functions under spawn often do; its generator would start from the system's entropy, and the
run could not be repeated. So each is seeded right after it was imported, before the importing code goes on. Runs in
workers and in the dispatching process; `process_reset_fn` gives the seeds of each epoch.
"""

from __future__ import annotations

from torchdata._importing import Calls, call_when_imported

__all__ = ["seed_when_imported"]


def seed_when_imported(seedings: Calls) -> None:
    """Calls a function with a module right after the module was imported, once.

    Args:
        seedings: the functions by the full name of their module, of modules that are not loaded. They take the
            place of those of the epoch before; an empty mapping ends the waiting.
    """
    call_when_imported("seeds", seedings)
