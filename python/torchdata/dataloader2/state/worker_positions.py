"""Converts the engine's records of worker processes to positions in an epoch, and positions to commands.

A process resumes from its own snapshot, and recomputes and drops the items that were delivered after the snapshot.
"""

from __future__ import annotations

from typing import Any

from torchdata._engine.snapshots import Account, Resumption, reason_in
from torchdata.dataloader2.graph import DataPipe
from torchdata.dataloader2.state.position import ShardPosition, WorkersPosition
from torchdata.datapipes._pipe.graph.graph import Graph, graph_of
from torchdata.datapipes._pipe.state.hooks import hooks_of
from torchdata.datapipes._pipe.state.iteration import counters_of

_ALL = 1 << 62

#: Names of attributes that contain a seed; each epoch sets these attributes.
_SEEDS = frozenset({"_seed", "_epoch_seed"})


def position_of(found: tuple[Any, int, Any], dispatches: bool) -> WorkersPosition:
    positions, turn, sender = found
    shards = [
        ShardPosition(received, None if snapshot and reason_in(snapshot[3]) else snapshot)
        for received, snapshot in positions
    ]
    return WorkersPosition(shards, turn, dispatches, None if sender and reason_in(sender[2]) else sender)


def why_unsaved(found: tuple[Any, int, Any]) -> str | None:
    positions, _, sender = found
    contents = [snapshot[3] for _, snapshot in positions if snapshot] + ([sender[2]] if sender else [])
    return next(filter(None, map(reason_in, contents)), None)


def resumptions(position: WorkersPosition, dispatches: bool, strict: bool) -> list[Resumption | None]:
    """Returns the positions where all shards resume, followed by the position where the dispatching process resumes.

    If `strict` is True, recomputed items must equal the original items.

    Raises ValueError if the saved run had a dispatching process and this run (`dispatches`) has none, or vice versa.
    """
    if position.dispatches != dispatches:
        had, has = ("a", "no") if position.dispatches else ("no", "a")
        raise ValueError(f"this state was saved with {had} dispatching process, but this pipeline has {has} one")
    children: list[Resumption | None] = []
    shares: list[tuple[int, Account]] = []
    for shard in position.shards:
        items, checksum = shard.received
        sent, read_pass, share, content = shard.snapshot or ((0, 0), 1, (0, 0), None)
        shares.append((read_pass, share))
        start = (sent, items - sent[0], checksum or None if strict else None)
        whole = read_pass > 1
        children.append(
            Resumption(
                content, [start], position.turn, passed=int(whole), share=(0, 0) if whole else share, strict=strict
            )
        )
    if dispatches:
        resumed = position.dispatching or (1, [(0, 0)] * len(shares), None)
        children.append(_of_dispatching(resumed, shares, strict))
    return children


def _of_dispatching(
    sender: tuple[int, list[Account], bytes | None], shares: list[tuple[int, Account]], strict: bool
) -> Resumption:
    _, accounts, content = sender
    starts: list[tuple[Account, int, int | None]] = []
    for account, (read_pass, (read, checksum)) in zip(accounts, shares, strict=True):
        whole = read_pass > 1
        again = _ALL if whole else read - account[0]
        starts.append((account, again, checksum or None if strict and not whole else None))
    turn = sum(items for items, _ in accounts) % len(accounts)
    return Resumption(content, starts, turn=turn, strict=strict)


def unverified(position: WorkersPosition) -> WorkersPosition:
    """Removes the checksums of items that are recomputed, so that these items are not compared with the originals."""
    accounts = [None] * len(position.shards) if position.dispatching is None else position.dispatching[1]
    shards = []
    for (received, snapshot), account in zip(position.shards, accounts, strict=True):
        if snapshot is not None and snapshot[2] != account:
            snapshot = *snapshot[:2], (snapshot[2][0], 0), snapshot[3]
        is_recomputed = snapshot is None or snapshot[0] != received
        shards.append(ShardPosition((received[0], 0) if is_recomputed else received, snapshot))
    return position._replace(shards=shards)


def lasts(*datapipes: DataPipe | Graph | None) -> bool:
    return any(_lasts(pipe) for datapipe in datapipes if datapipe is not None for pipe in graph_of(datapipe))


def may_count(*datapipes: DataPipe | Graph | None) -> bool:
    """Returns whether the items of an epoch may depend on the number of earlier epochs."""
    graphs = [graph_of(datapipe) for datapipe in datapipes if datapipe is not None]
    return lasts(*graphs) or any(counters_of(pipe) for graph in graphs for pipe in graph)


def names_of_lasting(datapipe: DataPipe | Graph | None) -> list[str]:
    """Returns the class names of the pipes that keep state between epochs."""
    names = [] if datapipe is None else [type(pipe).__name__ for pipe in graph_of(datapipe) if _lasts(pipe)]
    return [name for name in names if not name.startswith("_")]


def _lasts(pipe: Any) -> bool:
    kind = type(pipe)
    if not hasattr(kind, "iteration_state"):
        ours = kind.__module__.startswith("torchdata.")  # pipes of this package keep no state unless they declare it
        return not ours and hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")
    if hooks_of(pipe)._outlives_epochs():
        return True
    return any(state.lasts and state.saved and state.name not in _SEEDS for state in kind._declared)
