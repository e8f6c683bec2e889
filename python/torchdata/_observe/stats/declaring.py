"""Declares each field of statistics in one place: its meaning, its exported measurement, and how the field is summed.

Role: independent of particular statistics. The module `model` uses this module to declare its fields. Docstrings, sums
and measurements are derived from the declarations.
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
    """A metric family: measurements with the same name.

    Args:
        name: the name without the prefix `torchdata_`; names of counters are also without the suffix `_total`. If
            `name` is empty in a declaration, the name of the field is used.
        kind: "counter" for values that only increase, or "gauge".
        help: the meaning of the measurement.
        labels: the labels, in addition to the rank, that distinguish the measurements of the family.
    """

    name: str
    kind: Kind
    help: str = ""
    labels: tuple[str, ...] = ()


def counter(name: str = "") -> Family:
    """Declares a measurement that only increases."""
    return Family(name, "counter")


def gauge(name: str = "") -> Family:
    """Declares a measurement of the current or recent value."""
    return Family(name, "gauge")


def told(meaning: str, family: Family | None = None, *, summed: str = "", **options: Any) -> Any:
    """Declares a field of statistics.

    Args:
        meaning: the text for the class docstring and for exporters.
        family: the metric family as which the field is exported; None if the field is not exported.
        summed: "workers" or "processes" for a sum over all workers or processes, "most" for the maximum.
    """
    return field(metadata={_HELP: meaning, _FAMILY: family, _SUM: summed}, **options)


def described(cls: C) -> C:
    """Class decorator: adds the meaning of the fields to the docstring."""
    lines = [f"    {one.name}: {one.metadata[_HELP]}" for one in fields(cls) if _HELP in one.metadata]
    cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__ or ""), "", "Attributes:", *lines])
    return cls


def families_of(cls: type, prefix: str = "", labels: Iterable[str] = ()) -> dict[str, Family]:
    """Returns the exported measurement for each field of a class of statistics."""
    found = {}
    for one in fields(cls):
        family: Family | None = one.metadata.get(_FAMILY)
        if family is not None:
            meaning = one.metadata[_HELP][:1].upper() + one.metadata[_HELP][1:] + "."
            name = prefix + (family.name or one.name)
            found[one.name] = Family(name, family.kind, meaning, tuple(labels))
    return found


def fields_summed(cls: type, over: str) -> list[str]:
    return [one.name for one in fields(cls) if one.metadata.get(_SUM) == over]
