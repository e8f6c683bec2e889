"""The base of shuffle specifications."""

from __future__ import annotations

import abc

__all__ = ["ShuffleSpec"]


class ShuffleSpec(abc.ABC):  # noqa: B024 - a marker that users subclass
    """Base class of descriptions of how data is to be shuffled."""
