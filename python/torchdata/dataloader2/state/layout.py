"""The layout of a loader's state: `dump` converts its values to plain data, and `parse` converts them back.

Only this module contains the keys of the layout. The functions of this module never unpickle values that could run
code.

`parse` checks the type and range of each value, including values in snapshots, because a downloaded state may be
forged. Checksums detect damage, but do not prove who wrote a state.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import NoneType
from typing import Any

from torchdata._engine.snapshots import Account, KeptDispatched
from torchdata._native import words_of
from torchdata._plain_pickles import UntrustedPickleError, is_sealed, refuse_pickled, seal, seal_of, unseal
from torchdata.dataloader2.graph.serialization import damaged
from torchdata.dataloader2.random.seed_generator import SeedGenerator
from torchdata.dataloader2.state.position import (
    Content,
    Filled,
    LoaderState,
    Outline,
    Position,
    Randomness,
    SavedRanks,
    Shard,
    ShardPosition,
    WorkersPosition,
)
from torchdata.datapipes._pipe.graph.fingerprint import parse_fingerprint
from torchdata.datapipes._pipe.state.generators import check_generators
from torchdata.datapipes._pipe.state.layout import dump_graph, parse_graph

SERIALIZED_DATAPIPE_KEY_NAME = "serialized_datapipe"
READING_SERVICE_STATE_KEY_NAME = "reading_service_state"
RANDOMNESS_STATE_KEY_NAME = "randomness_state"
_VERSION = "version"
#: The value under this key is None if the state contains only the seeds of an epoch.
_POSITION = "iteration_state"
_CHECKSUMS = "checksums"
#: The key under which a state contains the pipeline's fingerprint, and the size of its pickle in bytes.
_PIPELINE = "pipeline"
#: The value under this key is a `SavedRanks`; states without ranks lack the key.
_RANKS = "ranks"

#: The version of the layout that this module writes. States of torchdata 0.9 do not contain a version, and have only
#: the keys `serialized_datapipe`, `reading_service_state` and `randomness_state`.
STATE_VERSION = 5

_REQUIRED = (SERIALIZED_DATAPIPE_KEY_NAME, READING_SERVICE_STATE_KEY_NAME)
_NEW = (_VERSION, _POSITION, _CHECKSUMS, _PIPELINE, _RANKS)
_ALL = (*_REQUIRED, RANDOMNESS_STATE_KEY_NAME, _VERSION, _POSITION)

_MOST = 1 << 46
_MOST_SHARDS = 1 << 20

#: For fewer than `_FEW` items, the time of a recomputation is not estimated, because starting the workers would
#: dominate it.
_FEW = 100

_KINDS: dict[str, set[type]] = {"received": {int}, "drop": {int}, "ended": {bool}, "in_main": {bool}}
_KINDS |= {"seconds": {float, NoneType}, "own_seeds": {bool, NoneType}}
_SEALED = ("graph", "generators", "beginning")
_OF_WORKERS = ("workers", "turn", "dispatches", "dispatching")

#: A checksum covers only values of these types, because the `repr` of other values may differ between processes.
_SUMMED = frozenset({NoneType, bool, int, bytes})


def _crc(data: bytes) -> bytes:
    return b"%d %d" % (len(data), zlib.crc32(data))


def dump(state: LoaderState, of_pipe: int | None = None) -> dict[str, Any]:
    """Converts a state to plain data. `of_pipe` is the checksum of the pickled pipe, if it was already computed."""
    plain: dict[str, Any] = {
        SERIALIZED_DATAPIPE_KEY_NAME: state.pipe,
        READING_SERVICE_STATE_KEY_NAME: state.service,
        RANDOMNESS_STATE_KEY_NAME: state.randomness and state.randomness.packed(),
        _VERSION: STATE_VERSION,
        _POSITION: state.position and _dump_position(state.position),
    }
    if state.outline is not None:
        plain[_PIPELINE] = {"fingerprint": state.outline.words, "length": state.outline.length}
    if state.ranks is not None:
        plain[_RANKS] = list(state.ranks)
    plain[_CHECKSUMS] = checksums(plain, of_pipe)
    return plain


def _dump_position(position: Position) -> dict[str, Any]:
    plain = position._asdict() | {
        "graph": None if position.graph is None else sealed(Content(position.graph)),
        "generators": position.generators and seal(position.generators),
        "beginning": position.beginning and seal(position.beginning),
        "workers": _dump_workers(position.workers),
        "shards": None if position.shards is None else [*map(list, position.shards)],
        "without_held": _dump_workers(position.without_held),
    }
    del plain["lacking"]  # this text is for the process that saves the state
    return plain


def _dump_workers(workers: WorkersPosition | None) -> dict[str, Any] | None:
    return workers and {
        "turn": workers.turn,
        "dispatches": workers.dispatches,
        "dispatching": workers.dispatching,
        "workers": [{"received": received, "snapshot": snapshot} for received, snapshot in workers.shards],
    }


def checksums(state: Mapping[str, Any], of_datapipe: int | None = None) -> dict[str, int]:
    """Returns the checksums of a state's fields. `of_datapipe` is the checksum of the pickled pipe, if it was already
    computed."""
    found = {field: checksum_of(state[field], seal_of) for field in (_POSITION, _PIPELINE, _RANKS) if field in state}
    for field in (SERIALIZED_DATAPIPE_KEY_NAME, READING_SERVICE_STATE_KEY_NAME, RANDOMNESS_STATE_KEY_NAME):
        value = state.get(field)
        if of_datapipe is not None and field == SERIALIZED_DATAPIPE_KEY_NAME:
            found[field] = of_datapipe
        elif _SUMMED.issuperset(map(type, value if isinstance(value, (tuple, list)) else (value,))):
            found[field] = checksum_of(value)
    return found


def checksum_of(value: Any, of_bytes: Callable[[bytes], bytes] = _crc) -> int:
    """Returns a checksum of a nested value. `of_bytes` computes the checksum of bytes; for a sealed snapshot, `seal_of`
    returns its header, which contains a checksum."""
    return zlib.crc32(words_of(value, of_bytes).encode())


def parse(state: Any, *, allow_pickle: bool = True) -> LoaderState:
    """If `allow_pickle` is False, pickled values in the state raise an error. The pickled pipe in the state is
    accepted, because `parse` does not unpickle it.

    Raises TypeError or ValueError for damaged states and for other objects.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"a loader's state is the dictionary that state_dict() returned, but got {state!r}")
    is_of_0_9 = state.keys().isdisjoint(_NEW)
    missing = [k for k in (_REQUIRED if is_of_0_9 else _ALL) if k not in state]
    if missing:
        within = [key for key, value in state.items() if isinstance(value, Mapping) and set(_REQUIRED) <= value.keys()]
        advice = f"; load the part of it that is one: load_state_dict(state[{within[0]!r}])" if within else ""
        raise ValueError(
            f"this is not the state of a DataLoader2: it lacks {', '.join(map(repr, missing))} and has "
            f"{sorted(map(str, state))}{advice}"
        )
    version = state.get(_VERSION)
    if not is_of_0_9 and (type(version) is not int or version != STATE_VERSION):
        raise ValueError(
            f"this loader state has version {version!r}, but this release reads version {STATE_VERSION}; load it with "
            "the release that saved it"
        )
    plain, of_service = state.get(_POSITION), state[READING_SERVICE_STATE_KEY_NAME]
    with _naming(_POSITION):
        position = None if plain is None else _position(plain)
    with _naming(_PIPELINE):
        outline = _parse_outline(state[_PIPELINE]) if _PIPELINE in state else None
    with _naming(_RANKS):
        ranks = _ranks(state.get(_RANKS))
    with _naming(RANDOMNESS_STATE_KEY_NAME):
        randomness = _randomness(state.get(RANDOMNESS_STATE_KEY_NAME), is_of_0_9)
    if state.get(_CHECKSUMS) is not None:
        _check_checksums(state, state[_CHECKSUMS])
    recomputed = []
    if plain is not None and position is not None:
        with _naming(_POSITION):
            own = {
                name: opened(plain[name], "a snapshot", allow_pickle=allow_pickle)
                for name in _SEALED
                if plain[name] is not None
            }
            position = position._replace(**{name: _of_main(name, content) for name, content in own.items()})
            _check_counts(position)
            contents = [("" if name == "graph" else None, content) for name, content in own.items()]
            contents += [
                (where, opened(snapshot, "a snapshot", allow_pickle=allow_pickle))
                for where, snapshot in _snapshots(position)
            ]
            recomputed = list(_recomputed(position, contents))
    if not allow_pickle and isinstance(of_service, bytes) and is_sealed(of_service):
        refuse_pickled(unseal(of_service, "the state of the services"), "a reading service")
    pipe = state[SERIALIZED_DATAPIPE_KEY_NAME]
    return LoaderState(pipe, of_service, randomness, outline, position, ranks, is_of_0_9, state, recomputed)


