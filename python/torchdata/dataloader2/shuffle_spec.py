"""The base of shuffle specifications."""

from __future__ import annotations

import abc

__all__ = ["ShuffleSpec"]


class ShuffleSpec(abc.ABC):  # noqa: B024 - a marker that users subclass
    """The base class for objects that describe a shuffle.

    `ShuffleSpec` exists for code that was written for torchdata 0.9.

    Example:
        >>> from torchdata.dataloader2.shuffle_spec import ShuffleSpec
        >>> class Blockwise(ShuffleSpec):
        ...     block = 100
        >>> isinstance(Blockwise(), ShuffleSpec)
        True
    """
