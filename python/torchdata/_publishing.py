"""Public names for pickles: classes and functions say that they live in the public package that hands them on.

Role: a pickle, and so a saved state, names a class by its module. Named by its room, it would break whenever a file is
moved; named by the package that users import it from, it holds. Called once by each public package, at its end.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

__all__ = ["publish"]


def publish(namespace: dict[str, Any], *helpers: Any) -> None:
    """Makes a package the home of what it imports from the modules below it.

    Args:
        namespace: the package's `globals()`.
        helpers: further classes and functions that it imports, from elsewhere; pickles hold them, too.

    Raises:
        ValueError: the package has no such helper under its own name: it could not be found there.
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
