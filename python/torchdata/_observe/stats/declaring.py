"""Declares the fields of statistics: their meaning, their exported measurements, and how they are summed."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

Kind = Literal["counter", "gauge"]
C = TypeVar("C", bound=type)
_FAMILY, _HELP, _SUM = "family", "help", "sum"


@dataclass(frozen=True)
class Family:
    """A metric family: measurements with the same name.

    Args:
        name: the name without the prefix `torchdata_` and the suffix `_total`; in a declaration, an empty name means
            the field's name.
        labels: the names of the labels that distinguish the measurements of the family, without the label `rank`.
    """

    name: str
    kind: Kind
    help: str = ""
    labels: tuple[str, ...] = ()


def counter(name: str = "") -> Family:
    return Family(name, "counter")


def gauge(name: str = "") -> Family:
    return Family(name, "gauge")


def stat(meaning: str, family: Family | None = None, *, summed: str = "", **options: Any) -> Any:
    """Declares a field of statistics. `summed` determines how the total of the field is computed: "workers" is the sum
    over all workers, "processes" the sum over all processes, and "most" the maximum."""
    return field(metadata={_HELP: meaning, _FAMILY: family, _SUM: summed}, **options)


def described(cls: C) -> C:
    lines = [f"    {one.name}: {one.metadata[_HELP]}" for one in fields(cls) if _HELP in one.metadata]
    cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__ or ""), "", "Attributes:", *lines])
    return cls


def families_of(cls: type, prefix: str = "", labels: Iterable[str] = ()) -> dict[str, Family]:
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
