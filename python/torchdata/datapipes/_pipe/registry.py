"""Manages functional forms. A functional form, such as `pipe.map(...)`, is a method that creates a pipe that reads
`pipe`.

IterDataPipe and MapDataPipe each have a registry of functional forms. `register_late` adds the functional forms of this
package, and imports the module of a pipe class when its functional form is first used. Users register the functional
forms of their own classes by `functional_datapipe`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from torchdata._importing import import_whole
from torchdata._publishing import publish_late
from torchdata._reporting import fold
from torchdata._signatures import signature_of
from torchdata.datapipes._pipe.graph.torch import Counterpart, pair_with_torch

C = TypeVar("C")


class FunctionalForms:
    functions: ClassVar[dict[str, Callable[..., Any]]] = {}

    counterpart: ClassVar[Counterpart]

    if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept misspelled forms

        def __getattr__(self, name: str) -> Any:
            function = type(self).functions.get(name) or type(self).counterpart.form(name)
            if isinstance(function, LateForm):
                function = function.form()
            if function is None:
                try:
                    return type(self).counterpart.attribute(self, name)
                except AttributeError:
                    raise _no_attribute(self, name) from None
            if hasattr(function, "__name__"):
                return MethodType(function, self)  # `help` shows the signature and docstring of a method
            bound = functools.partial(function, self)
            functools.update_wrapper(bound, function, assigned=("__doc__",))
            return bound

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *type(self).functions})

    @classmethod
    def register_function(cls, function_name: str, function: Callable[..., Any]) -> None:
        """Makes `function(pipe, ...)` available as `pipe.function_name(...)`. Raises ValueError if another class
        already has a functional form with this name (see `_may_replace`)."""
        before = cls.functions.get(function_name)
        if before is not None and not _may_replace(before, function):
            raise ValueError(
                f"the functional form {function_name!r} is already taken by {cls.functions[function_name]!r}; "
                "choose another name"
            )
        cls.functions[function_name] = function
        cls.counterpart.offer(function_name, function, before)

    @classmethod
    def register_datapipe_as_function(
        cls, function_name: str, cls_to_register: type, enable_df_api_tracing: bool = False
    ) -> None:
        """Makes the pipe class `cls_to_register` available as `pipe.function_name(...)`.

        `enable_df_api_tracing` is accepted for compatibility and ignored, because this package does not include
        PyTorch's data frame tracing.
        """
        cls.register_function(function_name, _constructor(cls, function_name, cls_to_register))

    @classmethod
    def register_late(cls, function_name: str, module: str, class_name: str) -> None:
        if function_name not in cls.functions:
            cls.register_function(function_name, LateForm(cls, function_name, module, class_name))

    @classmethod
    def publish_late(cls, namespace: dict[str, Any], pipes: Mapping[str, str], held: Mapping[str, str]) -> list[str]:
        """Makes a package of pipes import its modules on first use, and returns the package's `__all__`.

        Args:
            pipes: the classes of each module with their functional forms, such as "Mapper=map LengthSetter".
            held: for each module, names other than pipe classes that the package also exports, because pickles refer to
                them by the name of the package.
        """
        package: str = namespace["__name__"]
        modules = {module: words.split() for module, words in held.items()}
        names = [cls.__name__]
        for module, words in pipes.items():
            for name, _, form in (word.partition("=") for word in words.split()):
                modules.setdefault(module, []).append(name)
                names.append(name)
                if form:
                    cls.register_late(form, f"{package}.{module}", name)
        pair = functools.partial(pair_with_torch, package.replace("torchdata", "torch.utils.data"))
        publish_late(namespace, modules, pair)
        return sorted(names)


_ELSEWHERE = {
    "apply": "write .map(function)",
    "concatenate": "write .concat(other)",
    "flat_map": "write .flatmap(function)",
    "foreach": "write .map(function), or a loop",
    "interleave": "write .mux(other)",
    "limit": "write .header(n)",
    "padded_batch": "write .batch(n).collate(collate_fn=...)",
    "skip": "write .enumerate() and .filter(...)",
    "take": "write .header(n)",
    "to_list": "write list(pipe)",
    "window": "write .batch(n)",
}


def _no_attribute(pipe: Any, name: str) -> AttributeError:
    """Returns the error for a missing attribute. Python adds the most similar attribute name to the error message."""
    instead = f"; {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    return AttributeError(f"{type(pipe).__name__!r} object has no attribute {name!r}{instead}", name=name, obj=pipe)


class LateForm:
    def __init__(self, base: type[FunctionalForms], name: str, module: str, class_name: str) -> None:
        self._base, self._name, self.module, self._class_name = base, name, module, class_name

    def form(self) -> Callable[..., Any]:
        functions = self._base.functions
        if functions[self._name] is self:
            pipe = getattr(import_whole(self.module), self._class_name)
            functions[self._name] = _constructor(self._base, self._name, pipe)
        return functions[self._name]

    def __call__(self, source_datapipe: Any, *args: Any, **kwargs: Any) -> Any:
        return self.form()(source_datapipe, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.form(), name)


def _constructor(base: type[FunctionalForms], name: str, pipe: type) -> Callable[..., Any]:
    def construct(source_datapipe: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return pipe(source_datapipe, *args, **kwargs)
        except Exception as error:
            fold(error)
            if isinstance(error, TypeError):
                _note_names(error, name, pipe, kwargs)
            raise

    functools.update_wrapper(construct, pipe, assigned=("__module__", "__doc__"), updated=())
    # `help` shows the name of the form, and pickle finds the bound method by this name.
    construct.__name__, construct.__qualname__ = name, f"{base.__name__}.{name}"
    with contextlib.suppress(ValueError):  # the class has a constructor that is written in C
        # A constructor's declared result is None, but a functional form returns the new pipe.
        signature = signature_of(pipe)
        construct.__signature__ = signature.replace(return_annotation=pipe.__name__)  # type: ignore[attr-defined]
    return construct


def _note_names(error: TypeError, form: str, pipe: type, keywords: dict[str, Any]) -> None:
    try:
        _, *parameters = signature_of(pipe).parameters.values()
    except ValueError:  # the constructor is written in C
        return
    names = [one.name for one in parameters]
    if not keywords.keys() <= set(names) and not any(one.kind is one.VAR_KEYWORD for one in parameters):
        error.add_note(f".{form}() takes {', '.join(names) or 'no argument'}.")


def _may_replace(before: Any, now: Any) -> bool:
    """Returns whether two functional forms create versions of the same class, for example because a notebook cell was
    rerun."""
    if isinstance(before, LateForm):
        return getattr(getattr(now, "__wrapped__", now), "__module__", None) == before.module
    classes = [getattr(form, "__wrapped__", None) for form in (before, now)]
    names = {(kind.__module__, kind.__qualname__) for kind in classes if isinstance(kind, type)}
    return all(isinstance(kind, type) for kind in classes) and len(names) == 1


class functional_datapipe:
    """Class decorator that registers a pipe under a functional form.

    Type checkers do not know functional forms that are registered at run time, and report an unknown attribute. In
    typed code, call the class, `Doubler(pipe)`, or mark the line: `pipe.doubled() # type: ignore[attr-defined]`.

    A class replaces an earlier class with the same module and qualified name, so that a notebook cell can be rerun.
    Existing pipes keep their class.

    Args:
        name: the name of the method that creates the pipe. The method is added to IterDataPipe or, for a map-style
            class, to MapDataPipe.
        enable_df_api_tracing: accepted for compatibility, without effect; False by default.

    Raises:
        TypeError: `name` is not a valid name of a method, or the decorated object is not a class of pipes.
        ValueError: when the class is decorated, another class already has the functional form `name`.

    Example:
        >>> from torchdata.datapipes import functional_datapipe
        >>> from torchdata.datapipes.iter import IterDataPipe, IterableWrapper
        >>> @functional_datapipe("doubled")
        ... class Doubler(IterDataPipe):
        ...     def __init__(self, source_datapipe):
        ...         self.source_datapipe = source_datapipe
        ...     def __iter__(self):
        ...         for item in self.source_datapipe:
        ...             yield 2 * item
        >>> list(IterableWrapper([1, 2]).doubled())
        [2, 4]
    """

    def __init__(self, name: str, enable_df_api_tracing: bool = False) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise TypeError(f"a functional form must be a valid method name, but got {name!r}")
        self.name = name
        self.enable_df_api_tracing = enable_df_api_tracing

    def __call__(self, cls: C) -> C:
        kinds = FunctionalForms.__subclasses__() if isinstance(cls, type) else []
        # `issubclass` is also True for a class that derives from PyTorch's IterDataPipe or MapDataPipe.
        base = next((kind for kind in kinds if issubclass(cls, kind)), None)  # type: ignore[arg-type]
        if base is None:
            raise TypeError(f"functional_datapipe decorates IterDataPipe and MapDataPipe classes, not {cls!r}")
        kind: Any = cls
        base.register_datapipe_as_function(self.name, kind, enable_df_api_tracing=self.enable_df_api_tracing)
        return cls
