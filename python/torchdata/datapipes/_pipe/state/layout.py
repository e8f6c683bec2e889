"""Defines the layout of graph states, and validates states.

Because a state may be damaged or malicious, the numbers in it are checked before they are used. The field `state` of a
`PipeEntry` is checked by the pipe that loads it.
"""

from __future__ import annotations

import reprlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import NoneType
from typing import Any, NamedTuple

from torchdata._plain_pickles import refuse_pickled
from torchdata.datapipes._pipe.state.declared import fits
from torchdata.datapipes._pipe.state.generators import check_generators

STATE_VERSION = 4

_PARTS = 1 << 20

#: The types of simple values. If a list or tuple contains only simple values, its checksum is computed from its `repr`.
_FLAT = frozenset({NoneType, bool, int, float, str})


class PipeEntry(NamedTuple):
    """The part of a graph's state that describes the position of one pipe.

    Args:
        type: the name of the pipe's class.
        restores: whether the pipe's next iteration resumes, rather than starting from the beginning.
        yielded: the number of items that the saved iteration had yielded.
        finished: whether the iteration has yielded its last item.
        state: the pipe's declared state. If `restores` is False, `state` contains only the values that outlast an
            iteration, such as the seed for the next iteration.
        seed: the seed of a user-defined pipe, as an argument for its method `set_seed`.
        follows: whether the pipe derives each seed from its previous seed, instead of drawing the seed from the global
            random generators.
        skipped: the number of items of this pipe that `on_error` has skipped, by class of exception.
        later: the seed for the pipe's next iteration, which the pipe receives only after a replay of the saved
            iteration.
        drop: the number of items that a *replayed* pipe (a pipe without a declared state) drops at the beginning of the
            iteration. In a replay, the pipe and its sources begin with the states that they had at the beginning of the
            saved iteration. The pipe drops items up to the saved position, or all items if `finished` is True.
        seconds: the seconds from the beginning of the saved iteration until the state was saved.
        generators: the states of the global random generators at the beginning of a replay (see `drop`). After the
            replay, the generators get back the states that they had before the replay.
        ahead: how many items the pipe's read-ahead thread must read during a replay before it pauses (see `Lead`).
        left: the `PipeEntry` that is used instead of this entry if the next iteration starts from the beginning.
        loaded_seed: a tuple that contains only the seed that the pipe had when the state was loaded. A different seed
            of the pipe shows that the seed was set later.
    """

    type: str
    restores: bool = False
    yielded: int = 0
    finished: bool | None = None
    state: dict[str, Any] | None = None
    seed: Any = None
    follows: Any = None
    skipped: dict[str, int] | None = None
    later: Any = None
    drop: int | None = None
    seconds: float | None = None
    generators: dict[str, Any] | None = None
    ahead: Sequence[Any] | None = None
    left: PipeEntry | None = None
    loaded_seed: tuple[Any] | None = None


class HeldItems(NamedTuple):
    """The state of a pipe that reads ahead: its buffered items, and the error to raise after these items."""

    items: list[Any]
    error: BaseException | None


_OPTIONAL = PipeEntry._fields[3:-2]
_RARE = _OPTIONAL[2:]

#: The forms of the fields of an entry (see `fits`).
_FORMS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("yielded", "drop"), (int,)),
    "finished": (bool,),
    "seconds": (int | float,),
    "skipped": (lambda kinds: fits(kinds, dict) and fits([*kinds.items()], [(str, int)]),),
    "state": (lambda state: fits(state, dict) and fits([*state], [str]),),
    "ahead": ([bool | int] * 3, (bool | int,) * 3),
}


def dump_entry(entry: PipeEntry) -> dict[str, Any]:
    of_class, restores, yielded, finished, state, *rare = entry
    plain: dict[str, Any] = {"type": of_class, "how": "restore" if restores else "begin"}
    if restores:
        plain["yielded"] = yielded
    if finished is not None:
        plain["finished"] = finished
    if state is not None:
        plain["state"] = state
    if {NoneType}.issuperset(map(type, rare)):
        return plain
    plain |= {name: value for name, value in zip(_RARE, rare, strict=False) if value is not None}
    if entry.left is not None:
        plain["left"] = dump_entry(entry.left)
    if entry.loaded_seed is not None:
        plain["loaded_seed"] = entry.loaded_seed[0]
    return plain


