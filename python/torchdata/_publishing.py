"""Sets the `__module__` of public classes and functions to the public package that exports them.

A pickle, such as a saved state, refers to a class by its module, so the reference must not break when source files are
moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any

from torchdata._importing import call_when_imported, import_whole


def publish(namespace: dict[str, Any], *helpers: Any) -> None:
    """Makes a package the public module of the names that it imports from its own modules.

    Args:
        helpers: further classes and functions that pickles refer to, and that the package imports from elsewhere.
    """
    package: str = namespace["__name__"]
    for helper in helpers:
        if namespace.get(helper.__name__) is not helper:
            raise ValueError(f"{package} does not import {helper.__name__}, so no pickle can name it there")
    below = f"{package}."
    for name, value in namespace.items():
        if not isinstance(value, type | FunctionType) or value.__name__ != name:
            continue
        if value.__module__.startswith(below) or value in helpers:
            value.__module__ = package


def publish_late(
    namespace: dict[str, Any], modules: Mapping[str, Iterable[str]], then: Callable[[dict[str, Any]], object]
) -> None:
    """Makes a package import modules when one of their names is used, and publishes these names.

    Args:
        modules: the names for each module; a module inside the package is given without the package's name.
        then: a function that is called after each import, with a dict of the module's classes and functions.
    """
    package: str = namespace["__name__"]
    homes = import_late(namespace, modules)

    def adopt(module: Any) -> None:
        found = {name: getattr(module, name) for name, home in homes.items() if home == module.__name__}
        for value in found.values():
            if isinstance(value, type | FunctionType):
                value.__module__ = package
        namespace.update(found)
        then(found)

    call_when_imported(package, dict.fromkeys(homes.values(), adopt))


def import_late(namespace: dict[str, Any], modules: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Makes a package import modules only when one of their names, or a public module inside the package, is used.

    Returns a dict from each name to the module that defines it. In `modules`, a module inside the package is given
    without the package's name.
    """
    package: str = namespace["__name__"]
    homes = {
        name: module if module.startswith("torchdata.") else f"{package}.{module}"
        for module, names in modules.items()
        for name in names
    }

    def __getattr__(name: str) -> Any:
        if name in homes:
            value = namespace[name] = getattr(import_whole(homes[name]), name)
            return value
        if not name.startswith("_"):
            try:
                return import_whole(f"{package}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{package}.{name}":
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    namespace["__getattr__"] = __getattr__
    namespace["__dir__"] = lambda: sorted({*namespace, *homes})
    return homes
