"""Calls a function right after a module was imported, and protects imports from concurrent forks.

The package does not import NumPy or PyTorch, but seeds their random generators once other code has imported them. Items
with arrays or tensors make the engine import NumPy or PyTorch at any time, possibly while another thread forks.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Calls = Mapping[str, Callable[[Any], object]]


# The finder and loader do not derive from `importlib.abc`, because its import takes longer than importing this package.


class _WaitingFinder:
    def __init__(self) -> None:
        #: For each caller `owner`, the functions to call after an import, by the name of the imported module.
        self.calls: dict[str, dict[str, Callable[[Any], object]]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not any(fullname in calls for calls in self.calls.values()):
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    loader: Any = _WaitingLoader(spec.loader, self)
                    spec.loader = loader
                return spec
        return None

    def imported(self, module: ModuleType) -> None:
        asked = [calls.pop(module.__name__) for calls in self.calls.values() if module.__name__ in calls]
        self.install_or_leave()
        for call in asked:
            call(module)

    def install_or_leave(self) -> None:
        """Adds this finder to `sys.meta_path` if functions are registered, and removes the finder if no functions are
        left. `sys.meta_path` is replaced instead of modified, because an import in another thread could otherwise skip
        a finder."""
        others = [finder for finder in sys.meta_path if finder is not self]
        awaited = any(self.calls.values())
        if awaited and len(others) == len(sys.meta_path):
            sys.meta_path = [self, *others]
        elif not awaited and len(others) < len(sys.meta_path):
            sys.meta_path = others


class _WaitingLoader:
    def __init__(self, loader: Any, finder: _WaitingFinder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:  # some code inspects a spec without importing the module
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The module's code may read `__loader__`, which must be the real loader of the module, and not this object.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        # Garbage collection is disabled, because it takes a tenth of torch's import time, but frees almost nothing.
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._loader.exec_module(module)
            self._finder.imported(module)
        finally:
            if collecting:
                gc.enable()


_finder = _WaitingFinder()


def call_when_imported(owner: str, calls: Calls) -> None:
    """Registers functions. Each function is called once with its module, right after the import of this module. The
    modules must not be loaded yet. All functions that were registered earlier under the name `owner` are replaced by
    `calls`."""
    _finder.calls[owner] = dict(calls)
    _finder.install_or_leave()


#: A thread holds this lock during a fork, and while `import_whole` imports a module. Without the lock, a forked child
#: could inherit a module that another thread is importing, and would hang when it imports this module.
_late = threading.RLock()
os.register_at_fork(
    before=_late.acquire,
    after_in_parent=_late.release,
    after_in_child=_late._at_fork_reinit,  # type: ignore[attr-defined]
)


def import_whole(name: str) -> Any:
    """Imports a module, and prevents other threads from forking during the import."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        return module
    with _late:
        return importlib.import_module(name)


def loaded(name: str) -> Any:
    """Returns a module if it is imported, or None. If another thread is importing the module, waits for that thread."""
    if sys.modules.get(name) is None:
        return None
    try:
        return import_whole(name)
    except ImportError:
        return None