@contextmanager
def _naming(field: str) -> Iterator[None]:
    try:
        yield
    except UntrustedPickleError:
        raise
    except ValueError as error:
        raise damaged(field, str(error)) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise damaged(field, f"reading it fails with {type(error).__name__}: {error}") from None
    except RecursionError:
        raise damaged(field, "it is nested too deeply") from None


def _check_checksums(state: Mapping[str, Any], expected: Any) -> None:
    found = checksums(state)
    if not isinstance(expected, Mapping):
        raise damaged(_CHECKSUMS, f"it is of type {type(expected).__name__} where checksums should be")
    for field in {**found, **expected}:
        if expected.get(field) != found.get(field):
            raise damaged(field, "its checksum differs from the saved checksum")


def _parse_outline(outline: Any) -> Outline:
    if not isinstance(outline, dict) or type(outline.get("length")) is not int:
        raise ValueError("it does not describe the pipeline")
    found = Outline(outline["fingerprint"], outline["length"])
    parse_fingerprint(found.fingerprint)
    return found


def _ranks(ranks: Any) -> SavedRanks | None:
    if ranks is None:
        return None
    if not isinstance(ranks, (list, tuple)) or tuple(map(type, ranks)) != (int, int, bool):
        raise ValueError(f"it is {ranks!r} instead of a rank and the number of ranks")
    rank, count, keeps_seeds = ranks
    if not 0 <= rank < count:
        raise ValueError(f"it contains rank {rank} of {count}")
    return rank, count, keeps_seeds


