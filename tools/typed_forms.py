"""Writes `python/torchdata/datapipes/_forms.pyi`: the functional forms as typed methods, for editors.

This program imports the package, and reads the registries of forms. A form has the signature of its pipe's constructor
(and of the constructor's overloads), or of `__new__`.

A form returns `IterDataPipe[T]` (or `MapDataPipe[T]`). The item type `T` is taken from the constructor's overloads,
from the class, or from the source, and otherwise is `Any`. A form returns the pipe's own class only if this class has
methods for users, such as `set_seed`. Therefore, a variable `pipe: IterDataPipe[Any]` accepts `pipe = pipe.map(f)`
repeatedly.

    typed_forms.py            writes the file
    typed_forms.py --print    prints the new content
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STUB = Path(__file__).resolve().parents[1] / "python/torchdata/datapipes/_forms.pyi"

HEADER = '''"""The functional forms of all pipes as typed methods. Written by `make stubs`: do not edit.

Only type checkers and editors read this file. At run time, the functional forms of pipes come from registries.
Functional forms that users register are not included in this file: see `functional_datapipe`.
"""
'''

#: The item type of a pipe that has the form as a method.
ITEM = "T_co"

#: Methods of some pipes that users call on the result of a form. Methods that only loaders call are not included.
CALLED_BY_USERS = {"add_handler", "invalidate_cache", "register_handler", "set_seed", "set_shuffle", "set_timeout"}

#: Result types of forms that are defined in a higher layer. Pipes cannot import these types, and only name them.
MADE_ABOVE = {"to_node": ("torchdata.nodes", f"BaseNode[{ITEM}]")}


class Stub:
    def __init__(self) -> None:
        self.names: set[str] = set()
        self.imports: set[str] = set()
        self.froms: dict[str, set[str]] = {}
        self.variables: set[str] = set()
        self.from_import("typing", "Generic")
        self.from_import("typing", "TypeVar")
        self.from_import("torchdata.datapipes._pipe.registry", "FunctionalForms")

    def from_import(self, module: str, name: str) -> None:
        self.froms.setdefault(module, set()).add(name)

    def text(self, forms: dict[str, dict[str, Callable[..., Any]]]) -> str:
        self.names.update(*forms.values())
        classes = [
            "\n".join([f"class {name}(FunctionalForms, Generic[{ITEM}]):", *self._methods(functions)])
            for name, functions in forms.items()
        ]
        variables = [f'{ITEM} = TypeVar("{ITEM}", covariant=True)']
        variables += [f'{name} = TypeVar("{name}")' for name in sorted(self.variables)]
        return "\n".join([HEADER, *self._imports(), *variables, "", *classes])

    def _imports(self) -> Iterator[str]:
        def ours(module: str) -> bool:
            return module.partition(".")[0] == "torchdata"

        for wanted in (False, True):
            plain = sorted(line for line in self.imports if ours(line.split()[1]) is wanted)
            froms = [
                _import(module, sorted(names)) for module, names in sorted(self.froms.items()) if ours(module) is wanted
            ]
            if plain or froms:
                yield "\n".join([*plain, *froms]) + "\n"

    def _methods(self, functions: dict[str, Callable[..., Any]]) -> Iterator[str]:
        for name, function in sorted(functions.items()):
            maker = getattr(function, "__wrapped__", function)
            constructor = _constructor(maker) if isinstance(maker, type) else maker
            overloads = typing.get_overloads(constructor)
            if overloads:
                self.from_import("typing", "overload")
            for one in overloads:
                yield "    @overload\n" + Form(self, maker, one).method(name)
            if not overloads:
                yield Form(self, maker, constructor).method(name)


class Form:
    """One functional form and its signature.

    Args:
        maker: the pipe's class, or the registered function.
        function: the class's constructor, one of its overloads, or the registered function.
    """

    def __init__(self, stub: Stub, maker: Any, function: Any) -> None:
        self.stub, self.maker, self.function = stub, maker, function
        self.overloaded = function in typing.get_overloads(function)
        parameters = [*inspect.signature(function).parameters.values()]
        #: The annotation of `self` in an overload of a constructor, which determines the type variables of the class.
        self.made = ""
        if isinstance(maker, type):
            this = parameters.pop(0)
            self.made = "" if this.annotation is this.empty else this.annotation
        source = "Any"
        if parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
            source = str(parameters.pop(0).annotation)
        self.parameters = parameters
        self.variables = self._variables(source)

    def _variables(self, source: str) -> dict[str, str]:
        """Returns the replacement for each type variable of the module. The variable that is the item type of the
        source becomes `ITEM`. All other variables become Any, or are kept in an overload."""
        tree = ast.parse(source, mode="eval").body
        of_items = ast.unparse(tree.slice) if isinstance(tree, ast.Subscript) else ""
        return {
            name: ITEM if name == of_items else name if self.overloaded else "Any"
            for name, value in vars(sys.modules[self.function.__module__]).items()
            if isinstance(value, typing.TypeVar)
        }

    def method(self, name: str) -> str:
        parameters = ["self"]
        positional = [one for one in self.parameters if one.kind is one.POSITIONAL_ONLY]
        for parameter, before in zip(self.parameters, [None, *self.parameters], strict=False):
            if parameter.kind is parameter.KEYWORD_ONLY and (
                before is None or before.kind not in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
            ):
                parameters.append("*")
            parameters.append(self._parameter(parameter))
            if positional and parameter is positional[-1]:
                parameters.append("/")
        head, listed, returned = f"    def {name}(", ", ".join(parameters), f") -> {self._returned()}:"
        if len(head + listed + returned) > 120:
            whole = " ".join(f"{text},".replace(" ", "\0") for text in parameters)  # lines break between parameters
            lines = textwrap.wrap(whole, 120, initial_indent=" " * 8, subsequent_indent=" " * 8)
            listed = "\n".join(["", *lines, "    "]).replace("\0", " ")
        summary = inspect.cleandoc(self.maker.__doc__ or "").partition("\n\n")[0]
        lines = textwrap.wrap(" ".join(summary.split()), 107, initial_indent='        """', subsequent_indent=" " * 8)
        doc = "\n".join(lines) + ('"""' if len(lines) < 2 else '\n        """')
        return f"{head}{listed}{returned}\n{doc}\n"

    def _parameter(self, parameter: inspect.Parameter) -> str:
        kinds = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
        stars = kinds.get(parameter.kind, "")  # type: ignore[call-overload]
        annotation = self._annotation(parameter.annotation)
        if annotation == ITEM:  # a covariant variable is not allowed here
            annotation = self._any()
        if parameter.default is parameter.empty:
            return f"{stars}{parameter.name}: {annotation}"
        return f"{parameter.name}: {annotation} = {_shown(parameter.default)}"

    def _returned(self) -> str:
        maker = self.maker
        if self.function.__name__ in MADE_ABOVE:
            module, returned = MADE_ABOVE[self.function.__name__]
            self.stub.from_import(module, returned.partition("[")[0])
            return returned
        if not isinstance(maker, type) or self.function.__name__ == "__new__":
            returned = inspect.signature(self.function).return_annotation
            maker = vars(sys.modules[self.function.__module__]).get(str(returned))
            if not _is_pipe_class(maker):
                return self._annotation(returned)
        base, items = _base_of(maker)
        tree = ast.parse(_expression(items), mode="eval")
        if self.made:
            made = ast.parse(self.made, mode="eval").body
            assert isinstance(made, ast.Subscript), f"{maker}: `self` of an overload must have the class's item type"
            variables = [variable.__name__ for variable in maker.__parameters__]
            assert len(variables) == 1, f"{maker}: overloads need a class with one type variable"
            tree = _Renamed(lambda name: ast.unparse(made.slice) if name in variables else name).visit(tree)
        # A type becomes Any if it contains a type variable that is undetermined.
        open_ended = any(self.variables.get(node.id) == "Any" for node in ast.walk(tree) if isinstance(node, ast.Name))
        shown = self._any() if open_ended else self._annotation(ast.unparse(tree))
        if CALLED_BY_USERS.isdisjoint(dir(maker)):
            return f"{self._class(base)}[{shown}]"
        self.stub.imports.add(f"import {maker.__module__}")  # the module, because two pipes may have one name
        return f"{maker.__module__}.{maker.__qualname__}" + (f"[{shown}]" if maker.__parameters__ else "")

    def _any(self) -> str:
        self.stub.from_import("typing", "Any")
        return "Any"

    def _class(self, cls: type) -> str:
        self.stub.from_import(cls.__module__, cls.__name__)
        return cls.__name__

    # -- annotations -------------------------------------------------------------------------------

    def _annotation(self, annotation: Any) -> str:
        if annotation is inspect.Parameter.empty:
            return self._any()
        assert isinstance(annotation, str), f"{self.maker}: annotations must be strings (from __future__)"
        tree = ast.parse(annotation, mode="eval")
        return ast.unparse(_Renamed(self._name).visit(tree)).replace("'", '"')

    def _name(self, name: str) -> str:
        if name in self.variables:
            if self.variables[name] == name != ITEM:
                self.stub.variables.add(name)
            return self._any() if self.variables[name] == "Any" else self.variables[name]
        module = self._module_of(name)
        value = vars(module).get(name)
        if isinstance(value, types.ModuleType):
            alias = f" as {name}" if name != value.__name__ else ""
            self.stub.imports.add(f"import {value.__name__}{alias}")
        elif name not in vars(module) and hasattr(builtins, name):
            if name in self.stub.names:  # for example, `slice` is a method of the class
                self.stub.imports.add("import builtins")
                return f"builtins.{name}"
        elif name not in vars(module):
            self.stub.from_import(_imported_from(module, name), name)
        elif isinstance(value, type) and value.__module__.startswith("torchdata."):
            return self._class(value)
        elif _home(value, name):
            self.stub.from_import(value.__module__, name)
        elif name in vars(module):
            self.stub.from_import(module.__name__, name)  # the name is an alias that the module defines
        return name

    def _module_of(self, name: str) -> types.ModuleType:
        """Returns the module that defines `name`: the module of the function, or of a base class of the pipe."""
        bases = self.maker.__mro__ if isinstance(self.maker, type) else ()
        modules = [sys.modules[one.__module__] for one in (self.function, *bases) if one.__module__ != "builtins"]
        return next((module for module in modules if name in vars(module)), modules[0])


