"""At home with PyTorch: makes torch's pipe classes and ours take each other for their own.

Role: in torchdata 0.9 the two bases of all pipes *were* torch's. Here they are classes of their own, because the
package never imports torch; so once somebody else has imported it, before or after this package, ours are registered as
virtual subclasses of torch, torch's count as subclasses of this package, and functional forms and methods that were put
on one are found on the other. `Dataset`, which is no ABC, becomes a base of this package in earnest. Runs in every
process that imports both. Torch is changed in four ways: by `ABC.register`, by entries in its registries of functional
forms, in its decorator `functional_datapipe`, which tells pipes by their metaclass and would refuse ours, and in the
function by which its pipes begin a pass, so that a state can tell how the graph stood then.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from torchdata._importing import call_when_imported

__all__ = [
    "Counterpart",
    "derives_from_twin",
    "meet_torch",
    "note_passes_of_torchs",
    "pair_streams_with_torch",
    "pair_with_torch",
    "replay_later",
    "twin_of",
    "yielded_so_far",
]

#: The module whose import completes torch's pipe classes.
_MODULE = "torch.utils.data"

_MISSING = object()


class Counterpart:
    """Torch's base class of one kind of pipe, if torch is loaded.

    Args:
        name: what torch calls the class.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.base: Any = None
        self._module: Any = None

    def meet(self, ours: Any, module: Any) -> None:
        """Makes the classes know each other. Names that both have stay what they are on each side."""
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
        """Lets torch's pipes find a form or a method of this package by its name, if they have none of that name.

        Args:
            name: the name.
            method: the form or method.
            before: the class of this package that it replaces.
        """
        if before is not None and self.base is not None and self.base.functions.get(name) is before:
            self.base.functions[name] = method
        if self.base is not None and callable(method) and not name.startswith("_") and not hasattr(self.base, name):
            self.base.functions.setdefault(name, method)

    def form(self, name: str) -> Callable[..., Any] | None:
        """The functional form that was registered with torch's base alone."""
        found: Callable[..., Any] | None = None if self.base is None else self.base.functions.get(name)
        return found

    def attribute(self, datapipe: Any, name: str) -> Any:
        """The attribute that a user put on torch's base, bound to `datapipe`.

        Raises:
            AttributeError: the name does not exist.
        """
        found = _MISSING if self.base is None or name.startswith("_") else vars(self.base).get(name, _MISSING)
        if found is _MISSING:
            raise AttributeError(name)
        bind = getattr(type(found), "__get__", None)
        return found if bind is None else bind(found, datapipe, type(datapipe))

    def joiner(self, other: Any) -> Any:
        """Torch's class that joins such a pipe with `other`, a dataset of torch; None if it is none, or a pipe."""
        torchs = self._module
        if torchs is None or isinstance(other, (torchs.IterDataPipe, torchs.MapDataPipe)):
            return None
        if not isinstance(other, torchs.Dataset):
            return None
        return torchs.ChainDataset if self.name == "IterDataPipe" else torchs.ConcatDataset

    def hook(self, name: str) -> Callable[..., Any] | None:
        """The hook of that name which torch's graph tools have set for the time of a traversal."""
        return None if self.base is None else getattr(self.base, name, None)


#: The functions to call when torch is imported, in order.
_waiting: list[Callable[[Any], object]] = []

#: Pipe classes, including the bases, that torchdata 0.9 took from torch and that exist twice now: this package's
#: classes by torch's, and torch's by this package's.
_twins: dict[Any, Any] = {}


def pair_with_torch(package: str, classes: dict[str, Any]) -> None:
    """Makes the pipe classes of torch and of this package that have one name take each other for their own.

    That happens now, or when torch is imported. Code that got the class from torch finds our pipes by it.

    Args:
        package: where torch has its classes.
        classes: ours by name; others may be among them.
    """

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
    """Makes torch's wrapper of streams and ours take each other for their own.

    Torch's is no ABC, so it becomes a base of this package in earnest; ours has all its methods, and so the last word.
    """

    def pair(_torchs: Any) -> None:
        theirs = getattr(sys.modules.get(f"{_MODULE}.datapipes.utils.common"), "StreamWrapper", None)
        if isinstance(theirs, type):
            _derive(ours, theirs)
            _twins[theirs], _twins[ours] = ours, theirs

    _when_imported(pair)


def _pair(theirs: Any, ours: Any) -> None:
    theirs.register(ours)  # before `derives_from_twin` holds: ABC refuses circles
    _twins[theirs], _twins[ours] = ours, theirs


