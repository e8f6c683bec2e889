"""Positions in the stream of a Mersenne Twister: what torch, NumPy and Python draw from by default.

Role: pure functions, in main. All three keep 624 words and a place among them, and differ in how a seed becomes the
first words. A position far down a known stream is a count, a few bytes instead of 2.5 KB. torch's own generator walks
along any of the streams: it is put into the other's words, and draws 32 bits a word.
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

#: Words after which a position is no longer looked for from its seed: it then stands as 624 words.
LIMIT = 1 << 24
#: Words that are compared: as many bits as make a chance hit impossible in practice.
_NEEDLE = 8
#: Words that are drawn at once, at first and at most.
_FIRST, _MOST = 1 << 10, 1 << 20
#: Offsets in the bytes of a CPU generator of torch's: seed, words left, words, and what normal numbers are kept.
_LEFT, _SEEDED, _NEXT, _WORDS, _REST, _SIZE = 8, 12, 16, 24, 5016, 5056

#: 624 words, and the place of the next one among them.
Words = tuple[Any, int]


def torch_state(generator: torch.Generator) -> bytes:
    """The state of a generator: the bytes of the tensor that torch makes of it. They take less time to pickle."""
    return generator.get_state().numpy().tobytes()


def set_torch_state(generator: torch.Generator, state: bytes) -> None:
    """Sets a generator to what `torch_state` returned."""
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def torch_parts(state: bytes) -> tuple[int, Words, bytes]:
    """The seed, the words and the rest of a state."""
    words = numpy.frombuffer(state, dtype="<u8", count=624, offset=_WORDS).astype("<u4")
    left = int.from_bytes(state[_LEFT:_SEEDED], "little")
    return int.from_bytes(state[:_LEFT], "little"), (words, 625 - left), state[_REST:]


def torch_whole(seed: int, words: Words, rest: bytes) -> bytes:
    """What `torch_parts` has taken apart."""
    raw = bytearray(_SIZE)
    raw[:_LEFT] = seed.to_bytes(8, "little")
    raw[_LEFT:_SEEDED] = (625 - words[1]).to_bytes(4, "little")
    raw[_SEEDED:_NEXT] = (1).to_bytes(4, "little")
    raw[_NEXT:_WORDS] = (words[1] % 624).to_bytes(8, "little")
    raw[_WORDS:_REST] = words[0].astype("<u8").tobytes()
    raw[_REST:] = rest
    return bytes(raw)


def stream_of(words: Words) -> torch.Generator:
    """A generator that draws these words next."""
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
    """The words behind so many drawn ones."""
    stream = stream_of(words)
    while count > 0:
        _drawn(stream, min(count, _MOST))
        count -= _MOST
    return torch_parts(torch_state(stream))[1]


class _Search:
    """Looks for a position along a stream, a stretch at a time."""

    def __init__(self, stream: torch.Generator, needle: Any) -> None:
        self._stream, self._needle = _clone(stream), needle
        self._tail = _drawn(self._stream, _NEEDLE - 1)
        self.passed, self._size = 0, _FIRST

    def step(self, most: int) -> int | None:
        """The distance if it lies in the next stretch, of so many words at most."""
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
    """How many words lie between two positions; None if the second lies before the first, or too far.

    Args:
        origin: the first.
        target: the second.
        seeded: a generator at the beginning of their stream, if that is known. A target that is found from there first
            was not reached by drawing.
        most: words that are looked through.
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
    """What was found out about one stream: where to look first. What is found does not depend on it."""

    def __init__(self, seeded: torch.Generator) -> None:
        self.seeded = seeded
        self.count, self.stream = 0, _clone(seeded)
        self.target: tuple[bytes, int] | None = None
        #: A position beyond `LIMIT`; those shortly behind it are beyond as well.
        self.beyond: torch.Generator | None = None


_known: OrderedDict[Any, _Known] = OrderedDict()


def count_from(key: Any, seeded: Any, target: Words) -> int | None:
    """How many words were drawn since a generator was seeded; None for more than `LIMIT`, or another stream.

    Args:
        key: names the stream.
        seeded: returns a generator at its beginning.
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
