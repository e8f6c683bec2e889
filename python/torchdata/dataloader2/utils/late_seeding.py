"""Seeds for libraries that are imported in the middle of an epoch.

Role: a child seeds the global generators of the loaded libraries when an epoch begins. A user's function may
import one later, as functions under spawn often do; its generator would start from the system's entropy, and the
run could not be repeated. So a finder at the front of `sys.meta_path` waits for these libraries and seeds each
right after it was imported, before the importing code goes on. Runs in workers and in the dispatching process, in
whichever thread imports; `process_reset_fn` gives it the seeds of each epoch. It leaves when nothing is awaited.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["seed_when_imported"]


class _SeedingFinder(MetaPathFinder):
    """Finds awaited modules through the finders behind it, and nothing else."""

    def __init__(self) -> None:
        #: What seeds a module in this epoch, by the name of the module.
        self.awaited: dict[str, Callable[[Any], object]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.awaited:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _SeedingLoader(spec.loader, self)
                return spec
        return None

    def imported(self, module: ModuleType) -> None:
        seed = self.awaited.pop(module.__name__, None)
        if seed is not None:
            seed(module)
        self.install_or_leave()

    def install_or_leave(self) -> None:
        """Stands in `sys.meta_path` exactly where something is awaited.

        Puts a new list there: taking a finder out of the list that another thread's import is going through
        would make it miss one.
        """
        others = [finder for finder in sys.meta_path if finder is not self]
        if self.awaited and len(others) == len(sys.meta_path):
            sys.meta_path = [self, *others]
        elif not self.awaited and len(others) < len(sys.meta_path):
            sys.meta_path = others


class _SeedingLoader(Loader):
    """Stands in for a module's loader until the module is executed."""

    def __init__(self, loader: Any, finder: _SeedingFinder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:  # for those who ask a spec without importing the module
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The module is to see its own loader, also while it is executed.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._finder.imported(module)


_finder = _SeedingFinder()


def seed_when_imported(seedings: Mapping[str, Callable[[Any], object]]) -> None:
    """Calls a function with a module right after the module was imported, once.

    Args:
        seedings: the functions by the full name of their module, of modules that are not loaded. They take the
            place of those of the epoch before; an empty mapping ends the waiting.
    """
    _finder.awaited = dict(seedings)
    _finder.install_or_leave()
