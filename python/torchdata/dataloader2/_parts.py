"""Attributes of a loader that belong to one of its parts, each declared in one line."""

from __future__ import annotations

from operator import attrgetter
from typing import Any


def part(path: str, meaning: str = "") -> Any:
    """Returns a property whose value is stored in a part of the loader.

    Args:
        path: the attribute path from the loader, such as `_pipeline.service`.
        meaning: the docstring of the property.
    """
    *owner, name = path.split(".")
    owner_of = attrgetter(".".join(owner))
    return property(attrgetter(path), lambda loader, value: setattr(owner_of(loader), name, value), doc=meaning or None)
