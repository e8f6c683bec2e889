"""Defines the layout of graph states, and validates states.

Role: pure functions over plain data. A state may be damaged or malicious. The code that counts trusts its numbers, so
each number is checked before it is used. Each pipe checks its own part, which is stored under `state`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import NoneType
from typing import Any

from torchdata.datapipes._pipe.state.declared import MOST_ITEMS
from torchdata.datapipes._pipe.state.plain import refuse_pickled

__all__ = [
    "check_checksums",
    "check_entries",
    "check_generators",
    "checksums_of",
    "explaining_damage",
    "refuse_pickled_entries",
    "refuse_pickled_generators",
]

#: Maximum number of parts of a state that are included in a checksum.
_PARTS = 1 << 20

#: Types whose values are included in a checksum together with their container.
_FLAT = frozenset({NoneType, bool, int, float, str})

#: The number of words in the state of Python's generator.
_WORDS = 625


def check_entries(entries: Any) -> None:
    """Raises ValueError, which names the pipe and the field, unless the value contains valid entries of a graph."""
    if not isinstance(entries, list):
        raise ValueError(f"its pipes are of type {type(entries).__name__}")
    for number, entry in enumerate(entries, 1):
        for each in _with_left(entry, f"pipe {number} of the state"):
            _check_entry(*each)


def _with_left(entry: Any, where: str) -> Iterator[tuple[Any, str]]:
    """Yields an entry, and the entry with which the next pass begins if this one is not resumed."""
    yield entry, where
    if isinstance(entry, dict) and "left" in entry:
        left = entry["left"]
        yield left, f"{where}, which may be left,"
        if isinstance(left, dict) and "left" in left:
            raise ValueError(f"{where} is left more than once")


def _check_entry(entry: Any, where: str) -> None:
    if not isinstance(entry, dict) or type(entry.get("type")) is not str:
        raise ValueError(f"{where} is no entry with the name of a class")
    where = f"{where}, {entry['type']},"
    restores = entry.get("how") == "restore"
    if not restores and entry.get("how") != "begin":
        raise ValueError(f"{where} says that it goes on by {entry.get('how')!r}")
    for name in ("yielded", "drop"):
        if name in entry or (restores and name == "yielded"):
            _check_count(entry.get(name), f"{where} has {name}")
    skipped = entry.get("skipped", {})
    if not isinstance(skipped, dict) or not all(type(kind) is str for kind in skipped):
        raise ValueError(f"{where} has skipped={skipped!r}, which counts no exceptions")
    for count in skipped.values():
        _check_count(count, f"{where} has skipped")
    if type(entry.get("finished", False)) is not bool:
        raise ValueError(f"{where} has finished={entry['finished']!r}, which is neither true nor false")
    if type(entry.get("seconds", 0.0)) not in (int, float):
        raise ValueError(f"{where} has seconds={entry['seconds']!r}, which is no number")
    state = entry.get("state", {})
    if not isinstance(state, dict) or not all(type(name) is str for name in state):
        raise ValueError(f"{where} has a state of type {type(state).__name__}")
    if "generators" in entry:
        check_generators(entry["generators"])
    ahead = entry.get("ahead", ())
    if not isinstance(ahead, (list, tuple)) or not all(type(part) in (bool, int) for part in ahead):
        raise ValueError(f"{where} has ahead={ahead!r}, which says nothing of a thread")


def _check_count(count: Any, what: str) -> None:
    if type(count) is not int or not 0 <= count < MOST_ITEMS:
        raise ValueError(f"{what}={count!r}, which is no number of items")


def checksums_of(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the checksums of a graph's state: one per entry, and one of the fingerprint."""
    return {"pipes": [checksum(entry) for entry in state["pipes"]], "graph": checksum(state.get("graph"))}


def check_checksums(state: dict[str, Any]) -> None:
    """Raises ValueError, which names the pipe, if a part of a graph's state has changed since it was saved."""
    expected = state["checksums"]
    sums = expected.get("pipes") if isinstance(expected, dict) else None
    if not isinstance(sums, list) or len(sums) != len(state["pipes"]):
        raise ValueError("this pipe state is damaged in its field 'checksums': there is not one of each pipe")
    for number, (entry, one) in enumerate(zip(state["pipes"], sums, strict=True), 1):
        if checksum(entry) != one:
            raise ValueError(
                f"this pipe state is damaged in its field 'pipes': the checksum of pipe {number}, {entry['type']}, is "
                "not the one that was saved with it; load another copy of it"
            )
    if checksum(state.get("graph")) != expected.get("graph"):
        raise ValueError(
            "this pipe state is damaged in its field 'graph': its checksum is not the one that was saved with it; load "
            "another copy of it"
        )