def dump_graph(entries: Iterable[PipeEntry]) -> dict[str, Any]:
    return {"version": STATE_VERSION, "pipes": [*map(dump_entry, entries)]}


def parse_graph(state: Any, allow_pickle: bool = True) -> list[PipeEntry]:
    """Validates a graph state. Raises ValueError for an invalid field, and for a pickled value if `allow_pickle` is
    False. The error message names the pipe and the field."""
    version = state.get("version") if isinstance(state, dict) else state
    if version != STATE_VERSION or type(version) is not int:
        raise ValueError(f"this is not a pipe state of version {STATE_VERSION}, but has version {version!r}")
    entries = state.get("pipes")
    if not isinstance(entries, list):
        raise ValueError(f"the pipes of this pipe state are of type {type(entries).__name__}")
    return [_parse_entry(entry, f"pipe {number} of the state", allow_pickle) for number, entry in enumerate(entries, 1)]


def _parse_entry(entry: Any, where: str, allow_pickle: bool, *, is_left: bool = False) -> PipeEntry:
    if not isinstance(entry, dict) or type(entry.get("type")) is not str:
        raise ValueError(f"{where} is not an entry with the name of a class")
    own = f"{where}, {entry['type']},"
    restores = entry.get("how") == "restore"
    if not restores and entry.get("how") != "begin":
        raise ValueError(f"{own} has how={entry.get('how')!r} instead of 'restore' or 'begin'")
    for name, forms in _FORMS.items():
        if (name in entry or (restores and name == "yielded")) and not fits(entry.get(name), *forms):
            raise ValueError(f"{own} has {name}={reprlib.repr(entry.get(name))}, which is not valid")
    state = entry.get("state", {})
    if not allow_pickle:
        refuse_pickled(state, entry["type"])
    if "generators" in entry:
        check_generators(entry["generators"], allow_pickle)
    if is_left and "left" in entry:
        raise ValueError(f"{where} is left more than once")
    left, may = entry.get("left"), f"{where}, which may be left,"
    return PipeEntry(
        entry["type"],
        restores,
        entry["yielded"] if restores else 0,
        left=_parse_entry(left, may, allow_pickle, is_left=True) if "left" in entry else None,
        loaded_seed=(entry["loaded_seed"],) if "loaded_seed" in entry else None,
        **{name: entry[name] for name in _OPTIONAL if name in entry},
    )


def checksums_of(state: dict[str, Any]) -> dict[str, Any]:
    return {"pipes": [checksum(entry) for entry in state["pipes"]], "graph": checksum(state.get("graph"))}


def check_checksums(state: dict[str, Any]) -> None:
    expected = state["checksums"]
    sums = expected.get("pipes") if isinstance(expected, dict) else None
    if not isinstance(sums, list) or len(sums) != len(state["pipes"]):
        raise ValueError("this pipe state is damaged in its field 'checksums': a checksum of each pipe is required")
    for number, (entry, one) in enumerate(zip(state["pipes"], sums, strict=True), 1):
        if checksum(entry) != one:
            raise ValueError(
                f"this pipe state is damaged in its field 'pipes': the checksum of pipe {number}, {entry['type']}, "
                f"differs from the saved checksum; load another copy of it"
            )
    if checksum(state.get("graph")) != expected.get("graph"):
        raise ValueError(
            "this pipe state is damaged in its field 'graph': its checksum differs from the saved checksum; load "
            "another copy of it"
        )


def checksum(value: Any) -> int:
    """Returns a checksum. Raises ValueError for more than `_PARTS` values. A small malicious state may refer to one
    list so often that computing the checksum would not end."""
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
    """Within this context, errors become a ValueError that reports a damaged state."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(
            f"the state of {name} is damaged: its pipe cannot resume from it ({type(error).__name__}: {error}); load "
            "another copy of it"
        ) from error