def twin_of(cls: type) -> Any:
    """Torch's pipe class for this package's, or the reverse; None if there is only one class."""
    return _twins.get(cls)


def derives_from_twin(ours: type, cls: type) -> Any:
    """The answer of `__subclasshook__` of `ours`: whether `cls` is torch's class of its name, or derives from it."""
    theirs = _twins.get(ours)
    return True if theirs is not None and theirs in getattr(cls, "__mro__", ()) else NotImplemented


def _derive(ours: Any, dataset: Any) -> None:
    """Makes `dataset`, a class that takes no virtual subclasses, a base of `ours`: one that has the last word.

    Instances stay valid, because neither class defines a memory layout.
    """
    if isinstance(dataset, type) and not issubclass(ours, dataset):
        try:
            ours.__bases__ = (*ours.__bases__[:-1], dataset, *ours.__bases__[-1:])  # the last is Generic
        except TypeError as error:  # a torch that is laid out otherwise is still to be imported
            warnings.warn(
                f"{ours.__name__} could not be made a subclass of {dataset.__module__}.{dataset.__qualname__}, so "
                f"isinstance(pipe, {dataset.__qualname__}) is False; all else works: {error}",
                stacklevel=2,
            )


def meet_torch(*bases: Any) -> None:
    """Makes our bases and torch's know each other, now or when torch is imported."""

    def meet(module: Any) -> None:
        for ours in bases:
            ours.counterpart.meet(ours, module)
        if hasattr(module, "functional_datapipe"):
            _let_decorate(module.functional_datapipe, bases)

    _when_imported(meet)


def _when_imported(call: Callable[[Any], object]) -> None:
    """Calls a function with torch's module of datasets and pipes: now, or when it is imported."""
    loaded = sys.modules.get(_MODULE)
    if loaded is not None and hasattr(loaded, "DataLoader"):  # else it is being imported this very moment
        call(loaded)
        return
    _waiting.append(call)
    call_when_imported("pipes", {_MODULE: _call_all})


def _call_all(module: Any) -> None:
    while _waiting:
        _waiting.pop(0)(module)


def _let_decorate(decorator: Any, bases: tuple[Any, ...]) -> None:
    """Lets torch's decorator register classes of this package, too."""
    of_torch = decorator.__call__

    @functools.wraps(of_torch)
    def __call__(self: Any, cls: Any) -> Any:
        base = next((base for base in bases if base in getattr(cls, "__mro__", ())), None)
        if base is None:
            return of_torch(self, cls)
        base.register_datapipe_as_function(self.name, cls)
        return cls

    decorator.__call__ = __call__


def yielded_so_far(datapipe: Any) -> int | None:
    """How many items the running (or ended) iteration of a pipe of torch has yielded; None if it has not begun.

    Raises:
        TypeError: the pipe is random, and pipes of torch do not report the seed that they used.
    """
    if hasattr(datapipe, "set_seed"):
        raise TypeError(
            f"the state of {datapipe!r} cannot be saved, because torch's pipe of that name does not keep its seed; "
            "build the pipeline with the pipe of torchdata.datapipes.iter instead"
        )
    not_started = type(datapipe)._snapshot_state  # the class holds what a new pipe begins with
    return None if datapipe._snapshot_state is not_started else int(datapipe._number_of_samples_yielded)


def replay_later(datapipe: Any, begin: Callable[[], Iterator[Any]] | None) -> None:
    """Makes the next iteration of a pipe of torch's the one that `begin` makes; None: an ordinary one."""

    def once_asked() -> Iterator[Any]:  # the sources are in their places by then
        if begin is not None:
            yield from begin()

    datapipe._fast_forward_iterator = None if begin is None else once_asked()


def note_passes_of_torchs(note: Callable[[Any], None]) -> None:
    """Calls a function with each pipe of torch's whose pass is about to begin.

    That is before its sources are iterated, if its `__iter__` is a generator function.
    """

    def change(_torchs: Any) -> None:
        module = sys.modules.get(f"{_MODULE}.datapipes._hook_iterator")
        begin = getattr(module, "_set_datapipe_valid_iterator_id", None)
        if begin is None:
            return

        @functools.wraps(begin)
        def _set_datapipe_valid_iterator_id(datapipe: Any) -> Any:
            note(datapipe)
            return begin(datapipe)

        vars(module)[begin.__name__] = _set_datapipe_valid_iterator_id

    _when_imported(change)
