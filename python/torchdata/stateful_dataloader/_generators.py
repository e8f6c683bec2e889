"""Reads, sets and saves the random generators that determine orders, worker seeds and samples.

Role: `read` and `write` are fast and use opaque values. `encoded` converts an opaque value to small plain values for a
state, and `decoded` validates the plain values and converts them back.

The default generators of torch, NumPy and Python are Mersenne Twisters. Each stores 624 words of 32 bits and the index
of the next word. torch, NumPy and Python derive the first 624 words from a seed in different ways. If the seed is
known, a saved state contains the seed and the number of words drawn since seeding, instead of 2.5 KB. A torch generator
with the words of a NumPy or Python generator produces the same further words.
"""

from __future__ import annotations

import base64
import ctypes
import functools
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch.utils.data import Sampler

__all__ = [
    "GLOBAL", "Moment", "comparable", "decoded", "decoded_of_worker", "distance", "encoded", "encoded_of_worker",
    "found_in", "mark_of", "moved_on", "put_back_afterwards", "read", "set_all", "torch_parts", "with_words",
    "words_of", "write",
]  # fmt: skip

GLOBAL = ("torch", "python", "numpy")
_OBJECTS: dict[str, Any] = {
    "torch": torch.default_generator, "python": random._inst, "numpy": numpy.random.mtrand._rand
}  # fmt: skip
#: The states of several generators at one time. A key is the name of a global generator, or an index in the list of the
#: loader's own generators.
Moment = dict[Any, Any]


def read(which: Any) -> Any:
    """Returns the state of a generator. `which` is the name of a global generator, or a generator of torch, Python or
    NumPy."""
    which = _OBJECTS[which] if isinstance(which, str) else which
    if isinstance(which, torch.Generator):
        return which.get_state().numpy().tobytes()  # pickles faster than the tensor
    if isinstance(which, random.Random):
        return which.getstate()
    if isinstance(which, numpy.random.RandomState):
        return which.get_state(legacy=False)
    return which.bit_generator.state


def write(which: Any, state: Any) -> None:
    which = _OBJECTS[which] if isinstance(which, str) else which
    if isinstance(which, torch.Generator):
        which.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif isinstance(which, random.Random):
        which.setstate(state)
    elif isinstance(which, numpy.random.RandomState):
        which.set_state(state)
    else:
        which.bit_generator.state = state


@contextmanager
def put_back_afterwards(generators: Sequence[Any]) -> Iterator[None]:
    before = [read(one) for one in generators]
    try:
        yield
    finally:
        for one, state in zip(generators, before, strict=True):
            write(one, state)


def found_in(loader: Any) -> list[Any]:
    found = [loader.generator] if _is_generator(loader.generator) else []
    seen: list[Any] = [loader._index_sampler]
    for sampler in seen:  # the list grows during the loop
        for value in getattr(sampler, "__dict__", {}).values():
            if _is_generator(value) and all(value is not one for one in found):
                found.append(value)
            elif isinstance(value, Sampler) and all(value is not one for one in seen):
                seen.append(value)
    return found


def _is_generator(value: Any) -> bool:
    if isinstance(value, torch.Generator):
        return value.device.type == "cpu"
    return isinstance(value, (random.Random, numpy.random.Generator, numpy.random.RandomState)) and not isinstance(
        value, random.SystemRandom
    )


# -- changes -----------------------------------------------------------------------------------------------


def mark_of(name: str) -> Any:
    """Returns a value that changes when this global generator is used."""
    if name != "numpy":
        return read(name)
    bits = _OBJECTS[name]._bit_generator
    if type(bits) is not numpy.random.MT19937:
        return repr(read(name))
    return ctypes.string_at(bits.ctypes.state_address, 625 * 4)  # 624 words, and the index of the next word


def comparable(state: Any) -> Any:
    """Returns a value that is equal for equal generator states."""
    if isinstance(state, (bytes, tuple)):
        return state
    words = words_of(state)
    return repr(state) if words is None else (words[0].tobytes(), words[1])


# -- saved form --------------------------------------------------------------------------------------------


def words_of(state: Any) -> Words | None:
    """Returns the words of a state; None if the generator is not a Mersenne Twister."""
    if isinstance(state, bytes):
        return torch_parts(state)[1]
    if isinstance(state, tuple):
        return numpy.array(state[1][:624], dtype="<u4"), int(state[1][624])
    if state.get("bit_generator") == "MT19937":
        return state["state"]["key"].astype("<u4"), int(state["state"]["pos"])
    return None


def with_words(state: Any, words: Words) -> Any:
    if isinstance(state, bytes):
        seed, _, rest = torch_parts(state)
        return torch_whole(seed, words, rest)
    if isinstance(state, tuple):
        return state[0], (*words[0].tolist(), words[1]), state[2]
    return {**state, "state": {"key": words[0], "pos": words[1]}}


