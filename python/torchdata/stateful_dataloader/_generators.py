"""Reads, sets and saves the random generators that determine orders, worker seeds and samples.

`read` and `write` get and set a generator's state as an opaque value, which is fast. `encoded` converts an opaque value
to plain values, which a saved state contains, and `decoded` checks and converts plain values.

The default generators of torch, NumPy and Python are Mersenne Twisters. The state of a Mersenne Twister consists of 624
words of 32 bits and the index of the next word. A torch generator that is set to the words of a NumPy or Python
generator produces the same words as the NumPy or Python generator.
"""

from __future__ import annotations

import base64
import ctypes
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import numpy
import torch
from torch.utils.data import Sampler

GLOBAL = ("torch", "python", "numpy")
#: The largest number that is allowed in a state, unless a smaller limit is given.
MANY = 1 << 53
_OBJECTS: dict[str, Any] = {
    "torch": torch.default_generator, "python": random._inst, "numpy": numpy.random.mtrand._rand
}  # fmt: skip
#: The states of several generators. A dict of generators' states: the keys are names of global generators, or indices
#: of the loader's own generators.
Moment = dict[Any, Any]


def read(which: Any) -> Any:
    """Returns the state of a generator, which is given as the name of a global generator or as an object of torch,
    Python or NumPy."""
    which = _OBJECTS[which] if isinstance(which, str) else which
    if isinstance(which, torch.Generator):
        return which.get_state().numpy().tobytes()  # bytes are pickled faster than a tensor
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
    for sampler in seen:
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
    return ctypes.string_at(bits.ctypes.state_address, 625 * 4)


def comparable(state: Any) -> Any:
    if isinstance(state, (bytes, tuple)):
        return state
    words = words_of(state)
    return repr(state) if words is None else (words[0].tobytes(), words[1])


# -- saved form --------------------------------------------------------------------------------------------


def words_of(state: Any) -> Words | None:
    """Returns the words of a state, or None if the generator is not a Mersenne Twister."""
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


def encoded(state: Any) -> Any:
    if (words := words_of(state)) is None:
        return {"bits": _plain(state)}
    # Generators compute normally distributed numbers in pairs. If the second number of a pair was computed but not
    # returned yet, `kept` contains this number.
    seed, kept = None, list[Any]()
    if isinstance(state, bytes):
        seed, _, rest = torch_parts(state)
        kept = [_text(rest)] if any(rest) else []
    elif isinstance(state, tuple):
        kept = [] if state[2] is None else [float(state[2])]
    elif state.get("has_gauss"):
        kept = [float(state["gauss"])]
    return [seed, _text(words[0].tobytes()), words[1], *kept]


def decoded(which: Any, plain: Any) -> Any:
    """Returns the state of a random generator, from the plain values or the torch tensor in a saved state."""
    try:
        return _decoded(which, plain)
    except (TypeError, ValueError, KeyError, IndexError, OverflowError, AttributeError, RuntimeError) as error:
        raise ValueError(
            f"the saved state of a random generator is damaged, or belongs to another kind of generator: {error}"
        ) from error


def _decoded(which: Any, plain: Any) -> Any:
    is_torch = which == "torch" or isinstance(which, torch.Generator)
    if isinstance(plain, torch.Tensor) and is_torch:
        torch.Generator().set_state(plain)
        return plain.numpy().tobytes()
    if isinstance(plain, dict):
        state = _unplain(plain["bits"])
        if isinstance(which, (str, numpy.random.RandomState)):
            return state
        type(which.bit_generator)().state = state
        return state
    seed, text, position, *kept = plain
    words = numpy.frombuffer(base64.b64decode(text, validate=True), dtype="<u4"), whole(position, "position", 1, 624)
    if len(words[0]) != 624:
        raise ValueError(f"it has {len(words[0])} words instead of 624")
    if is_torch:
        rest = base64.b64decode(kept[0]) if kept else bytes(_SIZE - _REST)
        state = torch_whole(whole(seed, "seed", 0, (1 << 64) - 1), words, rest)
        write(torch.Generator(), state)
        return state
    if seed is not None:
        raise ValueError("it contains a seed, but this kind of generator has none")
    gauss = float(kept[0]) if kept else None
    if which == "python" or isinstance(which, random.Random):
        return 3, (*words[0].tolist(), words[1]), gauss
    pair = {"key": words[0].astype("u4"), "pos": words[1]}
    state = {"bit_generator": "MT19937", "state": pair}
    if not isinstance(which, numpy.random.Generator):
        state |= {"has_gauss": int(gauss is not None), "gauss": gauss or 0.0}
    return state


def whole(value: Any, name: str, least: int = 0, most: int = MANY) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"the state is damaged: {name!r} is {value!r}, but must be an integer from {least} to {most}")
    return value


def flag(saved: dict[str, Any], name: str, default: Any = None) -> bool:
    value = saved.get(name, default)
    if type(value) is not bool:
        raise ValueError(f"the state is damaged: {name!r} is {value!r}, but must be True or False")
    return value


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


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


def set_all(moment: Moment) -> None:
    for name, state in moment.items():
        write(name, state)


# -- positions in a stream ---------------------------------------------------------------------------------

#: Two positions in a stream are considered equal if the next `_NEEDLE` words are equal.
_NEEDLE = 8
_FIRST, _MOST = 1 << 10, 1 << 20
#: Byte offsets of the fields in the state of torch's CPU generator. `_REST` is the offset of stored normally
#: distributed numbers, and `_SIZE` is the size of the state.
_LEFT, _SEEDED, _NEXT, _WORDS, _REST, _SIZE = 8, 12, 16, 24, 5016, 5056

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


def _drawn(stream: torch.Generator, count: int) -> Any:
    return torch.empty(count, dtype=torch.int32).random_(generator=stream).numpy()


def moved_on(words: Words, count: int) -> Words:
    stream = stream_of(words)
    while count > 0:
        _drawn(stream, min(count, _MOST))
        count -= _MOST
    return torch_parts(read(stream))[1]


def _search(stream: torch.Generator, needle: Any) -> Iterator[tuple[int, int | None]]:
    """Searches a generator's words for the sequence `needle`. Yields the number of searched words, and the position of
    `needle`, or None."""
    searched, size, tail = 0, _FIRST, _drawn(stream, _NEEDLE - 1)
    while True:
        heap = numpy.concatenate([tail, _drawn(stream, size)])
        starts = numpy.flatnonzero(heap[:size] == needle[0]).tolist()
        found = next((start for start in starts if (heap[start : start + _NEEDLE] == needle).all()), None)
        yield searched + size, None if found is None else searched + found
        searched, size, tail = searched + size, min(2 * size, _MOST), heap[size:]


def _along(stream: torch.Generator, needle: Any, most: int, seeded: torch.Generator | None = None) -> int | None:
    again = repeat((0, None)) if seeded is None else _search(seeded, needle)
    for (searched, found), (_, found_again) in zip(_search(stream, needle), again, strict=False):
        if found is not None:
            return found if found <= most else None
        if found_again is not None or searched > most:
            return None
    return None


def distance(origin: Words, target: Words, seeded: torch.Generator | None, most: int) -> int | None:
    """Returns how many words lie between two positions; None if `target` precedes `origin` or is too far away.

    Args:
        seeded: a new generator with the seed of `origin`, if the seed is known. Returns None if `target` is nearer to
            `seeded` than to `origin`, because in this case, the program has reseeded the generator.
    """
    if origin[1] == target[1] and numpy.array_equal(origin[0], target[0]):
        return 0
    return _along(stream_of(origin), _drawn(stream_of(target), _NEEDLE), most, seeded)
