"""The contents of a loader's state as immutable values, which `layout.parse` and `layout.dump` convert from and to
plain data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torchdata._engine.snapshots import Account, Kept, KeptDispatched
from torchdata.dataloader2.random.seed_generator import SeedGenerator

if TYPE_CHECKING:
    from torchdata.datapipes._pipe.graph.fingerprint import Fingerprint
    from torchdata.datapipes._pipe.state.layout import PipeEntry

#: The rank, the number of ranks, and whether the epoch used seeds that the ranks had not agreed on.
SavedRanks = tuple[int, int, bool]


class Shard(NamedTuple):
    """One shard of an epoch: a replica of the pipeline with its own worker info, random streams and position.

    Args:
        worker: the number of the worker that began the shard, among the workers of its rank.
        of_main: whether the epoch began in the main process, where the pipes get the loader's seeds instead of a
            worker's seeds.
        moved: whether the shard may run on another rank than the rank that began it. A moved shard still yields the
            items of rank `rank`, and derives its seeds from seeds that all ranks share.
        splits: whether the user has set the number of shards (`splits`).
    """

    worker: int
    workers: int
    rank: int = 0
    ranks: int = 1
    of_main: bool = False
    moved: bool = False
    splits: bool = False

    def of_rank(self, rank: int, ranks: int) -> Shard:
        return self._replace(rank=rank, ranks=ranks, moved=True)


class ShardPosition(NamedTuple):
    """The number of a shard's items that the user has received, and the shard's latest snapshot before these items."""

    received: Account
    snapshot: Kept | None = None

    @property
    def recomputed(self) -> int:
        return self.received[0] - (self.snapshot[0][0] if self.snapshot else 0)


class WorkersPosition(NamedTuple):
    shards: Sequence[ShardPosition]
    turn: int
    dispatches: bool
    dispatching: KeptDispatched | None


class Position(NamedTuple):
    """A snapshot of a loader, and the number of items delivered after it.

    Args:
        received: the number of items of the epoch that the user has received.
        drop: the number of items that were delivered after the snapshot of the main process's pipes.
        graph: the states of the main process's pipes; None if a resumed loader does not need these states.
        generators: the states of the global generators, if the main process runs functions of the user.
        beginning: the global generators' states at the epoch's start, if resuming recomputes the epoch.
        seconds: the duration of the epoch up to the saved position.
        shards: the shards of the epoch; None if the epoch runs in the main process.
        own_seeds: whether the pipes, instead of the loader, drew the epoch's seeds; None with workers.
        without_held: the shards' positions without the items that the main process's pipes buffer, for resuming with
            another number of ranks; None if unknown, or equal to `workers`.
        lacking: an error message if `workers` lacks the state that pipes keep from earlier iterations. Not saved.
    """

    received: int
    drop: int = 0
    ended: bool = False
    graph: Sequence[PipeEntry] | None = None
    generators: dict[str, Any] | None = None
    beginning: dict[str, Any] | None = None
    workers: WorkersPosition | None = None
    in_main: bool = True
    seconds: float | None = None
    shards: Sequence[Shard] | None = None
    own_seeds: bool | None = None
    without_held: WorkersPosition | None = None
    lacking: str | None = None

    @property
    def all_shards(self) -> Sequence[Shard]:
        """The shards; a rank takes items from the shards in the order of this list."""
        return self.shards or [Shard(0, 1, of_main=True)]

    def at(self, received: int, **known: Any) -> Position:
        """Returns this snapshot's position after `received` items of the epoch. Requires that `drop` is 0."""
        return self._replace(received=received, drop=received - self.received, **known)


class Filled(NamedTuple):
    """The epoch that a resuming process must repeat to refill its caches.

    Args:
        start: the sealed snapshot from the beginning of the epoch; None for the first epoch of a graph.
        checksum: the checksum of the items that a snapshot omits; None if the snapshot contains all items.
    """

    seeds: bytes
    start: bytes | None = None
    checksum: int | None = None


class Content(NamedTuple):
    """The contents of a sealed snapshot: of the main process's pipes, of its generators, or of a child's graph.

    Args:
        read_out: whether the worker had read all dispatched items, or, without a dispatching process, whether the epoch
            had ended.
        filled: how to repeat the epoch that fills the caches; None if the epoch cannot be repeated.
    """

    entries: Sequence[PipeEntry] | None
    generators: dict[str, Any] | None = None
    read_out: bool = False
    filled: Filled | None = None


class Randomness(NamedTuple):
    """The seed and the generators of a loader. `is_due` is True if the next epoch must start from the user's seed.
    `initial` is the generator at the beginning of the last epoch.
    """

    seed: int | None
    is_due: bool
    generator: SeedGenerator
    initial: SeedGenerator

    def packed(self) -> tuple[int | None, bool, bytes, bytes]:
        return self.seed, self.is_due, self.generator.exported(), self.initial.exported()


class Outline(NamedTuple):
    """The pipeline's fingerprint as JSON, and the size of its pickle in bytes (0 without a pickle)."""

    words: str
    length: int

    @property
    def fingerprint(self) -> Fingerprint:
        import json  # every child process imports this module, but does not read outlines

        found: Fingerprint = json.loads(self.words)
        return found


class LoaderState(NamedTuple):
    """`recomputed` lists each process or pipe that must recompute items, with the number of items and the seconds that
    this takes.
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
        """Whether a loader that loads this state begins a new epoch instead of resuming an epoch."""
        return self.position is None or (self.position.ended and self.position.workers is None)
