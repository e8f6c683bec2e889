"""Samples the items that a `sharding_filter` reads, to check that all workers read the items in the same order.

Each worker reads the whole source and yields the items at the positions of its share. If two workers read the source in
different orders, some items are yielded twice and other items never. To detect different orders, each worker records
the positions and checksums of some items, and the loader compares the checksums.

All workers sample items at the same positions, with gaps that grow as the square root of the position. If two workers
read in different orders, each worker samples about 6 * sqrt(n) of n items, so about 36 items are sampled by both
workers at different positions, however large n is.

`SampleDigest` also checks that a resumed run rereads the items of the original run.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from math import isqrt, prod
from typing import Any, NamedTuple
from zlib import crc32

from torchdata._handlers import FailuresSuppressed
from torchdata.datapipes._pipe.datasets import instance_of

_LOWER = (1 << 32) - 1

_MOST_SAMPLES = 1 << 13

#: The samples of the current epoch; None if this process is not one of several workers.
current: Witness | None = None

#: Types of values that need not be converted before a checksum is computed.
_PLAIN = frozenset({str, bytes, int, bool, float, complex, type(None)})

#: A checksum of a larger array or tensor is computed from about this number of its elements, at equal distances.
_ELEMENTS = 1 << 10


class Note(NamedTuple):
    """A message from a worker to the loader, with the items that a `sharding_filter` has sampled since the previous
    message.

    Args:
        number: the number of this `sharding_filter` in the graph.
        source: the name of the pipe that the `sharding_filter` reads, for an error message.
        start: the position in the source where the `sharding_filter` began to read.
        samples: pairs of the position and the checksum of an item.
        length: the number of items of the source, once the `sharding_filter` has read all of them; None before.
        splits_itself: whether the source is expected to divide its items among the workers, so that only one worker
            reads each item.
    """

    number: int
    source: str
    start: int
    samples: list[tuple[int, int]]
    length: int | None
    splits_itself: bool = False


class SampleWatch:
    """The samples of one `sharding_filter`. Sampling stops when two items have the same checksum, because the order of
    equal items cannot be detected."""

    def __init__(self, number: int, source: str, start: int, splits_itself: bool = False) -> None:
        self._number, self._source, self._start, self._splits_itself = number, source, start, splits_itself
        self._samples: list[tuple[int, int]] = []
        self._seen: set[int] = set()
        self._length: int | None = None
        self.is_full = False

    def add(self, position: int, item: Any) -> None:
        """Records an item, unless its checksum could differ between processes."""
        checksum = checksum_of(item)
        if checksum is None:
            return
        if checksum in self._seen or len(self._seen) >= _MOST_SAMPLES:
            self.is_full = True
            return
        self._seen.add(checksum)
        self._samples.append((position, checksum))

    def end(self, length: int) -> None:
        if not self.is_full:
            self._length = length

    def note(self) -> Note | None:
        samples, self._samples = self._samples, []
        length, self._length = self._length, None
        if not samples and length is None:
            return None
        return Note(self._number, self._source, self._start, samples, length, self._splits_itself)


class Witness:
    def __init__(self, filters: Sequence[tuple[Any, str]]) -> None:
        self._filters = filters
        self._watches: dict[int, SampleWatch] = {}

    def watch(self, datapipe: Any, start: int) -> SampleWatch | None:
        """Returns a `SampleWatch` that samples the items of the `sharding_filter` `datapipe`. Returns None if this
        filter already has a `SampleWatch` in the current epoch."""
        for number, (known, source) in enumerate(self._filters):
            if known is datapipe and number not in self._watches:
                self._watches[number] = SampleWatch(number, source, start, datapipe.source_splits_itself)
                return self._watches[number]
        return None

    def notes(self) -> list[Note] | None:
        notes = [note for watch in [*self._watches.values()] if (note := watch.note()) is not None]
        return notes or None


class SampleDigest:
    """A checksum of sampled items. The lower 32 bits of the checksum cover all values in the items. The upper 32 bits
    of the checksum leave out floating-point numbers and arrays, because random augmentation may change them.

    Args:
        next: the position of the next sample.
        checksum: the combined checksum of all samples before the position `next`.
    """

    __slots__ = ("checksum", "next")

    def __init__(self, next: int = 0, checksum: int = 0) -> None:
        self.next, self.checksum = next, checksum

    @classmethod
    def of(cls, saved: Any) -> SampleDigest:
        is_pair = isinstance(saved, (list, tuple)) and [*map(type, saved)] == [int, int]
        if not is_pair or saved[0] < 0 or not 0 <= saved[1] < 1 << 64:
            raise ValueError(f"the state is damaged: the digest of a stream is {saved!r}")
        return cls(*saved)

    def as_tuple(self) -> tuple[int, int]:
        return self.next, self.checksum

    def add(self, item: Any) -> None:
        """Adds an item to the checksum, unless the checksum of the item could differ between processes."""
        checksum = before = self.checksum
        with FailuresSuppressed():  # an error here must not affect the reader of the source
            plain = _plain(item)
            discrete = crc32(marshal.dumps(_discrete(plain), 2), before >> 32)
            checksum = discrete << 32 | crc32(marshal.dumps(plain, 2), before & _LOWER)
        following = sample_after(self.next)
        self.checksum, self.next = checksum, following  # in one step, which Ctrl-C cannot interrupt

    def add_missing(self) -> None:
        """Skips the position of the next sample, because the source ended before this position."""
        self.next = sample_after(self.next)

    def agrees_with(self, other: SampleDigest) -> bool:
        """Returns whether the checksums are equal. Checksums of different numbers of samples cannot be compared, so the
        result for them is True."""
        return self.next != other.next or self.checksum == other.checksum

    @staticmethod
    def differ_in_numbers_alone(one: int, other: int) -> bool:
        """Returns whether the upper 32 bits of two checksums are equal. The upper 32 bits do not depend on floats and
        arrays in the items."""
        return one >> 32 == other >> 32


def checksum_of(item: Any) -> int | None:
    """Returns the checksum of an item; None if two processes could compute different checksums of the item."""
    with FailuresSuppressed():  # an error here must not affect the reader of the source
        return crc32(marshal.dumps(_plain(item), 2))
    return None


def next_sample(position: int) -> int:
    sample = 0
    while sample < position:
        sample = sample_after(sample)
    return sample


def sample_after(sample: int) -> int:
    return sample + max(isqrt(sample) // 3, 1)


def _plain(item: Any) -> Any:
    """Converts an item to plain data with equal bytes in every process."""
    if type(item) in _PLAIN:
        return item
    if type(item) is dict:
        return [[_plain(key), _plain(value)] for key, value in item.items()]
    if isinstance(item, (tuple, list)):
        return [_plain(member) for member in item]
    if instance_of(item, "pathlib", "PurePath"):
        return str(item)
    if is_dataclass(item):
        return [_plain(getattr(item, field.name)) for field in fields(item)]
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(item, torch.Tensor):
        item = item.detach().numpy()
    if numpy is not None and isinstance(item, (numpy.ndarray, numpy.generic)) and item.dtype.kind in "biufcSUmM":
        flat = item.reshape(-1)
        return (item.dtype.str, item.shape, flat[:: len(flat) // _ELEMENTS + 1].tobytes())
    raise TypeError(type(item))


def _discrete(plain: Any) -> Any:
    if type(plain) is list:
        return [_discrete(member) for member in plain]
    if type(plain) is tuple:  # an array: its type, shape and elements
        kind, shape, _ = plain
        return None if kind[1] in "fc" or prod(shape) != 1 else plain
    return None if type(plain) in (float, complex) else plain