def checksum(value: Any) -> int:
    """Returns the CRC-32 of plain data. Equal data has equal checksums.

    Raises:
        ValueError: the data has more parts than any valid state, for example because of repeated references.
    """
    crc, left, waiting = 0, _PARTS, [value]
    while waiting:
        part = waiting.pop()
        kind = type(part)
        if kind is bytes:
            crc = zlib.crc32(part, zlib.crc32(b"b%d " % len(part), crc))
            continue
        if kind is dict:
            words = repr(list(part))
            waiting.extend(reversed(part.values()))
        elif kind in (list, tuple) and not _FLAT.issuperset(map(type, part)):
            words = f"{kind.__name__} {len(part)}"
            waiting.extend(reversed(part))
        else:
            words = repr(part)
        left -= 1 + (len(part) >> 5 if kind in (list, tuple, dict) else 0)
        if left < 0:
            raise ValueError(f"this pipe state is damaged: it has more than {_PARTS} parts")
        crc = zlib.crc32(words.encode(errors="surrogatepass"), crc)
    return crc


@contextmanager
def explaining_damage(name: str) -> Iterator[None]:
    """Context in which a pipe of this package loads its state, assuming the layout that it saves.

    Raises:
        ValueError: loading failed because the state has another layout.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(
            f"the state of {name} is damaged: it cannot go on from it ({type(error).__name__}: {error})"
        ) from error


def check_generators(state: Any) -> None:
    """Raises ValueError unless the value has the form of a result of `save_generators`.

    The libraries trust the index in a generator's state and read memory at this index.
    """
    if not isinstance(state, dict) or "random" not in state:
        raise ValueError("its global generators are none")
    _check_random(state["random"])
    numpy, torch, awaited = state.get("numpy"), state.get("torch", b""), state.get("awaited", {})
    if numpy is not None and not isinstance(numpy, dict):
        _check_numpy(numpy)
    if type(torch) is not bytes:
        raise ValueError(f"the state of torch's generator is of type {type(torch).__name__}")
    if not isinstance(awaited, dict) or not all(
        name in ("torch", "numpy.random") and type(seed) is int and 0 <= seed < 2**64 for name, seed in awaited.items()
    ):
        raise ValueError(f"the seeds of libraries that are not imported are {awaited!r}")


def _check_random(state: Any) -> None:
    parts = state if isinstance(state, (list, tuple)) and len(state) == 3 else (None, None, None)
    version, numbers, gauss = parts
    if version != 3 or type(numbers) is not bytes or len(numbers) != 4 * _WORDS:
        raise ValueError("the state of Python's generator is none")
    if gauss is not None and type(gauss) is not float:
        raise ValueError(f"the state of Python's generator holds {gauss!r} where a number should be")


def _check_numpy(state: Any) -> None:
    parts = state if isinstance(state, (list, tuple)) and len(state) == 4 else (None, None, None, None)
    key, position, has_gauss, gauss = parts
    if type(key) is not bytes or len(key) != 4 * (_WORDS - 1) or type(position) is not int:
        raise ValueError("the state of NumPy's generator is none")
    if not 0 <= position < _WORDS or has_gauss not in (0, 1) or type(gauss) is not float:
        raise ValueError(f"the state of NumPy's generator stands at {position!r}, with {gauss!r} held")


def refuse_pickled_entries(entries: list[dict[str, Any]]) -> None:
    """Raises ValueError, which names the pipe, if a part of the entries requires unpickling."""
    for entry in entries:
        refuse_pickled(entry.get("state"), entry["type"])
        refuse_pickled(entry.get("left", {}).get("state"), entry["type"])
        refuse_pickled_generators(entry.get("generators"))


def refuse_pickled_generators(state: dict[str, Any] | None) -> None:
    """Raises ValueError if a generator requires unpickling. This is the case if the program replaced NumPy's default
    generator.
    """
    refuse_pickled((state or {}).get("numpy"), "NumPy's global generator")
