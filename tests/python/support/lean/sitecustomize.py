"""Runs at the start of each process that tests start, to make importing torch and exiting faster.

Objects that torch's import creates stay alive, so garbage collection during the import and at interpreter exit would
waste time. Garbage collection is disabled during the import, and later collections skip the imported objects. A test
that needs normal garbage collection sets `TESTS_LEAN=0`.

Libraries named in `TESTS_HIDDEN` appear as not installed, because Ray would import some slow libraries in each worker.
"""

import gc
import os
import sys
from importlib.machinery import PathFinder


class _Lean:
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
    del module.__spec__.loader.exec_module  # the imported module must have its normal loader
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