def _import(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    return line if len(line) <= 110 else f"from {module} import (\n    " + ",\n    ".join(names) + ",\n)"


def _constructor(cls: type) -> Any:
    own = next(vars(base) for base in cls.__mro__ if {"__new__", "__init__"} & vars(base).keys())
    function = inspect.unwrap(own.get("__new__") or own["__init__"])
    return function.__func__ if isinstance(function, staticmethod) else function


def _is_pipe_class(value: Any) -> bool:
    from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe

    bases = (IterDataPipe, MapDataPipe)
    return isinstance(value, type) and issubclass(value, bases) and value not in bases


def _base_of(cls: Any) -> tuple[Any, Any]:
    """Returns the base class of `cls` (IterDataPipe or MapDataPipe), and the item type of this base class."""
    from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe

    for base in vars(cls).get("__orig_bases__", cls.__bases__):
        origin = typing.get_origin(base) or base
        if origin in (IterDataPipe, MapDataPipe):
            return origin, (*typing.get_args(base), Any)[0]
        if issubclass(origin, (IterDataPipe, MapDataPipe)):
            root, items = _base_of(origin)
            arguments = dict(zip(origin.__parameters__, typing.get_args(base), strict=False))
            if isinstance(items, typing.TypeVar):
                return root, arguments.get(items, Any)
            return root, Any if getattr(items, "__parameters__", ()) else items
    raise TypeError(f"{cls} is not a pipe class")


def _expression(items: Any) -> str:
    if items is Ellipsis:
        return "..."
    arguments = ", ".join(map(_expression, typing.get_args(items)))
    name: str = getattr(items, "__name__", "Any")
    return f"{name}[{arguments}]" if arguments else name


class _Renamed(ast.NodeTransformer):
    def __init__(self, rename: Callable[[str], str]) -> None:
        self.rename = rename

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.parse(self.rename(node.id), mode="eval").body


def _home(value: Any, name: str) -> bool:
    module = getattr(value, "__module__", "builtins")
    return module != "builtins" and getattr(importlib.import_module(module), name, None) is value


def _imported_from(module: types.ModuleType, name: str) -> str:
    """Returns the module that `module` imports `name` from, for type checkers only."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            assert node.module is not None
            return node.module
    raise NameError(f"{module.__name__} uses {name} in an annotation, but does not import it")


def _shown(default: Any) -> str:
    """Returns the text of a default value; `...` if it is not a plain value."""
    if type(default) is str:
        return '"' + repr(default)[1:-1].replace('"', '\\"') + '"'
    return repr(default) if default is None or type(default) in (bool, int, float) else "..."


def written() -> str:
    importlib.import_module("torchdata.datapipes.iter")  # these imports fill the registries
    importlib.import_module("torchdata.datapipes.map")
    from torchdata.datapipes._pipe.registry import LateForm
    from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe

    def whole(functions: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
        return {name: form.form() if isinstance(form, LateForm) else form for name, form in functions.items()}

    return Stub().text({"IterForms": whole(IterDataPipe.functions), "MapForms": whole(MapDataPipe.functions)})


if __name__ == "__main__":
    text = written()
    if "--print" in sys.argv[1:]:
        print(text, end="")
    else:
        STUB.write_text(text, encoding="utf-8")
