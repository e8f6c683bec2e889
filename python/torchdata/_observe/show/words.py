"""Describes a reading service by its class and the arguments that differ from their defaults."""

from __future__ import annotations

from typing import Any

from torchdata.datapipes._pipe.chain import parameters


def described(service: Any) -> str:
    if service is None:
        return "this process"
    parts = getattr(service, "reading_services", None)
    if parts is not None:
        values = ", ".join(map(described, parts))
    else:
        values = ", ".join(f"{name}={value}" for name, value in parameters(service))
    return f"{type(service).__name__}({values})"
