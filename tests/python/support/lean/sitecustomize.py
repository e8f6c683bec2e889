"""Runs at the start of each process that tests start, to speed up importing torch and exiting after that.

Objects created by torch's import stay alive. Garbage collection would take a tenth of the import time, and half of that
again at interpreter exit. Garbage collection is therefore disabled during the import, and later collections skip the
imported objects. Objects that a program creates afterwards are collected as usual. A test of this behavior sets
`TESTS_LEAN=0`.

Libraries in `TESTS_HIDDEN` appear as not installed, because Ray imports some into each of its workers in case an item
needs them.
"""

import gc
import os
import sys
from importlib.machinery import PathFinder


class _Lean:
    """Finds the large library. The finder stays in `sys.meta_path`, because tests check that."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in ("torch", "ray") or path is not None:
            return None
        spec = PathFinder.find_spec(name)
        if spec is not None:
            run = spec.loader.exec_module
            spec.loader.exec_module = lambda module: _without_searches(run, module)
        return spec


def _without_searches(run, module):
    del module.__spec__.loader.exec_module  # the module must see its own loader unchanged
    collecting = gc.isenabled()
    gc.disable()
    try:
        run(module)
    finally:
        gc.freeze()
        if collecting:
            gc.enable()


if os.environ.get("TESTS_LEAN") != "0":
    sys.meta_path.insert(0, _Lean)
    sys.modules.update(dict.fromkeys(os.environ.get("TESTS_HIDDEN", "").split()))
