"""Functional forms: the names under which pipes are found as methods of other pipes.

Role: one registry per kind of pipe (iter, map). Filled at import time by `functional_datapipe`, and for pipes whose
module is imported later by `register_late`.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from torchdata._importing import import_whole
from torchdata._reporting import fold
from torchdata._signatures import signature_of
from torchdata.datapipes._pipe.graph.torch import Counterpart

C = TypeVar("C")


class FunctionalForms:
    """Gives a pipe base class a registry of functional forms and the lookup of them as methods."""

    functions: ClassVar[dict[str, Callable[..., Any]]] = {}

    #: Torch's base class of the same kind of pipe.
    counterpart: ClassVar[Counterpart]

    if not TYPE_CHECKING:  # or a checker would take any misspelt form for one that it does not know

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
                return MethodType(function, self)  # of which `help` shows signature and docstring
            bound = functools.partial(function, self)
            functools.update_wrapper(bound, function, assigned=("__doc__",))
            return bound

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *type(self).functions})

    @classmethod
    def register_function(cls, function_name: str, function: Callable[..., Any]) -> None:
        """Makes `function(pipe, ...)` available as `pipe.function_name(...)`.

        Raises:
            ValueError: the name is taken, by something else than a class that this one was made anew of.
        """
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

        `enable_df_api_tracing` is accepted for compatibility and has no effect: the data-frame
        tracing API of torch is not part of this library.
        """
        cls.register_function(function_name, _constructor(cls, function_name, cls_to_register))

    @classmethod
    def register_late(cls, function_name: str, module: str, class_name: str) -> None:
        """Makes a pipe available as `pipe.function_name(...)` whose module is imported when that is first used.

        Args:
            function_name: the form.
            module: the full name of the module, in which the pipe registers itself under that form.
            class_name: the class of the pipe.
        """
        if function_name not in cls.functions:
            cls.register_function(function_name, LateForm(cls, function_name, module, class_name))

    @classmethod
    def register_all_late(cls, package: str, modules: Mapping[str, Mapping[str, str | None]]) -> None:
        """Makes pipes available by their forms, as `register_late` does.

        Args:
            package: where the modules are.
            modules: by module, by name of the pipe, its form, or None.
        """
        for module, forms in modules.items():
            for class_name, form in forms.items():
                if form is not None:
                    cls.register_late(form, f"{package}.{module}", class_name)


#: What pipes offer in place of methods that other libraries' datasets and streams have.
_ELSEWHERE = {
    "apply": "write .map(function)",
    "concatenate": "write .concat(other)",
    "flat_map": "write .flatmap(function)",
    "foreach": "write .map(function), or a loop",
    "interleave": "write .mux(other)",
    "limit": "write .header(n)",
    "padded_batch": "write .batch(n).collate(collate_fn=...)",
    "skip": "write DataLoader2(...).skip(n), or .enumerate() and .filter(...)",
    "take": "write .header(n)",
    "to_list": "write list(pipe)",
    "window": "write .batch(n)",
}


def _no_attribute(pipe: Any, name: str) -> AttributeError:
    """Returns the error for an unknown name. Python itself adds the most similar name where it prints the error."""
    instead = f"; {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    return AttributeError(f"{type(pipe).__name__!r} object has no attribute {name!r}{instead}", name=name, obj=pipe)


class LateForm:
    """The functional form of a pipe whose module is imported when the form is first used, or looked at.

    Args:
        base: the base class of the pipe's kind.
        name: the form.
        module: the full name of the module.
        class_name: the class of the pipe.
    """

    def __init__(self, base: type[FunctionalForms], name: str, module: str, class_name: str) -> None:
        self._base, self._name, self.module, self._class_name = base, name, module, class_name

    def form(self) -> Callable[..., Any]:
        """The form itself."""
        pipe = getattr(import_whole(self.module), self._class_name)
        form = self._base.functions.get(self._name, self)  # the pipe has registered itself there
        return _constructor(self._base, self._name, pipe) if form is self else form

    def __call__(self, source_datapipe: Any, *args: Any, **kwargs: Any) -> Any:
        return self.form()(source_datapipe, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.form(), name)


