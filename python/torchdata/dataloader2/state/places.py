"""Places of worker processes in an epoch, as plain data: from the engine's books, and to commands for a later run.

Role: pure functions. A place holds, for each worker, what of its items was given to the user and the newest snapshot
before that; whose turn it was; and the snapshot of the dispatching process that fits to these. A later run starts each
process from its snapshot, and what was given after it is made again, compared and dropped.
"""

from __future__ import annotations

from typing import Any

from torchdata._engine.snapshots import Account, Kept, KeptDealt, Resumption, is_sealed, reason_in
from torchdata.dataloader2.graph import DataPipe
from torchdata.datapipes._pipe.graph.graph import Graph, graph_of
from torchdata.datapipes._pipe.state.hooks import hooks_of

__all__ = [
    "accounts_in",
    "check_place",
    "check_processes",
    "kept_in",
    "lasts",
    "names_of_lasting",
    "plain",
    "resumptions",
    "why_unsaved",
]

#: More items than an epoch has.
_ALL = 1 << 62

#: More items than anybody has given.
_MOST = 1 << 46

#: Seeds, which each epoch gets anew.
_SEEDS = frozenset({"_seed", "_epoch_seed"})


def plain(found: tuple[Any, int, Any], dispatches: bool, in_order: bool) -> dict[str, Any]:
    """The content of the engine's books in the form that a state has.

    Args:
        found: the content.
        dispatches: whether there is a dispatching process.
        in_order: whether main takes items in strict turn.
    """
    places, turn, dealt = found
    workers = [
        {"given": given, "snapshot": None if snapshot and reason_in(snapshot[3]) else snapshot}
        for given, snapshot in places
    ]
    dealt = None if dealt and reason_in(dealt[2]) else dealt
    return {
        "workers": workers,
        "turn": turn,
        "dispatches": dispatches,
        "dispatching": dealt,
        "in_order": in_order,
    }


def why_unsaved(found: tuple[Any, int, Any]) -> str | None:
    """Why a process could make no snapshot, if what the engine's books say holds that."""
    places, _, dealt = found
    contents = [snapshot[3] for _, snapshot in places if snapshot] + ([dealt[2]] if dealt else [])
    return next(filter(None, map(reason_in, contents)), None)


def accounts_in(place: dict[str, Any]) -> list[Account]:
    """By worker, what of its items was given."""
    return [tuple(worker["given"]) for worker in place["workers"]]


def kept_in(place: dict[str, Any]) -> tuple[list[Kept | None], KeptDealt | None]:
    """The snapshots, as the engine's books take them."""
    snapshots = [worker["snapshot"] for worker in place["workers"]]
    return [snapshot and _kept(snapshot) for snapshot in snapshots], _kept_dealt(place["dispatching"])


def _kept(snapshot: Any) -> Kept:
    (items, checksum), read_pass, (read, read_checksum), content = snapshot
    return (items, checksum), read_pass, (read, read_checksum), content


def _kept_dealt(dealt: Any) -> KeptDealt | None:
    if dealt is None:
        return None
    dealt_pass, accounts, content = dealt
    return dealt_pass, [(items, checksum) for items, checksum in accounts], content


def check_place(place: Any) -> None:
    """Raises ValueError if this is no place, or one of its snapshots is not whole."""
    try:
        workers = place["workers"]
        if not isinstance(workers, list) or not workers:
            raise ValueError("it has no workers")
        for number, worker in enumerate(workers):
            _check_worker(worker, f"worker {number}")
        dealt = place["dispatching"]
        if dealt is not None:
            _check_dealt(dealt, len(workers))
        if "owners" in place:
            raise ValueError("its items were dealt out of turn")
        flags = place["dispatches"], place["in_order"]
        if type(place["turn"]) is not int or not 0 <= place["turn"] < len(workers) or set(map(type, flags)) != {bool}:
            raise ValueError(f"it is the turn of worker {place['turn']!r} of {len(workers)}, with {flags!r}")
    except (TypeError, KeyError, ValueError, IndexError) as error:
        raise ValueError(f"what it says of the workers does not fit together: {error}") from None


def _check_worker(worker: Any, whose: str) -> None:
    given, snapshot = worker["given"], worker["snapshot"]
    _check_account(given, whose)
    if snapshot is None:
        return
    sent, read_pass, share, content = snapshot
    _check_account(sent, f"the snapshot of {whose}")
    _check_account(share, f"the share of {whose}")
    if sent[0] > given[0] or type(read_pass) is not int or not 0 <= read_pass < _MOST or not is_sealed(content):
        raise ValueError(f"the snapshot of {whose} is of after what was given, or no snapshot")


def _check_dealt(dealt: Any, workers: int) -> None:
    dealt_pass, accounts, content = dealt
    for account in accounts:
        _check_account(account, "the dispatching process")
    if type(dealt_pass) is not int or not 0 <= dealt_pass < _MOST or len(accounts) != workers or not is_sealed(content):
        raise ValueError("the snapshot of the dispatching process is not of these workers, or no snapshot")


