"""Run by each process that tests start, as it starts: an import of torch, and the end after it, take less.

What torch's import makes lives on. To look for cycles in it takes a tenth of the import, and as the interpreter ends as
long again as half of it. So nothing is looked for meanwhile, and what lives once torch is there is taken out of later
searches. What a program makes after that is looked through as ever. A test of just that has `TESTS_LEAN=0`.

Where `TESTS_HIDDEN` names libraries, they are not installed: Ray imports some into each of its workers, in case that an
item is of theirs.
"""

import gc
import os
import sys
from importlib.machinery import PathFinder


class _Lean:
    """Finds the large library; it stays where it stands in `sys.meta_path`, as tests look at that."""

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
    del module.__spec__.loader.exec_module  # the module is to see its own loader as it is
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
