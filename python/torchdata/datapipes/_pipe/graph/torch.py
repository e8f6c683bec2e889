"""Makes the pipe classes of PyTorch and of this package work together in one pipeline.

This package never imports torch, so its pipes cannot derive from PyTorch's base classes, as pipes did in torchdata 0.9.
Once other code has imported torch, the `isinstance` checks and functional forms of both packages work for all their
pipes. When torch is imported, PyTorch's `Dataset` becomes a real base class of this package's pipes, because `Dataset`
is not an ABC.

This module changes PyTorch in the following four ways:

- `ABC.register` makes the classes of this package virtual subclasses of PyTorch's classes;
- PyTorch's registries of functional forms receive the functional forms of this package, so that PyTorch's pipes have
  these methods, too;
- PyTorch's decorator `functional_datapipe` accepts classes of this package, although their metaclass differs from the
  metaclass of PyTorch's pipes;
- before a PyTorch pipe begins an iteration, this package records the state of the graph.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

from torchdata._importing import call_when_imported

_MODULE = "torch.utils.data"

_MISSING = object()


class Counterpart:
    def __init__(self, name: str) -> None:
        self.name = name
        self.base: Any = None
        self._module: Any = None

    def meet(self, ours: Any, module: Any) -> None:
        base = getattr(module, self.name, None)
        if base is None or self.base is not None:
            return
        _pair(base, ours)
        self.base, self._module = base, module
        _derive(ours, getattr(module, "Dataset", None))
        for name, form in ours.functions.items():
            base.functions.setdefault(name, form)
        for name, method in vars(ours).items():
            self.offer(name, method)

    def offer(self, name: str, method: Any, before: Any = None) -> None:
        """Adds the functional form `method` to PyTorch's pipes. An existing form of PyTorch with this name is replaced
        only if it is the function `before`."""
        if before is not None and self.base is not None and self.base.functions.get(name) is before:
            self.base.functions[name] = method
        if self.base is not None and callable(method) and not name.startswith("_") and not hasattr(self.base, name):
            self.base.functions.setdefault(name, method)

    def form(self, name: str) -> Callable[..., Any] | None:
        found: Callable[..., Any] | None = None if self.base is None else self.base.functions.get(name)
        return found

    def attribute(self, datapipe: Any, name: str) -> Any:
        found = _MISSING if self.base is None or name.startswith("_") else vars(self.base).get(name, _MISSING)
        if found is _MISSING:
            raise AttributeError(name)
        bind = getattr(type(found), "__get__", None)
        return found if bind is None else bind(found, datapipe, type(datapipe))

    def joiner(self, other: Any) -> Any:
        """Returns the PyTorch class that joins two datasets by `+`; None if `other` is a pipe, or is not a dataset."""
        torchs = self._module
        if torchs is None or isinstance(other, (torchs.IterDataPipe, torchs.MapDataPipe)):
            return None
        if not isinstance(other, torchs.Dataset):
            return None
        return torchs.ChainDataset if self.name == "IterDataPipe" else torchs.ConcatDataset

    def hook(self, name: str) -> Callable[..., Any] | None:
        return None if self.base is None else getattr(self.base, name, None)


_waiting: list[Callable[[Any], object]] = []

_twins: dict[Any, Any] = {}


def pair_with_torch(package: str, classes: dict[str, Any]) -> None:
    """Makes each pipe class of this package and PyTorch's pipe class of the same name virtual subclasses of each
    other."""

    def pair(_torchs: Any) -> None:
        if package not in sys.modules:
            return
        found = vars(sys.modules[package])
        for name in found.get("__all__", ()):
            theirs, ours = found.get(name), classes.get(name)
            if hasattr(theirs, "register") and isinstance(ours, type):
                _pair(theirs, ours)

    _when_imported(pair)


def pair_streams_with_torch(ours: Any) -> None:
    """Makes PyTorch's stream wrapper, which is not an ABC, a real base class of this package's stream wrapper."""

    def pair(_torchs: Any) -> None:
        theirs = getattr(sys.modules.get(f"{_MODULE}.datapipes.utils.common"), "StreamWrapper", None)
        if isinstance(theirs, type):
            _derive(ours, theirs)
            _twins[theirs], _twins[ours] = ours, theirs

    _when_imported(pair)


def _pair(theirs: Any, ours: Any) -> None:
    theirs.register(ours)  # `_twins` is changed after this call, because ABC refuses cycles
    _twins[theirs], _twins[ours] = ours, theirs


def twin_of(cls: type) -> Any:
    return _twins.get(cls)


def derives_from_twin(ours: type, cls: type) -> Any:
    theirs = _twins.get(ours)
    return True if theirs is not None and theirs in getattr(cls, "__mro__", ()) else NotImplemented


def _derive(ours: Any, dataset: Any) -> None:
    """Makes `dataset` a base class of `ours`. Existing instances of `ours` stay valid, because the new base class does
    not change their memory layout."""
    if isinstance(dataset, type) and not issubclass(ours, dataset):
        try:
            ours.__bases__ = (*ours.__bases__[:-1], dataset, *ours.__bases__[-1:])  # the last base is Generic
        except TypeError as error:  # importing torch must not fail if a release changes the layout of its classes
            warnings.warn(
                f"{ours.__name__} could not be made a subclass of {dataset.__module__}.{dataset.__qualname__}, so "
                f"isinstance(pipe, {dataset.__qualname__}) is False; all else works: {error}",
                stacklevel=2,
            )


def pair_bases_with_torch(*bases: Any) -> None:
    def meet(module: Any) -> None:
        for ours in bases:
            ours.counterpart.meet(ours, module)
        if hasattr(module, "functional_datapipe"):
            _allow_decorating(module.functional_datapipe, bases)

    _when_imported(meet)


def _when_imported(call: Callable[[Any], object]) -> None:
    loaded = sys.modules.get(_MODULE)
    if loaded is not None and hasattr(loaded, "DataLoader"):  # if the name is missing, the import is still in progress
        call(loaded)
        return
    _waiting.append(call)
    call_when_imported("pipes", {_MODULE: _call_all})


def _call_all(module: Any) -> None:
    while _waiting:
        _waiting.pop(0)(module)


def _allow_decorating(decorator: Any, bases: tuple[Any, ...]) -> None:
    of_torch = decorator.__call__

    @functools.wraps(of_torch)
    def __call__(self: Any, cls: Any) -> Any:
        base = next((base for base in bases if base in getattr(cls, "__mro__", ())), None)
        if base is None:
            return of_torch(self, cls)
        base.register_datapipe_as_function(self.name, cls)
        return cls

    decorator.__call__ = __call__


def has_begun(datapipe: Any) -> bool:
    """Returns whether a PyTorch pipe was iterated before. Raises TypeError for a PyTorch pipe with a method `set_seed`,
    because the state of such a pipe cannot be saved."""
    if hasattr(datapipe, "set_seed"):
        raise TypeError(
            f"the state of {datapipe!r} cannot be saved, because torch's pipe of that name does not keep its seed; "
            "build the pipeline with the pipe of torchdata.datapipes.iter instead"
        )
    return datapipe._snapshot_state is not type(datapipe)._snapshot_state  # the class has the initial value