def _constructor(base: type[FunctionalForms], name: str, pipe: type) -> Callable[..., Any]:
    """The function that makes a pipe of a class, as `base.name`."""

    def construct(source_datapipe: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return pipe(source_datapipe, *args, **kwargs)
        except Exception as error:
            fold(error)
            if isinstance(error, TypeError):
                _note_names(error, name, pipe, kwargs)
            raise

    functools.update_wrapper(construct, pipe, assigned=("__module__", "__doc__"), updated=())
    # The form's name is what `help` shows, and under which its bound method is pickled.
    construct.__name__, construct.__qualname__ = name, f"{base.__name__}.{name}"
    with contextlib.suppress(ValueError):  # of a class whose constructor is written in C
        # A constructor returns None, and a form what it has made.
        signature = signature_of(pipe)
        construct.__signature__ = signature.replace(return_annotation=pipe.__name__)  # type: ignore[attr-defined]
        construct.__doc__ = _without(next(iter(signature.parameters), None), construct.__doc__)
    return construct


def _note_names(error: TypeError, form: str, pipe: type, keywords: dict[str, Any]) -> None:
    """Notes what a form takes, if it was called with a name that is none of these."""
    try:
        _, *parameters = signature_of(pipe).parameters.values()
    except ValueError:  # the constructor is written in C
        return
    names = [one.name for one in parameters]
    if not keywords.keys() <= set(names) and not any(one.kind is one.VAR_KEYWORD for one in parameters):
        error.add_note(f".{form}() takes {', '.join(names) or 'no argument'}.")


def _without(parameter: str | None, docstring: str | None) -> str | None:
    """The docstring of a class for a form, whose first parameter is the pipe that it is called on."""
    if parameter is None or docstring is None:
        return docstring
    found = re.search(rf"^( *)Args:\n\1    {parameter}: .*\n(?:\1     +.*\n)*", docstring, re.MULTILINE)
    if found is None:
        return docstring
    head, rest = docstring[: found.start()], docstring[found.end() :]
    if re.match(rf"{found[1]}    \S", rest):  # further ones
        return f"{head}{found[1]}Args:\n{rest}"
    return head + rest.lstrip("\n")


def _may_replace(before: Any, now: Any) -> bool:
    """Whether two forms make pipes of one class, of which the second is newer: a cell of a notebook was run again.

    So it is where the module of a late one is imported.
    """
    if isinstance(before, LateForm):
        return getattr(getattr(now, "__wrapped__", now), "__module__", None) == before.module
    classes = [getattr(form, "__wrapped__", None) for form in (before, now)]
    names = {(kind.__module__, kind.__qualname__) for kind in classes if isinstance(kind, type)}
    return all(isinstance(kind, type) for kind in classes) and len(names) == 1


class functional_datapipe:
    """Class decorator that registers a pipe under a functional form.

    Type checkers cannot know forms that are registered when a program runs, and take them for misspelt ones. Typed
    code calls the class, `Doubler(pipe)`, or marks the line: `pipe.doubled()  # type: ignore[attr-defined]`.

    A class of the same module and qualified name takes the place of the one that was there, so that the cell of a
    notebook can be run again. Pipes that exist stay what they are.

    Args:
        name: the method name under which the pipe is found on every pipe of its kind.
        enable_df_api_tracing: accepted for compatibility, without effect.

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
        # Pipes of torch's are of a kind, too.
        base = next((kind for kind in kinds if issubclass(cls, kind)), None)  # type: ignore[arg-type]
        if base is None:
            raise TypeError(f"functional_datapipe decorates IterDataPipe and MapDataPipe classes, not {cls!r}")
        kind: Any = cls
        base.register_datapipe_as_function(self.name, kind, enable_df_api_tracing=self.enable_df_api_tracing)
        return cls