def _check_account(account: Any, whose: str) -> None:
    """Raises ValueError if these are not a number of items and their checksum."""
    items, checksum = account
    if type(items) is not int or not 0 <= items < _MOST or type(checksum) is not int or not 0 <= checksum < 2**64:
        raise ValueError(f"{whose} has {items!r} items")


def check_processes(processes: Any, workers: dict[str, Any] | None, shards: Any = None) -> None:
    """Raises ValueError if this does not say how many workers there were, and how main took their items."""
    if processes is None and workers is None:
        return
    if not isinstance(processes, (list, tuple)) or tuple(map(type, processes)) != (int, bool, bool):
        raise ValueError(f"its processes are {processes!r}")
    if shards is not None:
        if not isinstance(shards, list) or len(shards) != processes[0]:
            raise ValueError(f"its shards are {shards!r}")
        for shard in shards:
            if not isinstance(shard, list) or tuple(map(type, shard)) != (int, int, int, int, bool, bool, bool):
                raise ValueError(f"one of its shards is {shard!r}")
            worker, count, rank, ranks, *_ = shard
            if not (0 <= worker < count < _MOST and 0 <= rank < ranks < _MOST):
                raise ValueError(f"one of its shards is {shard!r}")
    if processes[0] < 1 or (workers is not None and len(workers["workers"]) != processes[0]):
        raise ValueError(f"it is not of {processes[0]} workers")


def resumptions(place: dict[str, Any], num_shards: int, dispatches: bool, strict: bool) -> list[Resumption | None]:
    """Where each shard goes on, and the dispatching process last.

    Args:
        place: the place.
        num_shards: how many shards there are now.
        dispatches: whether there is a dispatching process now.
        strict: whether what is made again is compared.

    Raises:
        ValueError: there were others.
    """
    given = accounts_in(place)
    if len(given) != num_shards:
        raise ValueError(
            f"this state was saved inside an epoch of {len(given)} shards, and this epoch has {num_shards}: save a "
            "state between two epochs"
        )
    if bool(place["dispatches"]) != dispatches:
        had, has = ("a", "no") if place["dispatches"] else ("no", "a")
        raise ValueError(f"this state was saved with {had} dispatching process, but this pipeline has {has} one")
    snapshots, dealt = kept_in(place)
    children: list[Resumption | None] = []
    shares: list[tuple[int, Account]] = []
    for (items, checksum), snapshot in zip(given, snapshots, strict=True):
        sent, read_pass, share, content = snapshot or ((0, 0), 1, (0, 0), None)
        shares.append((read_pass, share))
        start = (sent, items - sent[0], checksum or None if strict else None)  # main does not sum up what it gives
        whole = read_pass > 1
        children.append(
            Resumption(
                content, [start], place["turn"], passed=int(whole), share=(0, 0) if whole else share, strict=strict
            )
        )
    if dispatches:
        goes_on = dealt or (1, [(0, 0)] * len(shares), None)
        children.append(_of_dispatching(goes_on, shares, strict))
    return children


def _of_dispatching(
    dealt: tuple[int, list[Account], bytes | None],
    shares: list[tuple[int, Account]],
    strict: bool,
) -> Resumption:
    _, accounts, content = dealt
    starts: list[tuple[Account, int, int | None]] = []
    for account, (read_pass, (read, checksum)) in zip(accounts, shares, strict=True):
        whole = read_pass > 1
        again = _ALL if whole else read - account[0]
        starts.append((account, again, checksum if strict and not whole else None))
    turn = sum(items for items, _ in accounts) % len(accounts)
    return Resumption(content, starts, turn=turn, strict=strict)


def lasts(*datapipes: DataPipe | Graph | None) -> bool:
    """Whether something in the graphs outlives an epoch: the seeds alone do not tell how the next one begins then."""
    return any(_lasts(pipe) for datapipe in datapipes if datapipe is not None for pipe in graph_of(datapipe))


def names_of_lasting(datapipe: DataPipe | Graph | None) -> list[str]:
    """The names of the pipes of which something outlives an epoch; parts of other pipes begin anew with them."""
    names = [] if datapipe is None else [type(pipe).__name__ for pipe in graph_of(datapipe) if _lasts(pipe)]
    return [name for name in names if not name.startswith("_")]


def _lasts(pipe: Any) -> bool:
    kind = type(pipe)
    if not hasattr(kind, "iteration_state"):
        ours = kind.__module__.startswith("torchdata.")  # these begin anew if they do not declare what lasts
        return not ours and hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")
    if hooks_of(pipe)._outlives_epochs():
        return True
    return any(state.lasts and state.saved and state.name not in _SEEDS for state in kind._declared)
