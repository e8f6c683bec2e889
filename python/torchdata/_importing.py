"""Importing late: calls a function right after a module was imported; imports what a fork must not copy half done.

Role: the package imports neither NumPy nor PyTorch by itself, but has things to do once somebody else did: to seed
their generators, to make its classes known to theirs. Some modules of its own are imported late, too, and published
then. A finder at the front of `sys.meta_path` waits for the modules; it leaves when nothing is awaited. And where an
item that arrives is made of arrays or tensors, the engine imports NumPy or PyTorch in the middle of things, perhaps
while another thread forks. Runs in whichever process and thread imports. This module owns the finder.
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

__all__ = ["call_when_imported", "import_whole", "loaded"]

#: The functions that are called with a module, by the module's full name.
Calls = Mapping[str, Callable[[Any], object]]


# Neither class derives from its base class in importlib.abc, whose import takes longer than that of this package.


class _WaitingFinder:
    """Finds awaited modules through the finders after it, and nothing else."""

    def __init__(self) -> None:
        #: The functions to be called, by the caller that asked for it and by the name of the module.
        self.calls: dict[str, dict[str, Callable[[Any], object]]] = {}

    def awaits(self, name: str) -> bool:
        return any(name in calls for calls in self.calls.values())

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not self.awaits(fullname):
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
        """Stands in `sys.meta_path` exactly where something is awaited.

        Puts a new list there: taking a finder out of the list that another thread's import is going through
        would make it miss one.
        """
        others = [finder for finder in sys.meta_path if finder is not self]
        awaited = any(self.calls.values())
        if awaited and len(others) == len(sys.meta_path):
            sys.meta_path = [self, *others]
        elif not awaited and len(others) < len(sys.meta_path):
            sys.meta_path = others


class _WaitingLoader:
    """Stands in for a module's loader until the module is executed."""

    def __init__(self, loader: Any, finder: _WaitingFinder) -> None:
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
        # Objects that an import makes live on: looking for cycles in them takes a tenth of torch's import, in vain.
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._loader.exec_module(module)
            self._finder.imported(module)
        finally:
            if collecting:
                gc.enable()


_finder = _WaitingFinder()


def call_when_imported(who: str, calls: Calls) -> None:
    """Calls functions with modules right after these were imported, each once.

    Args:
        who: names the caller. The calls replace those that the same caller gave before; an empty mapping ends its
            waiting.
        calls: the functions, by the full names of modules that are not loaded.
    """
    _finder.calls[who] = dict(calls)
    _finder.install_or_leave()


#: Held by a thread that imports by `import_whole`, and by a thread that forks. Otherwise the child would inherit an
#: incomplete module, with an import lock that no thread of the child releases. It would wait for ever where it needs
#: the module.
_late = threading.RLock()
os.register_at_fork(
    before=_late.acquire,
    after_in_parent=_late.release,
    after_in_child=_late._at_fork_reinit,  # type: ignore[attr-defined]
)


def import_whole(name: str) -> Any:
    """The module; where it must be imported first, no other thread forks meanwhile.

    Args:
        name: the module's full name.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        return module
    with _late:
        return importlib.import_module(name)


def loaded(name: str) -> Any:
    """The module if somebody has imported it, else None; where another thread is at that, once it is whole.

    Args:
        name: its full name.
    """
    if sys.modules.get(name) is None:
        return None
    try:
        return import_whole(name)
    except ImportError:  # which that thread is told
        return None
