"""What a loader's state holds, as values: `layout.parse` makes them of a state, and `layout.dump` a state of them.

Role: pure data. A value is made where a state is taken or loaded, never for each item, and nothing changes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torchdata._engine.snapshots import Account, Kept, KeptDealt
from torchdata.dataloader2.random import SeedGenerator
from torchdata.datapipes._pipe.graph.fingerprint import Fingerprint
from torchdata.datapipes._pipe.state.layout import Entry

__all__ = [
    "Content",
    "LoaderState",
    "Outline",
    "Position",
    "Processes",
    "Randomness",
    "Shard",
    "ShardPosition",
    "WorkersPosition",
]

#: The number of a rank, how many there were, and whether their epoch had the seeds of one without ranks.
SavedRanks = tuple[int, int, bool]


@dataclass(frozen=True)
class Shard:
    """One shard of an epoch: a replica of the pipeline with its own worker info, random streams and position.

    Args:
        worker: the number of the worker that began it, on its rank.
        workers: how many workers each rank had.
        rank: the number of that rank.
        ranks: how many ranks there were; 1 without ranks.
        of_main: whether no worker began it but the process of the loader, with the loader's own seeds.
        moved: whether it is divided by its own numbers rather than by this rank's, and its seeds follow from those of
            the job rather than of this rank.
        splits: whether it is one of a given number of splits.
    """

    worker: int
    workers: int
    rank: int = 0
    ranks: int = 1
    of_main: bool = False
    moved: bool = False
    splits: bool = False

    def of_rank(self, rank: int, ranks: int) -> Shard:
        """The same shard where another number of ranks has it."""
        return replace(self, rank=rank, ranks=ranks, moved=True)


class ShardPosition(NamedTuple):
    """What of a shard's items was given to the user, and its newest snapshot before that; None for its beginning."""

    given: Account
    snapshot: Kept | None = None


class WorkersPosition(NamedTuple):
    """The positions of all shards, whose turn it was, and the dispatching process's snapshot that fits to these."""

    shards: Sequence[ShardPosition]
    turn: int
    dispatches: bool
    dispatching: KeptDealt | None
    in_order: bool


class Processes(NamedTuple):
    """How many shards ran, whether a dispatching process did, and whether main took the items in strict turn."""

    shards: int
    dispatches: bool
    in_order: bool


class Position(NamedTuple):
    """Where a loader was in an epoch: what was known of it after an item, and how many items were given since.

    Args:
        given: items of the epoch that were given.
        drop: the last of them, which came after main's part of the graph was looked at.
        ended: whether the epoch had ended.
        graph: the state of main's part, sealed; None if it begins, or holds nothing that counts.
        generators: the global generators, sealed, where main runs functions of the user's.
        beginning: those with which the epoch began, where they are needed to begin it anew.
        workers: where the workers were.
        in_main: whether no worker processes ran the graph.
        seconds: how long the epoch had taken.
        processes: which ones ran the graph; None without workers.
        shards: those of the epoch, if it was begun with other workers.
        own_seeds: whether the pipes had drawn the seeds of the epoch by themselves; None with workers.
        untold: why the workers' part does not tell what lasts in them beyond the pass that ran then, if it does not.
            States do not hold this.
    """

    given: int
    drop: int = 0
    ended: bool = False
    graph: bytes | None = None
    generators: bytes | None = None
    beginning: bytes | None = None
    workers: WorkersPosition | None = None
    in_main: bool = True
    seconds: float | None = None
    processes: Processes | None = None
    shards: Sequence[Shard] | None = None
    own_seeds: bool | None = None
    untold: str | None = None

    def at(self, given: int, **known: Any) -> Position:
        """Returns the position after more items were given, if nothing was dropped at this one.

        Args:
            given: the number of items that were given.
            known: the values of other fields at that time.
        """
        return self._replace(given=given, drop=given - self.given, **known)


class Content(NamedTuple):
    """What is sealed in a snapshot: of the pipes of main, of its generators, or of what a child runs.

    Args:
        entries: the positions of pipes; None of generators alone.
        generators: the global generators.
        read_out: whether the share of dispatched items had been read to its end.
    """

    entries: Sequence[Entry] | None
    generators: dict[str, Any] | None = None
    read_out: bool = False


class Randomness(NamedTuple):
    """The user's seed, whether it is still to be applied, the generator now and at the beginning of the epoch."""

    seed: int | None
    is_due: bool
    generator: SeedGenerator
    initial: SeedGenerator

    def packed(self) -> tuple[int | None, bool, bytes, bytes]:
        """The randomness as plain data."""
        return self.seed, self.is_due, self.generator.exported(), self.initial.exported()


@dataclass(frozen=True)
class Outline:
    """What a pipeline is made of, as JSON; and how many bytes its pickle has, 0 if there is none."""

    words: str
    length: int

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the pipeline."""
        found: Fingerprint = json.loads(self.words)
        return found


class LoaderState(NamedTuple):
    """The state of a loader.

    Args:
        pipe: the pickled pipe, if it holds that.
        service: what the reading service says of itself.
        randomness: the seeds of the epochs.
        outline: of the pipeline; states of torchdata 0.9 have none.
        position: in the epoch; None if the state says only which epoch it is.
        ranks: of the loader; None if there were none.
        is_of_0_9: whether torchdata 0.9 saved it, which saved no version and no position.
        saved: the state that was loaded, as it was given.
    """

    pipe: Any
    service: Any
    randomness: Randomness | None
    outline: Outline | None = None
    position: Position | None = None
    ranks: SavedRanks | None = None
    is_of_0_9: bool = False
    saved: Mapping[str, Any] | None = None

    @property
    def is_between_epochs(self) -> bool:
        """Whether no item of its epoch is made again or passed over."""
        return self.position is None or (self.position.ended and self.position.workers is None)
