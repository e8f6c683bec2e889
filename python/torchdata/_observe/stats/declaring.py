"""How a field of statistics is declared, once: its meaning, what exporters measure of it, how it is summed.

Role: knows no statistics. The model declares its fields by it; docstrings, sums and measurements follow from that.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

__all__ = ["Family", "counter", "described", "families_of", "fields_summed", "gauge", "told"]

Kind = Literal["counter", "gauge"]
C = TypeVar("C", bound=type)
_FAMILY, _HELP, _SUM = "family", "help", "sum"


@dataclass(frozen=True)
class Family:
    """Measurements of one name.

    Args:
        name: without the prefix `torchdata_`, and of counters without `_total`. In a declaration "" is the field's.
        kind: whether it only grows.
        help: its meaning.
        labels: what tells its measurements apart, besides the rank.
    """

    name: str
    kind: Kind
    help: str = ""
    labels: tuple[str, ...] = ()


def counter(name: str = "") -> Family:
    """A measurement that only grows."""
    return Family(name, "counter")


def gauge(name: str = "") -> Family:
    """A measurement of now, or of late."""
    return Family(name, "gauge")


def told(meaning: str, family: Family | None = None, *, summed: str = "", **options: Any) -> Any:
    """A field of statistics.

    Args:
        meaning: goes into the docstring of its class, and into what exporters say.
        family: what exporters measure of it; None: nothing.
        summed: over what the field is a sum, or "most" for the largest.
        options: further ones of `dataclasses.field`.
    """
    return field(metadata={_HELP: meaning, _FAMILY: family, _SUM: summed}, **options)


def described(cls: C) -> C:
    """Class decorator: adds the meaning of the fields to the docstring."""
    lines = [f"    {one.name}: {one.metadata[_HELP]}" for one in fields(cls) if _HELP in one.metadata]
    cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__ or ""), "", "Attributes:", *lines])
    return cls


def families_of(cls: type, prefix: str = "", labels: Iterable[str] = ()) -> dict[str, Family]:
    """By field of a class of statistics: what exporters measure of it."""
    found = {}
    for one in fields(cls):
        family: Family | None = one.metadata.get(_FAMILY)
        if family is not None:
            meaning = one.metadata[_HELP][:1].upper() + one.metadata[_HELP][1:] + "."
            name = prefix + (family.name or one.name)
            found[one.name] = Family(name, family.kind, meaning, tuple(labels))
    return found


def fields_summed(cls: type, over: str) -> list[str]:
    """The fields of a class that are declared as sums over that."""
    return [one.name for one in fields(cls) if one.metadata.get(_SUM) == over]
