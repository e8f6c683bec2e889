"""The contents of a loader's state, as values: `layout.parse` creates the values from a state, and `layout.dump`
converts them back.

Role: immutable values, which are created when a state is taken or loaded, and not for each item.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torchdata._engine.snapshots import Account, Kept, KeptDealt
from torchdata.dataloader2.random.seed_generator import SeedGenerator
from torchdata.datapipes._pipe.graph.fingerprint import Fingerprint
from torchdata.datapipes._pipe.state.layout import PipeEntry

#: The number of a rank, the number of ranks, and whether the epoch used seeds on which the ranks had not agreed.
SavedRanks = tuple[int, int, bool]


@dataclass(frozen=True)
class Shard:
    """One shard of an epoch: a replica of the pipeline with its own worker info, random streams and position.

    Args:
        worker: the number of the worker that began the shard, on its rank.
        workers: the number of workers of each rank.
        rank: the number of the rank that began the shard.
        ranks: the number of ranks; 1 without ranks.
        of_main: whether the main process began the shard with the loader's own seeds, instead of a worker.
        moved: whether the shard may run on a rank that did not begin it. A moved shard keeps the items that belong to
            rank number `rank`, and derives its seeds from the seeds of the whole job.
        splits: whether the user has set the number of shards, by an argument `splits`.
    """

    worker: int
    workers: int
    rank: int = 0
    ranks: int = 1
    of_main: bool = False
    moved: bool = False
    splits: bool = False

    def of_rank(self, rank: int, ranks: int) -> Shard:
        """Returns a copy of the shard with this rank and this number of ranks, and with `moved=True`."""
        return replace(self, rank=rank, ranks=ranks, moved=True)


class ShardPosition(NamedTuple):
    """The number of a shard's items that the user has received, and the shard's latest snapshot before these items.
    Without a snapshot, a resumed shard recomputes its items from the beginning."""

    given: Account
    snapshot: Kept | None = None

    @property
    def recomputed(self) -> int:
        """The number of items that were sent after the snapshot, and that resuming must recompute."""
        return self.given[0] - (self.snapshot[0][0] if self.snapshot else 0)


class WorkersPosition(NamedTuple):
    """The positions of all shards, the next shard to read, and the matching snapshot of the dispatching process."""

    shards: Sequence[ShardPosition]
    turn: int
    dispatches: bool
    dispatching: KeptDealt | None
    in_order: bool


class Processes(NamedTuple):
    """The processes of an epoch: the number of shards, whether a dispatching process ran, and whether the main process
    took one item of each shard in turn."""

    shards: int
    dispatches: bool
    in_order: bool


class Position(NamedTuple):
    """The position of a loader in an epoch: a snapshot, and the number of items delivered after the snapshot.

    Args:
        given: the number of items of the epoch that were delivered.
        drop: the number of items that were delivered after the snapshot of the main process's part of the graph.
        ended: whether the epoch had ended.
        graph: the positions of the main process's pipes; None if these pipes have no relevant state.
        generators: the states of the global generators, if the main process runs functions of the user.
        beginning: the global generators' states at the start of the epoch, if resuming recomputes the epoch from there.
        workers: the positions of the workers.
        in_main: whether no worker processes ran the graph.
        seconds: the duration of the epoch so far.
        processes: the processes that ran the graph; None without workers.
        shards: the shards of an epoch that began with another number of workers or ranks; otherwise None.
        own_seeds: whether the pipes, and not the loader, drew the seeds of the epoch; None with workers.
        untold: the reason why `workers` lacks the state that pipes keep from earlier iterations; None if no state is
            missing. This field is not saved.
    """

    given: int
    drop: int = 0
    ended: bool = False
    graph: Sequence[PipeEntry] | None = None
    generators: dict[str, Any] | None = None
    beginning: dict[str, Any] | None = None
    workers: WorkersPosition | None = None
    in_main: bool = True
    seconds: float | None = None
    processes: Processes | None = None
    shards: Sequence[Shard] | None = None
    own_seeds: bool | None = None
    untold: str | None = None

    @property
    def all_shards(self) -> Sequence[Shard]:
        """The shards that a rank ran, in the order in which the rank reads them."""
        if self.shards is not None:
            return self.shards
        if self.in_main or self.processes is None:
            return [Shard(0, 1, of_main=True)]
        return [Shard(worker, self.processes.shards) for worker in range(self.processes.shards)]

    def at(self, given: int, **known: Any) -> Position:
        """Returns a later position with the same snapshot. The field `drop` of this position must be 0.

        Args:
            given: the number of items that were delivered.
            known: new values for other fields of the position.
        """
        return self._replace(given=given, drop=given - self.given, **known)


class Filled(NamedTuple):
    """The epoch in which a worker has filled its caches. To refill its caches, a process that resumes repeats the
    epoch.

    Args:
        seeds: the exported seed generator of the epoch.
        start: the sealed snapshot from the beginning of the epoch; None if the epoch was the first one of its graph,
            and empty bytes inside the sealed snapshot itself.
        checksum: the checksum of the items that the snapshot leaves out; None if the snapshot contains all items.
    """

    seeds: bytes
    start: bytes | None = None
    checksum: int | None = None


class Content(NamedTuple):
    """The contents of a sealed snapshot: of the main process's pipes, of its generators, or of a child's graph.

    Args:
        entries: the saved entry of each pipe; None if the snapshot contains only the states of generators.
        generators: the states of the global generators.
        read_out: whether the worker had reached the end of its dispatched items.
        filled: the epoch that has filled the caches, or fills them now; None if this epoch cannot be repeated.
    """

    entries: Sequence[PipeEntry] | None
    generators: dict[str, Any] | None = None
    read_out: bool = False
    filled: Filled | None = None


class Randomness(NamedTuple):
    """The user's seed, whether this seed must still be applied, the current seed generator, and the seed generator at
    the beginning of the epoch."""

    seed: int | None
    is_due: bool
    generator: SeedGenerator
    initial: SeedGenerator

    def packed(self) -> tuple[int | None, bool, bytes, bytes]:
        """Returns the four fields as plain data."""
        return self.seed, self.is_due, self.generator.exported(), self.initial.exported()


@dataclass(frozen=True)
class Outline:
    """A description of a pipeline as JSON, and the size of its pickle in bytes, or 0 if there is no pickle."""

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
        pipe: the pickled pipe, if the state contains it.
        service: the reading service's own state.
        randomness: the seeds of the epochs.
        outline: the description of the pipeline; states of torchdata 0.9 have none.
        position: the position in the epoch; None if the state contains only the seeds of the epoch.
        ranks: the rank of the loader, and the number of ranks; None without ranks.
        is_of_0_9: whether torchdata 0.9 saved the state, which then has no version and no position.
        saved: the state in the form in which it was loaded.
        recomputed: for each part that resuming must recompute, its name, number of items and duration in seconds.
    """

    pipe: Any
    service: Any
    randomness: Randomness | None
    outline: Outline | None = None
    position: Position | None = None
    ranks: SavedRanks | None = None
    is_of_0_9: bool = False
    saved: Mapping[str, Any] | None = None
    recomputed: Sequence[tuple[str, int, float]] = ()

    @property
    def is_between_epochs(self) -> bool:
        """Whether a loader that loads this state begins an epoch, without recomputing or skipping items."""
        return self.position is None or (self.position.ended and self.position.workers is None)
