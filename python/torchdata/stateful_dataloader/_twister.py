"""Finds positions in the stream of a Mersenne Twister, the default generator of torch, NumPy and Python.

Role: pure functions in the main process. All three libraries store 624 words and an index into them, and differ in how
a seed determines the first words. A position in a known stream is stored as a count, a few bytes instead of 2.5 KB. A
torch generator can advance along any of the streams: it is set to the words of the other generator, and produces 32
bits per word.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy
import torch

__all__ = [
    "LIMIT",
    "Words",
    "count_from",
    "distance",
    "moved_on",
    "set_torch_state",
    "stream_of",
    "torch_parts",
    "torch_state",
    "torch_whole",
]

#: Maximum distance from the seed, in words. A more distant position is stored as 624 words.
LIMIT = 1 << 24
#: How many words to compare. This many bits make an accidental match practically impossible.
_NEEDLE = 8
#: The initial and the maximum number of words to generate at once.
_FIRST, _MOST = 1 << 10, 1 << 20
#: Byte offsets in the state of torch's CPU generator: seed, words left, words, and stored normal numbers.
_LEFT, _SEEDED, _NEXT, _WORDS, _REST, _SIZE = 8, 12, 16, 24, 5016, 5056

#: 624 words, and the index of the next one.
Words = tuple[Any, int]


def torch_state(generator: torch.Generator) -> bytes:
    """Returns the bytes of a generator's state tensor, which pickle faster than the tensor."""
    return generator.get_state().numpy().tobytes()


def set_torch_state(generator: torch.Generator, state: bytes) -> None:
    """Sets a generator to a result of `torch_state`."""
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def torch_parts(state: bytes) -> tuple[int, Words, bytes]:
    """Splits a state into the seed, the words and the remaining bytes."""
    words = numpy.frombuffer(state, dtype="<u8", count=624, offset=_WORDS).astype("<u4")
    left = int.from_bytes(state[_LEFT:_SEEDED], "little")
    return int.from_bytes(state[:_LEFT], "little"), (words, 625 - left), state[_REST:]


def torch_whole(seed: int, words: Words, rest: bytes) -> bytes:
    """Joins the parts that `torch_parts` returned."""
    raw = bytearray(_SIZE)
    raw[:_LEFT] = seed.to_bytes(8, "little")
    raw[_LEFT:_SEEDED] = (625 - words[1]).to_bytes(4, "little")
    raw[_SEEDED:_NEXT] = (1).to_bytes(4, "little")
    raw[_NEXT:_WORDS] = (words[1] % 624).to_bytes(8, "little")
    raw[_WORDS:_REST] = words[0].astype("<u8").tobytes()
    raw[_REST:] = rest
    return bytes(raw)


def stream_of(words: Words) -> torch.Generator:
    """Returns a generator that produces these words next."""
    stream = torch.Generator()
    set_torch_state(stream, torch_whole(0, words, bytes(_SIZE - _REST)))
    return stream


def _clone(stream: torch.Generator) -> torch.Generator:
    clone = torch.Generator()
    clone.set_state(stream.get_state())
    return clone


def _drawn(stream: torch.Generator, count: int) -> Any:
    return torch.empty(count, dtype=torch.int32).random_(generator=stream).numpy()


def moved_on(words: Words, count: int) -> Words:
    """Returns the words after `count` more words were produced."""
    stream = stream_of(words)
    while count > 0:
        _drawn(stream, min(count, _MOST))
        count -= _MOST
    return torch_parts(torch_state(stream))[1]


class _Search:
    """Searches for a position along a stream, one section at a time."""

    def __init__(self, stream: torch.Generator, needle: Any) -> None:
        self._stream, self._needle = _clone(stream), needle
        self._tail = _drawn(self._stream, _NEEDLE - 1)
        self.passed, self._size = 0, _FIRST

    def step(self, most: int) -> int | None:
        """Returns the distance if the position is in the next section, which has at most `most` words."""
        size = min(self._size, most)
        heap = numpy.concatenate([self._tail, _drawn(self._stream, size)])
        for start in numpy.flatnonzero(heap[:size] == self._needle[0]).tolist():
            if (heap[start : start + _NEEDLE] == self._needle).all():
                return self.passed + int(start)
        self._tail = heap[size:]
        self.passed += size
        self._size = min(2 * self._size, _MOST)
        return None


def _along(stream: torch.Generator, needle: Any, most: int) -> int | None:
    search = _Search(stream, needle)
    while search.passed <= most:
        if (found := search.step(most + 1 - search.passed)) is not None:
            return found
    return None


def distance(origin: Words, target: Words, seeded: torch.Generator | None, most: int) -> int | None:
    """Returns how many words are between two positions; None if the second precedes the first or is too distant.

    Args:
        origin: the first position.
        target: the second position.
        seeded: a generator at the beginning of the stream, if known. A target that is found from there first was
            reached by seeding, not by drawing.
        most: the maximum number of words to search.
    """
    if origin[1] == target[1] and numpy.array_equal(origin[0], target[0]):
        return 0
    needle = _drawn(stream_of(target), _NEEDLE)
    onward = _Search(stream_of(origin), needle)
    anew = None if seeded is None else _Search(seeded, needle)
    while onward.passed <= most:
        if (found := onward.step(_MOST)) is not None:
            return found
        if anew is not None and anew.step(_MOST) is not None:
            return None
    return None


class _Known:
    """Known positions in one stream, where a search starts. They affect only its speed."""

    def __init__(self, seeded: torch.Generator) -> None:
        self.seeded = seeded
        self.count, self.stream = 0, _clone(seeded)
        self.target: tuple[bytes, int] | None = None
        #: A position beyond `LIMIT`. Positions shortly after it are beyond the limit as well.
        self.beyond: torch.Generator | None = None


_known: OrderedDict[Any, _Known] = OrderedDict()


def count_from(key: Any, seeded: Any, target: Words) -> int | None:
    """Returns how many words were drawn since a generator was seeded; None beyond `LIMIT` or for another stream.

    Args:
        key: an identifier of the stream.
        seeded: returns a generator at the beginning of the stream.
        target: the position.
    """
    known = _known.get(key)
    if known is None:
        known = _known[key] = _Known(seeded())
        if len(_known) > 64:
            _known.popitem(last=False)
    _known.move_to_end(key)
    if known.target is not None and known.target[1] == target[1] and known.target[0] == target[0].tobytes():
        return known.count
    position = stream_of(target)
    needle = _drawn(_clone(position), _NEEDLE)
    if known.beyond is not None and _along(known.beyond, needle, _MOST) is not None:
        known.beyond = position
        return None
    near = _along(known.stream, needle, min(_MOST, LIMIT - known.count))
    count = _along(known.seeded, needle, LIMIT) if near is None else known.count + near
    if count is None:
        known.beyond = position
    else:
        known.count, known.stream, known.target = count, position, (target[0].tobytes(), target[1])
    return count