def encoded(state: Any, seeded: Any = None) -> Any:
    """Converts a generator's state to plain values: if possible, only the seed and the number of drawn words.

    Args:
        seeded: for NumPy and Python, an earlier state of the generator, from which drawn words are counted.
    """
    origin: Any = None
    seed, kept = None, list[Any]()  # normal numbers are generated in pairs, and the generator stores the second number
    words: Words | None
    if isinstance(state, bytes):
        origin, words, rest = torch_parts(state)
        seed, kept = origin, [_text(rest)] if any(rest) else []
    elif (words := words_of(state)) is None:
        return {"bits": _plain(state)}
    elif isinstance(state, tuple):
        kept = [] if state[2] is None else [float(state[2])]
    elif state.get("has_gauss"):
        kept = [float(state["gauss"])]
    if seeded is not None and (first := words_of(seeded)) is not None and seed is None:
        origin = first[0].tobytes(), first[1]
    count = None if origin is None else count_from(origin, words)
    return [seed, *(_packed(words) if count is None else [count]), *kept]


def decoded(which: Any, plain: Any, seeded: Any = None) -> Any:
    """Converts plain values, or a state tensor of torch, to the form that `write` accepts."""
    try:
        return _decoded(which, plain, seeded)
    except (TypeError, ValueError, KeyError, IndexError, OverflowError, AttributeError, RuntimeError) as error:
        raise ValueError(
            f"the saved state of a random generator is damaged, or of one of another kind: {error}"
        ) from error


def _decoded(which: Any, plain: Any, seeded: Any) -> Any:
    is_torch = which == "torch" or isinstance(which, torch.Generator)
    if isinstance(plain, torch.Tensor) and is_torch:  # as torchdata 0.11 saves it
        torch.Generator().set_state(plain)
        return plain.numpy().tobytes()
    if isinstance(plain, dict):
        state = _unplain(plain["bits"])
        if isinstance(which, (str, numpy.random.RandomState)):
            return state
        type(which.bit_generator)().state = state
        return state
    first, *others = plain
    beginning: Words
    if is_torch:
        generator = torch.Generator().manual_seed(_whole(first, (1 << 64) - 1))
        beginning = torch_parts(read(generator))[1]
    elif first is not None:
        raise ValueError("a seed stands where none belongs")
    else:
        beginning = (numpy.zeros(624, dtype="<u4"), 624) if seeded is None else words_of(seeded) or (seeded, 0)
    if isinstance(others[0], str):
        words, kept = _unpacked(others[0], others[1]), others[2:]
    else:
        words, kept = moved_on(beginning, _whole(others[0], LIMIT)), others[1:]
    if is_torch:
        rest = base64.b64decode(kept[0]) if kept else bytes(40)
        state = torch_whole(first, words, rest)
        write(torch.Generator(), state)
        return state
    gauss = float(kept[0]) if kept else None
    if which == "python" or isinstance(which, random.Random):
        return 3, (*words[0].tolist(), words[1]), gauss
    pair = {"key": words[0].astype("u4"), "pos": words[1]}
    state = {"bit_generator": "MT19937", "state": pair}
    if not isinstance(which, numpy.random.Generator):
        state |= {"has_gauss": int(gauss is not None), "gauss": gauss or 0.0}
    return state


def _whole(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r} is not a whole number from 0 to {most}")
    return value


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _packed(words: Words) -> list[Any]:
    return [_text(words[0].tobytes()), words[1]]


def _unpacked(text: Any, place: Any) -> Words:
    words = numpy.frombuffer(base64.b64decode(text, validate=True), dtype="<u4")
    if len(words) != 624 or _whole(place, 624) == 0:
        raise ValueError("it has not 624 words and a place among them")
    return words, place


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, numpy.ndarray):
        return [str(value.dtype), value.tolist()]
    return value.item() if isinstance(value, numpy.generic) else value


def _unplain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unplain(one) for key, one in value.items()}
    return numpy.array(value[1], dtype=value[0]) if isinstance(value, list) else value


@functools.lru_cache(maxsize=256)
def seeded_in_worker(base_seed: int, worker: int) -> Any:
    from torch.utils.data._utils.worker import _generate_state

    key: Any = _generate_state(base_seed, worker)  # type: ignore[no-untyped-call]
    numpys = numpy.random.RandomState(key)
    return {"python": random.Random(base_seed + worker).getstate(), "numpy": numpys.get_state(legacy=False)}


def encoded_of_worker(moment: Moment, base_seed: int, worker: int) -> dict[str, Any]:
    seeded = seeded_in_worker(base_seed, worker)
    return {name: encoded(state, seeded.get(name)) for name, state in moment.items()}


def decoded_of_worker(plain: dict[str, Any], base_seed: int, worker: int) -> Moment:
    seeded = seeded_in_worker(base_seed, worker)
    return {name: decoded(name, one, seeded.get(name)) for name, one in plain.items()}


def set_all(moment: Moment) -> None:
    for name, state in moment.items():
        write(name, state)


# -- positions in a stream ---------------------------------------------------------------------------------

