"""Whether a loader's state may be believed: its layout, its seals, and what is sealed in it.

Role: pure functions over states, before one is loaded or described. Nothing is unpickled that may run code.

A state lies in files for a long time, and comes from hubs. Damage is told by the checksums of its fields. Checksums say
nothing of who has written them: so all numbers and kinds are checked before anything is done with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torchdata._engine.snapshots import is_sealed, unseal
from torchdata.dataloader2.graph.serialization import damaged
from torchdata.dataloader2.state.layout import (
    CHECKSUMS_KEY_NAME,
    ITERATION_STATE_KEY_NAME,
    PIPELINE_KEY_NAME,
    RANKS_KEY_NAME,
    READING_SERVICE_STATE_KEY_NAME,
    SERIALIZED_DATAPIPE_KEY_NAME,
    STATE_VERSION,
    VERSION_KEY_NAME,
    checksums,
    fingerprint_in,
    naming,
    unpack_randomness,
)
from torchdata.dataloader2.state.places import check_place, check_processes
from torchdata.datapipes._pipe.graph.fingerprint import check_fingerprint
from torchdata.datapipes._pipe.state.layout import (
    check_entries,
    check_generators,
    refuse_pickled_entries,
    refuse_pickled_generators,
)
from torchdata.datapipes._pipe.state.plain import refuse_pickled

__all__ = ["check_iteration", "check_state", "pipes_in", "refuse_pickled_state"]


#: More items than an epoch has.
_MOST = 1 << 46

#: The keys that every state of a loader has.
_REQUIRED = (SERIALIZED_DATAPIPE_KEY_NAME, READING_SERVICE_STATE_KEY_NAME)

_FIELDS = {"given": int, "drop": int, "ended": bool, "in_main": bool}


def check_state(state: Any) -> None:
    """Raises an error if `state` is not the state of a loader that this release can read."""
    if not isinstance(state, Mapping):
        raise TypeError(f"a loader's state is the dictionary that state_dict() returned, but got {state!r}")
    missing = [k for k in _REQUIRED if k not in state]
    if missing:
        within = [key for key, value in state.items() if isinstance(value, Mapping) and set(_REQUIRED) <= value.keys()]
        advice = f"; load the part of it that is one: load_state_dict(state[{within[0]!r}])" if within else ""
        raise ValueError(
            f"this is not the state of a DataLoader2: it lacks {', '.join(map(repr, missing))} and has "
            f"{sorted(map(str, state))}{advice}"
        )
    version = state.get(VERSION_KEY_NAME)
    if version is not None and (type(version) is not int or version != STATE_VERSION):
        raise ValueError(
            f"this loader state has version {version!r}, but this release reads version {STATE_VERSION}; load it with "
            "the release that saved it"
        )
    place = state.get(ITERATION_STATE_KEY_NAME)
    _check_layout(state, place)
    expected = state.get(CHECKSUMS_KEY_NAME)
    if expected is not None:
        _check_checksums(state, expected)
    if place is not None:
        with naming(ITERATION_STATE_KEY_NAME):
            _check_contents(place)


def _check_layout(state: Mapping[str, Any], place: Any) -> None:
    """Raises ValueError if a field, apart from what is sealed in it, holds anything else than it should."""
    if place is not None:
        with naming(ITERATION_STATE_KEY_NAME):
            check_iteration(place)
    if PIPELINE_KEY_NAME in state:
        with naming(PIPELINE_KEY_NAME):
            _check_outline(state[PIPELINE_KEY_NAME])
    _check_ranks(state.get(RANKS_KEY_NAME))
    unpack_randomness(state)


def _check_outline(outline: Any) -> None:
    if not isinstance(outline, dict) or type(outline.get("length")) is not int:
        raise ValueError("it does not say what the pipeline is made of")
    check_fingerprint(fingerprint_in(outline))


def _check_ranks(ranks: Any) -> None:
    """Raises an error if this is not a rank and how many there were."""
    if ranks is None:
        return
    if not isinstance(ranks, (list, tuple)) or tuple(map(type, ranks)) != (int, int, bool):
        raise damaged(RANKS_KEY_NAME, f"it is {ranks!r} where a rank, and how many there were, should be")
    if not 0 <= ranks[0] < ranks[1]:
        raise damaged(RANKS_KEY_NAME, f"it says rank {ranks[0]} of {ranks[1]}")


def _check_checksums(state: Mapping[str, Any], expected: Any) -> None:
    """Raises ValueError if a field is not the one that was saved."""
    found = checksums(state)
    if not isinstance(expected, Mapping):
        raise damaged(CHECKSUMS_KEY_NAME, f"it is of type {type(expected).__name__} where checksums should be")
    for field in {**found, **expected}:
        if expected.get(field) != found.get(field):
            raise damaged(field, "its checksum is not the one that was saved with it")


def refuse_pickled_state(state: Mapping[str, Any]) -> None:
    """Raises ValueError, which names the pipe, if a place, or what shipped services say, has to be unpickled.

    Args:
        state: a state that was checked.
    """
    place, of_service = state.get(ITERATION_STATE_KEY_NAME), state[READING_SERVICE_STATE_KEY_NAME]
    if place is not None:
        _refuse_pickled_contents(place)
    if isinstance(of_service, bytes) and is_sealed(of_service):
        refuse_pickled(unseal(of_service, "the state of the services"), "a reading service")


def check_iteration(place: Any) -> None:
    """Raises ValueError if this is no place of a loader, or a part of it is not whole."""
    if not isinstance(place, dict):
        raise ValueError(f"it is of type {type(place).__name__} where a place should be")
    for name, kind in _FIELDS.items():
        if type(place.get(name)) is not kind:
            raise ValueError(f"its {name!r} is {place.get(name)!r}")
    if type(place.get("seconds", 0.0)) is not float:
        raise ValueError(f"its 'seconds' is {place['seconds']!r}")
    if type(place.get("own_seeds", False)) is not bool:
        raise ValueError(f"its 'own_seeds' is {place['own_seeds']!r}")
    if not 0 <= place["drop"] <= place["given"] < _MOST:
        raise ValueError(f"it drops {place['drop']} of {place['given']} items")
    for name in ("graph", "generators", "beginning"):
        sealed = place.get(name, b"")
        if sealed is not None and not is_sealed(sealed):
            raise ValueError(f"its {name!r} is no snapshot")
    if place.get("workers") is not None:
        check_place(place["workers"])
    elif "workers" not in place:
        raise ValueError("it says nothing of workers")
    check_processes(place.get("processes"), place["workers"], place.get("shards"))


def _check_contents(place: dict[str, Any]) -> None:
    """Raises ValueError if something that is sealed in a place cannot be gone on from.

    Args:
        place: a place whose own layout was checked.
    """
    for content in _contents(place):
        _check(content)


def _refuse_pickled_contents(place: dict[str, Any]) -> None:
    """Raises ValueError, which names the pipe, if something in a place would have to be unpickled."""
    for content in _contents(place):
        refuse_pickled_entries(pipes_in(content))
        refuse_pickled_generators(content if "random" in content else content.get("generators"))


def pipes_in(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of the pipes of a snapshot; none of generators."""
    entries: list[dict[str, Any]] = content.get("graph", content).get("pipes", [])
    return entries


def _contents(place: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All that is sealed in a place, and what is sealed in that."""
    for sealed in _sealed(place):
        content = unseal(sealed, "a snapshot")
        if not isinstance(content, dict):
            raise ValueError(f"a snapshot holds an object of type {type(content).__name__}")
        yield content


def _sealed(place: dict[str, Any]) -> Iterator[bytes]:
    workers = place["workers"] or {"workers": (), "dispatching": None}
    found = [place.get(name) for name in ("graph", "generators", "beginning")]
    found += [worker["snapshot"][3] for worker in workers["workers"] if worker["snapshot"]]
    found += [workers["dispatching"][2]] if workers["dispatching"] else []
    return (sealed for sealed in found if sealed is not None)


def _check(content: dict[str, Any]) -> None:
    if "random" in content:
        check_generators(content)
        return
    graph = content.get("graph", content)
    check_entries(graph.get("pipes") if isinstance(graph, dict) else None)
    if content.get("generators") is not None:
        check_generators(content["generators"])
    elif "graph" in content:
        raise ValueError("a snapshot of a worker has no generators")
