"""The pipe that expands the names of sharded files: ShardExpander."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from torchdata.datapipes._pipe.checks import check_source
from torchdata.datapipes._pipe.unfolding import Unfolding
from torchdata.datapipes.datapipe import IterDataPipe

__all__ = ["ShardExpander"]

#: A range of numbers in a name: `{000..123}`. The pattern is compiled on first use, because compiling would slow down
#: the import.
_RANGE = r"\{([0-9]+)\.\.([0-9]+)\}"


class ShardExpander(Unfolding, IterDataPipe[str]):
    """Expands names such as `imagenet-{000..123}.tar` to the names of all shards.

    `{first..last}` is replaced by each number from the first to the last. If `first` begins with 0 and is as long as
    `last`, all numbers are padded with zeros. If a name contains several ranges, the last range changes fastest. Names
    without a range are yielded unchanged.

    Args:
        source_datapipe: the pipe to read, which yields the names to expand.

    Raises:
        TypeError: while iterating, an item is not a string.
        ValueError: while iterating, the first number of a range is larger than the last, or only one of them has
            leading zeros.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(["train-{08..10}.tar", "test.tar"]).shard_expand())
        ['train-08.tar', 'train-09.tar', 'train-10.tar', 'test.tar']
    """

    def __init__(self, source_datapipe: Iterable[str]) -> None:
        self.source_datapipe = check_source("ShardExpander", source_datapipe, "source_datapipe")

    def __iter__(self) -> Iterator[str]:
        return self._unfold(iter(self.source_datapipe), _expanded)


def _expanded(name: Any) -> Iterator[str]:
    if not isinstance(name, str):
        raise TypeError(f"ShardExpander expects names, but got {name!r} of type {type(name).__name__}")
    return _names(name, name)


def _names(rest: str, name: str) -> Iterator[str]:
    """Expands the ranges in `rest`, the end of `name`. The names are yielded one by one, because a range such as
    `{000000..999999}` may expand to very many names."""
    found = re.search(_RANGE, rest)
    if found is None:
        yield rest
        return
    numbers, digits = _numbers(found[1], found[2], name)
    for number in numbers:
        for ending in _names(rest[found.end() :], name):
            yield f"{rest[: found.start()]}{number:0{digits}d}{ending}"


def _numbers(first: str, last: str, name: str) -> tuple[range, int]:
    """Returns the numbers of a range, and the number of digits after padding with zeros."""
    padded = first.startswith("0") and len(first) == len(last)
    if not padded and first.startswith("0") and first != "0":
        raise ValueError(f"ShardExpander: in {name!r}, {first} must not start with 0 unless {last} has as many digits")
    if int(first) >= int(last):
        words = (
            f"bad range in shard spec {name}."
            if len(first) <= len(last)
            else "low bound must be shorter than high bound"
        )
        raise ValueError(
            f"ShardExpander: in {name!r}, the range {{{first}..{last}}} must go from a smaller to a larger number. "
            f"shard_expand: {words}"
        )
    return range(int(first), int(last) + 1), len(first) if padded else 1