#: If more words than this were drawn since seeding, all 624 words are saved instead of the number of drawn words.
LIMIT = 1 << 24
#: Two positions in a stream count as equal if this many consecutive words are equal.
_NEEDLE = 8
#: The number of words to generate in the first step of a search, and the maximum number per step.
_FIRST, _MOST = 1 << 10, 1 << 20
#: Byte offsets in the state of torch's CPU generator: seed, words left, words, and stored normal numbers.
_LEFT, _SEEDED, _NEXT, _WORDS, _REST, _SIZE = 8, 12, 16, 24, 5016, 5056

#: 624 words, and the index of the next word.
Words = tuple[Any, int]


def torch_parts(state: bytes) -> tuple[int, Words, bytes]:
    words = numpy.frombuffer(state, dtype="<u8", count=624, offset=_WORDS).astype("<u4")
    left = int.from_bytes(state[_LEFT:_SEEDED], "little")
    return int.from_bytes(state[:_LEFT], "little"), (words, 625 - left), state[_REST:]


def torch_whole(seed: int, words: Words, rest: bytes) -> bytes:
    raw = bytearray(_SIZE)
    raw[:_LEFT] = seed.to_bytes(8, "little")
    raw[_LEFT:_SEEDED] = (625 - words[1]).to_bytes(4, "little")
    raw[_SEEDED:_NEXT] = (1).to_bytes(4, "little")
    raw[_NEXT:_WORDS] = (words[1] % 624).to_bytes(8, "little")
    raw[_WORDS:_REST] = words[0].astype("<u8").tobytes()
    raw[_REST:] = rest
    return bytes(raw)


def stream_of(words: Words) -> torch.Generator:
    stream = torch.Generator()
    write(stream, torch_whole(0, words, bytes(_SIZE - _REST)))
    return stream


def _clone(stream: torch.Generator) -> torch.Generator:
    clone = torch.Generator()
    clone.set_state(stream.get_state())
    return clone


def _drawn(stream: torch.Generator, count: int) -> Any:
    return torch.empty(count, dtype=torch.int32).random_(generator=stream).numpy()


def moved_on(words: Words, count: int) -> Words:
    stream = stream_of(words)
    while count > 0:
        _drawn(stream, min(count, _MOST))
        count -= _MOST
    return torch_parts(read(stream))[1]


class _Search:
    def __init__(self, stream: torch.Generator, needle: Any) -> None:
        self._stream, self._needle = _clone(stream), needle
        self._tail = _drawn(self._stream, _NEEDLE - 1)
        self.passed, self._size = 0, _FIRST

    def step(self, most: int) -> int | None:
        """Searches up to `most` words for the needle, a sequence of words. Returns the number of words before the
        needle, or None."""
        size = min(self._size, most)
        heap = numpy.concatenate([self._tail, _drawn(self._stream, size)])
        for start in numpy.flatnonzero(heap[:size] == self._needle[0]).tolist():
            if (heap[start : start + _NEEDLE] == self._needle).all():
                return self.passed + int(start)
        self._tail = heap[size:]
        self.passed += size
        self._size = min(2 * self._size, _MOST)
        return None


def _along(stream: torch.Generator, needle: Any, most: int, seeded: torch.Generator | None = None) -> int | None:
    search = _Search(stream, needle)
    anew = None if seeded is None else _Search(seeded, needle)
    while search.passed <= most:
        if (found := search.step(most + 1 - search.passed)) is not None:
            return found
        if anew is not None and anew.step(_MOST) is not None:
            return None
    return None


def distance(origin: Words, target: Words, seeded: torch.Generator | None, most: int) -> int | None:
    """Returns how many words lie between two positions; None if `target` precedes `origin` or is too far away.

    Args:
        seeded: a new generator with the seed of `origin`, if known. If `target` is closer to the new generator than to
            `origin`, the generator was seeded again, and the result is None.
    """
    if origin[1] == target[1] and numpy.array_equal(origin[0], target[0]):
        return 0
    return _along(stream_of(origin), _drawn(stream_of(target), _NEEDLE), most, seeded)


class _Known:
    """Caches positions in the sequence of words that one seed produces, to speed up searches.

    Args:
        origin: the beginning of the sequence: a seed, or a generator's words (as bytes) and the index of the next word.
    """

    def __init__(self, origin: int | tuple[bytes, int]) -> None:
        if isinstance(origin, int):
            self.seeded = torch.Generator().manual_seed(origin)
        else:
            self.seeded = stream_of((numpy.frombuffer(origin[0], dtype="<u4"), origin[1]))
        self.count, self.stream = 0, _clone(self.seeded)
        self.target: tuple[bytes, int] | None = None
        #: The last target that was more than `LIMIT` words after the origin. Targets shortly after `beyond` need no
        #: search.
        self.beyond: torch.Generator | None = None


_known = functools.lru_cache(maxsize=64)(_Known)


def count_from(origin: int | tuple[bytes, int], target: Words) -> int | None:
    """Returns the number of words from `origin` to `target`; None if there are more than `LIMIT`."""
    known = _known(origin)
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