def _randomness(packed: Any, is_of_0_9: bool) -> Randomness | None:
    """Returns the seed and the generators in a state. Generators of torchdata 0.9 are ignored, because they are
    pickles, and because this package's generators draw different numbers.
    """
    if packed is None:
        return None
    if not isinstance(packed, (tuple, list)) or len(packed) != 4:
        raise ValueError("it must contain a seed, whether it applies, and two generators")
    seed, is_due, *generators = packed
    if not all(type(generator) is bytes for generator in generators):
        raise ValueError("it does not hold the bytes of two generators")
    first, second = (SeedGenerator() if is_of_0_9 else SeedGenerator.imported(each) for each in generators)
    is_due = True if is_of_0_9 else is_due
    if not (seed is None or (type(seed) is int and 0 <= seed < 2**64)) or type(is_due) is not bool:
        raise ValueError(f"its seed is a {type(seed).__name__}, or too large, or not followed by a bool")
    return Randomness(seed, is_due, first, second)


def _position(plain: Any) -> Position:
    if not isinstance(plain, dict):
        raise ValueError(f"it is of type {type(plain).__name__} where a position should be")
    for name, kinds in _KINDS.items():
        if type(plain.get(name)) not in kinds:
            raise ValueError(f"its {name!r} is {plain.get(name)!r}")
    if not 0 <= plain["drop"] <= plain["received"] < _MOST:
        raise ValueError(f"it drops {plain['drop']} of {plain['received']} items")
    for name in _SEALED:
        sealed = plain.get(name, b"")
        if sealed is not None and type(sealed) is not bytes:
            raise ValueError(f"its {name!r} is not a snapshot")
    found = (plain["workers"], plain.get("without_held"))
    workers, without_held = (None if each is None else _workers(each) for each in found)
    shards = None if plain.get("shards") is None else _shards(plain["shards"])
    if plain["in_main"] and shards is not None:
        raise ValueError("it has shards, although the main process ran the pipeline")
    for each in workers, without_held:
        if each is not None and (shards is None or len(each.shards) != len(shards)):
            raise ValueError(f"it has positions of {len(each.shards)} shards, but its shards are {shards!r}")
    if plain["graph"] is None and workers is None and not plain["ended"] and plain["drop"] != plain["received"]:
        raise ValueError(f"it has no snapshot, and drops only {plain['drop']} of {plain['received']} items")
    fields: dict[str, Any] = {name: plain.get(name) for name in _KINDS}
    return Position(**fields, workers=workers, shards=shards, without_held=without_held)


