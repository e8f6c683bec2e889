"""Attributes of a loader that belong to one of its parts: each is declared in a line."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

__all__ = ["part"]


def part(path: str, meaning: str = "") -> Any:
    """A property of which the value lies elsewhere.

    Args:
        path: the way from the loader to it, such as `_pipeline.service`.
        meaning: its docstring.
    """
    *owner, name = path.split(".")
    owner_of = attrgetter(".".join(owner))
    return property(attrgetter(path), lambda loader, value: setattr(owner_of(loader), name, value), doc=meaning or None)