def _shards(shards: Any) -> list[Shard]:
    if not isinstance(shards, list) or not 0 < len(shards) < _MOST_SHARDS:
        raise ValueError(f"its shards are {shards!r}")
    for shard in shards:
        fits = isinstance(shard, list) and tuple(map(type, shard)) == (int, int, int, int, bool, bool, bool)
        if not fits or not (0 <= shard[0] < shard[1] < _MOST_SHARDS and 0 <= shard[2] < shard[3] < _MOST_SHARDS):
            raise ValueError(f"one of its shards is {shard!r}")
    found = [Shard(*shard) for shard in shards]
    alike = {(shard.ranks, shard.moved, shard.splits) for shard in found}
    by_rank = {(shard.rank, shard.workers, shard.of_main) for shard in found}
    is_whole = found[0].moved or [shard.worker for shard in found] == [*range(found[0].workers)]
    if not is_whole or len({*found}) < len(found) or len(alike) > 1 or len(by_rank) > len({one[0] for one in by_rank}):
        raise ValueError(f"its shards do not belong together: {shards!r}")
    return found


def _check_counts(position: Position) -> None:
    """Raises ValueError if the numbers of items in a position contradict each other.

    If the number of ranks has changed, the shards' numbers of items are not compared, because they include items that
    other ranks delivered. If an epoch was resumed without states of the main process's pipes, these pipes count only
    the items since the resume.
    """
    if position.ended or any(shard.moved for shard in position.all_shards):
        return
    graph, workers, apart = position.graph or (), position.workers, position.without_held
    before, read = position.received - position.drop, 0
    for end in graph[-1:]:
        if not end.restores or end.drop is not None:
            return
        before -= end.yielded
        read = next((entry.yielded for entry in graph if entry.type == "WorkerOutput"), 0)
    fits = before == 0 if workers is None else before == _given(workers) - read >= 0
    if not fits or (apart is not None and _given(apart) != position.received):
        raise ValueError(f"the items of its shards and pipes do not add up to its {position.received} items")


def _given(workers: WorkersPosition) -> int:
    return sum(items for (items, _), _ in workers.shards)


def _workers(plain: Any) -> WorkersPosition:
    workers, turn, dispatches, dispatching = (plain[name] for name in _OF_WORKERS)
    if not isinstance(workers, list) or not workers:
        raise ValueError("its data has no workers")
    shards = [_shard_position(worker, f"worker {number}") for number, worker in enumerate(workers)]
    dispatched = None if dispatching is None else _dispatched(dispatching, shards)
    if type(turn) is not int or not 0 <= turn < len(workers) or type(dispatches) is not bool:
        raise ValueError(f"its turn is {turn!r} with {len(workers)} workers, and its dispatches is {dispatches!r}")
    return WorkersPosition(shards, turn, dispatches, dispatched)


def _shard_position(worker: Any, owner: str) -> ShardPosition:
    received = _account(worker["received"], owner)
    if worker["snapshot"] is None:
        return ShardPosition(received)
    sent, read_pass, share, content = worker["snapshot"]
    sent, share = _account(sent, f"the snapshot of {owner}"), _account(share, f"the share of {owner}")
    if sent[0] > received[0] or type(read_pass) is not int or not 0 <= read_pass < _MOST or type(content) is not bytes:
        raise ValueError(f"the snapshot of {owner} was taken after the saved position, or is not a snapshot")
    return ShardPosition(received, (sent, read_pass, share, content))


def _dispatched(dispatched: Any, shards: Sequence[ShardPosition]) -> KeptDispatched:
    dispatched_pass, accounts, content = dispatched
    accounts = [_account(account, "the dispatching process") for account in accounts]
    fits = type(dispatched_pass) is int and 0 <= dispatched_pass < _MOST and type(content) is bytes
    if not fits or len(accounts) != len(shards):
        raise ValueError("the snapshot of the dispatching process belongs to other workers, or is not a snapshot")
    for (items, _), (_, snapshot) in zip(accounts, shards, strict=True):
        read_pass, (read, _) = (1, (0, 0)) if snapshot is None else snapshot[1:3]
        if (dispatched_pass, items) > (read_pass, read):
            raise ValueError("the snapshot of the dispatching process was taken after the snapshot of a worker")
    return dispatched_pass, accounts, content


def _account(account: Any, owner: str) -> Account:
    items, checksum = account
    if type(items) is not int or not 0 <= items < _MOST or type(checksum) is not int or not 0 <= checksum < 2**64:
        raise ValueError(f"{owner} has {items!r} items")
    return items, checksum


def _snapshots(position: Position) -> Iterator[tuple[str | None, bytes]]:
    if position.workers is not None:
        for number, shard in enumerate(position.workers.shards):
            if shard.snapshot:
                yield f" in worker {number}", shard.snapshot[3]
        if position.workers.dispatching is not None:
            yield None, position.workers.dispatching[2]
    for shard in () if position.without_held is None else position.without_held.shards:
        if shard.snapshot:
            yield None, shard.snapshot[3]


def _recomputed(position: Position, contents: Iterable[tuple[str | None, Content]]) -> Iterator[tuple[str, int, float]]:
    """Yields (name, number of items, seconds) for each process that must recompute many items."""
    lasted = position.seconds or 0.0
    if position.drop >= _FEW:
        yield "the epoch", position.drop, lasted * position.drop / position.received
    for number, shard in enumerate(() if position.workers is None else position.workers.shards):
        if shard.recomputed >= _FEW:
            yield f"worker {number}", shard.recomputed, lasted * shard.recomputed / shard.received[0]
    for where, content in contents:
        for entry in () if where is None else content.entries or ():
            if entry.drop:
                yield f"{entry.type}{where}", entry.drop, entry.seconds or 0.0


def sealed(content: Content) -> bytes:
    graph = dump_graph(content.entries or ())
    optional: dict[str, Any] = {"read_out": True} if content.read_out else {}
    if content.generators is not None:
        optional["generators"] = content.generators
    if content.filled is not None:
        optional["filled"] = tuple(content.filled)
    return seal({"graph": graph, **optional} if optional else graph)


def opened(snapshot: Any, what: str, *, allow_pickle: bool = True) -> Content:
    """Returns the contents of a snapshot; `what` is its name in error messages. If `allow_pickle` is False, pickled
    values raise ValueError."""
    content = unseal(snapshot, what)
    if not isinstance(content, dict):
        raise ValueError(f"{what} holds an object of type {type(content).__name__}")
    if "random" in content:
        check_generators(content, allow_pickle)
        return Content(None, content)
    if "graph" not in content:
        return Content(parse_graph(content, allow_pickle))
    if "generators" in content:
        check_generators(content["generators"], allow_pickle)
    entries = parse_graph(content["graph"], allow_pickle)
    filled = None if content.get("filled") is None else _filled(content["filled"], what, allow_pickle)
    return Content(entries, content.get("generators"), bool(content.get("read_out")), filled)


def _filled(filled: Any, what: str, allow_pickle: bool) -> Filled:
    seeds, start, checksum = filled if isinstance(filled, tuple) and len(filled) == 3 else (None, None, None)
    if not isinstance(seeds, bytes) or type(checksum) not in (int, NoneType):
        raise ValueError(f"{what} does not describe the epoch that has filled the caches")
    SeedGenerator.imported(seeds)
    earlier = opened(start, what, allow_pickle=allow_pickle).filled if start else None
    if earlier is not None and earlier.start != b"":
        raise ValueError(f"{what} depends on more than one earlier epoch")
    return Filled(seeds, start, checksum)


def _of_main(name: str, content: Content) -> Any:
    if name == "graph":
        return content.entries or ()
    if content.generators is None:
        raise ValueError("the generators of this loader state are not valid")
    return content.generators
