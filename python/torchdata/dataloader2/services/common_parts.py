"""Runs the pipes before a `sharding_filter` once for all shards of a process, if the number of shards is fixed.

Role: with `splits`, a process may run dozens of shards. Each shard has a replica of the whole graph, but only one
replica reads the pipes before the filter, the *common part*. The common part gives each item to the shard that the item
belongs to, and keeps the items of shards that have not requested them yet. The code runs in the thread that runs the
shards, in workers and in the main process. A `CommonPart` belongs to one filter, one epoch and one process.

The common part has random generators of its own, which are seeded equally in all processes, and torch's worker info
reports a single worker to the common part. An item therefore does not depend on the number of workers. The state of a
shard contains an earlier state of the common part, and how many items the common part must recompute from there. Any
process can load such a state into the replica of one shard.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from itertools import cycle, islice, repeat
from typing import Any, NamedTuple

from torchdata._engine.processes.interrupts import is_of_handler
from torchdata._native import ShardTurns
from torchdata.dataloader2.services.common_pipes import are_passing, filters_with_common_part, may_draw
from torchdata.datapipes._pipe import witnessing
from torchdata.datapipes._pipe.division import Division
from torchdata.datapipes._pipe.exchanging import ShardGlobals
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.splitting import read_whole
from torchdata.datapipes._pipe.state.layout import PipeEntry
from torchdata.datapipes._pipe.state.record import token_of
from torchdata.datapipes.iter.ordering.sharding import ShardingFilter
from torchdata.datapipes.state import beginning_entries, load_entries, load_generators, save_entries, save_generators

__all__ = ["CommonParts"]

#: The maximum number of items that a shard may have waiting. A shard that falls further behind runs its own replica.
MOST_WAITING = 1 << 14
#: The number of requests at which the waiting items are examined for streams.
_EXAMINED = 4
#: The maximum number of snapshots of a common part.
_MOST_SNAPSHOTS = 8


class _Start(NamedTuple):
    """A position of a common part.

    Args:
        position: the number of items that the pipes before the filter have yielded.
        entries: the states of these pipes; None if the replica of the shard is already at the position.
        generators: the states of the random generators; None if no number was drawn since the beginning of the epoch.
    """

    position: int
    entries: Sequence[PipeEntry] | None = None
    generators: dict[str, Any] | None = None


class CommonParts:
    """The common parts of the shards of one process.

    Args:
        is_alone: whether the process runs a single shard. This shard reads a part without user code directly, because
            such a part draws no random numbers.
    """

    def __init__(self, *, is_alone: bool) -> None:
        self._is_alone = is_alone
        self._parts: list[CommonPart] = []

    def begin(self, datapipe: Any, seed: Callable[[int], None], tell: Callable[[], None], *, is_first: bool) -> None:
        """Adds a shard, which has been seeded for an epoch.

        Args:
            datapipe: the last pipe of the shard's graph.
            seed: a function that seeds the process's generators for the common part with a given number.
            tell: a function that describes the shard to torch.
            is_first: whether the shard is the first shard of the epoch.
        """
        graph = Graph(datapipe)
        for pipe in graph:
            if type(pipe) is ShardingFilter:
                pipe._share = None
        filters = filters_with_common_part(graph)
        if is_first:
            self.close()
            self._parts = [CommonPart(partial(seed, number)) for number in range(len(filters))]
        for part, each in zip(self._parts, filters, strict=True):
            if not self._is_alone or any(map(may_draw, graph.at(each.source_datapipe))):
                part.add(Share(each, tell))

    def close(self) -> None:
        """Stops reading, so that the pipes close their files."""
        for part in self._parts:
            part.close()


class Share(Iterator[Any]):
    """The items of a common part that belong to one shard.

    Args:
        datapipe: the filter of the shard.
        tell: a function that describes the shard to torch.
    """

    def __init__(self, datapipe: ShardingFilter[Any], tell: Callable[[], None]) -> None:
        self.datapipe, self.tell = datapipe, tell
        datapipe._share = self
        self.part: CommonPart | None = None
        #: The items that wait for the shard. The first `skips` items precede the position at which the shard resumed.
        self.queue: deque[Any] = deque()
        self.skips = 0
        #: A position of the shard's own replica at or before the shard's position; None before the filter is read.
        self.start: _Start | None = None

    @property
    def source(self) -> Any:
        return self.datapipe.source_datapipe

    @property
    def division(self) -> Division:
        return self.datapipe._shard()

    def begin(self, position: int, generators: dict[str, Any] | None) -> Iterator[Any]:
        """Returns an iterator over the items of the shard. The filter calls this method once in an epoch.

        Args:
            position: the position of the shard's own replica.
            generators: the states of the common part's generators at this position; see `_Start`.
        """
        if self.start is not None or self.part is None:
            raise RuntimeError("a sharding_filter was read twice in an epoch, although no pipe after it repeats items")
        self.start = _Start(position, None, generators)
        self.part.join(self)
        return self

    def skip_from(self, position: int) -> None:
        """Makes the shard drop its items from a position up to its own position."""
        self.skips = self.division.own_before(self.datapipe._position()) - self.division.own_before(position)

    def __next__(self) -> Any:
        queue = self.queue
        while True:
            if queue:
                if not self.skips:
                    return queue.popleft()
                queue.popleft()
                self.skips -= 1
            elif self.part is None or not self.part.fill(self):
                raise StopIteration

    def saved(self) -> _Start | None:
        """Returns a position before the shard's position, with the states of the shard's replica; None if the filter
        was not read yet."""
        return self.part.before(self) if self.part is not None and self.part.is_running else self.start

    def entries(self) -> dict[int, PipeEntry]:
        """Returns the entries of the pipes before the filter, by the ids of the pipes, at the position `saved`."""
        found = self.saved()
        if found is None or found.entries is None:
            return {}
        return {id(pipe): entry for pipe, entry in zip(Graph(self.source), found.entries, strict=True)}


class CommonPart:
    """The pipes before a filter, which one replica runs for several shards of a process.

    Args:
        seed: a function that seeds the generators of the process for this part.
    """

    def __init__(self, seed: Callable[[], None]) -> None:
        self._seed = seed
        self._shares: list[Share] = []
        self._runner: Share | None = None
        #: The position of the first item that was put into the queues.
        self._first = 0
        #: The position at which the replica began to read, and the number of items that its last pipe had yielded then.
        self._began = 0, 0
        self._iterator: Iterator[Any] = iter(())
        self._dealt: Iterator[Any] = iter(())
        self._has_ended = False
        #: Snapshots in the order of their positions. The first snapshot precedes the positions of all shards.
        self._snapshots: list[_Start] = []
        self._wants_snapshot = False
        self._examines = _EXAMINED
        #: The generators of the shard that requests an item, and the generators of this part.
        self._globals = ShardGlobals(), ShardGlobals()
        self._turns = ShardTurns(self._globals, self._exchange, 0)
        #: Switches to the generators of the shard (0) or of this part (1), unless this part contains no user code.
        self._enter: Callable[[int], object] = self._turns.enter
        self._whose: Share | None = None
        self._seeded: dict[str, Any] = {}

    @property
    def is_running(self) -> bool:
        return self._runner is not None

    @property
    def position(self) -> int:
        """The number of items that the replica has yielded in the epoch."""
        position, yielded = self._began
        return position if self._runner is None else position + token_of(self._runner.source).yielded - yielded

    def add(self, share: Share) -> None:
        share.part = self
        self._shares.append(share)

    def join(self, share: Share) -> None:
        """Lets a shard receive its items, also if other shards have begun to read."""
        assert share.start is not None
        if not self.is_running:
            return
        if share.start.position >= self._first:
            share.skip_from(self._first)
        else:
            self._remove(share, share.start)
            self._deal()

    def _remove(self, share: Share, start: _Start | None) -> None:
        """Lets a shard run its own replica if it requests another item."""
        self._shares.remove(share)
        share.start = start
        share.queue.clear()
        CommonPart(self._seed).add(share)

    def fill(self, share: Share) -> bool:
        """Runs the replica until the shard has an item. Returns False if the replica has ended."""
        if self._has_ended:
            return False
        self._whose, queue = share, share.queue
        witness = None if self.is_running else witnessing.current
        enter = self._enter
        enter(1)
        try:
            if not self.is_running:
                self._begin(None if witness is None else witness.watch)
            elif self._wants_snapshot:
                self._save()
            for item, append in self._dealt:
                append(item)
                if queue:
                    break
            else:
                self.close()
        finally:
            enter(0)
        if len(self._shares) > 1:
            self._look_after(share)
        return bool(queue) or share not in self._shares

    def close(self) -> None:
        """Stops reading."""
        self._has_ended, self._iterator, self._dealt = True, iter(()), iter(())

    def _look_after(self, share: Share) -> None:
        """Lets shards run their own replicas if their items cannot wait."""
        others = [each for each in self._shares if each.queue and each is not share]
        if self._examines:
            self._examines -= 1
            if are_passing([item for each in others for item in each.queue]):
                for each in [*self._shares]:
                    self._remove(each, each.start and self.before(each))
                self.close()
                return
        for each in others:
            if len(each.queue) > MOST_WAITING and each.start is not None and not self._has_ended:
                self._remove(each, self.before(each))
                if each is self._runner:
                    self._move_to(self._shares[0])
                self._deal()

    def _move_to(self, share: Share) -> None:
        """Continues with the replica of another shard."""
        self._whose, position = share, self.position
        self._turns.enter(1)
        try:
            self._save()
            self._run(share, self._snapshots[-1], None)
            deque(islice(self._iterator, position - self.position), maxlen=0)
        finally:
            self._turns.enter(0)

    def _begin(self, watch: Any) -> None:
        joined = [share for share in self._shares if share.start is not None]
        first = min(joined, key=lambda share: share.start.position)  # type: ignore[union-attr]
        assert first.start is not None
        self._first = first.start.position
        self._run(first, first.start, watch)
        for share in joined:
            share.skip_from(self._first)

    def _run(self, share: Share, start: _Start, watch: Any) -> None:
        """Begins to read the replica of a shard."""
        graph = Graph(share.source)
        self._seed()
        self._seeded = save_generators()
        if start.generators is not None:
            load_generators(start.generators)
        if start.entries is None:
            start = start._replace(entries=beginning_entries(graph))
        else:
            load_entries(graph, deepcopy(start.entries))
        if not self._snapshots:
            self._snapshots = [start]
        read_whole(graph.pipes)
        iterator, token = iter(share.source), token_of(share.source)
        self._runner, self._began = share, (start.position, token.yielded)
        if watch is not None and (each := watch(share.datapipe, start.position)) is not None:
            iterator = Division(1, 0).share_of(iterator, start.position, each, lambda: token.finished)
        self._iterator = iterator
        self._enter = self._turns.enter if any(map(may_draw, graph)) else _stay
        self._deal()

    def _deal(self) -> None:
        """Assigns the next items to the queues of the shards."""
        position = self.position
        if len(self._shares) == 1:
            [share] = self._shares
            self._dealt = zip(share.division.share_of(self._iterator, position), repeat(share.queue.append))
            return
        queues = {share.division.shard: share.queue for share in self._shares}
        division, nowhere = self._shares[0].division, deque[Any](maxlen=0)
        units = [queues.get(shard, nowhere).append for shard in range(division.shards)]
        order = [append for append in units for _ in range(division.block)]
        offset = position % len(order)
        # `zip` reads the item first, so an exception leaves the order unchanged.
        self._dealt = zip(self._iterator, cycle(order[offset:] + order[:offset]))

    # -- states --------------------------------------------------------------------------------------

    def before(self, share: Share) -> _Start:
        """Returns the last snapshot before the position of a shard."""
        taken = share.datapipe._position()
        found: _Start = next(snapshot for snapshot in reversed(self._snapshots) if snapshot.position <= taken)
        if found is self._snapshots[-1] and found.position < self.position:
            self._wants_snapshot = True
        return found

    def _save(self) -> None:
        """Takes a snapshot, and removes the snapshots that no shard needs."""
        assert self._runner is not None
        self._wants_snapshot = False
        try:
            entries = save_entries(Graph(self._runner.source))
        except Exception as error:  # the shards use an earlier snapshot
            if is_of_handler(error):
                raise
            return
        now = self._seeded if self._enter is _stay else save_generators()
        made = _Start(self.position, entries, None if now == self._seeded else now)
        lowest = min(share.datapipe._position() for share in self._shares)
        following = [*self._snapshots[1:], made]
        kept = [one for one, after in zip(self._snapshots, following, strict=True) if after.position > lowest]
        if len(kept) >= _MOST_SNAPSHOTS:
            kept[1:] = kept[2::2]
        self._snapshots = [*kept, made]

    # -- random numbers ------------------------------------------------------------------------------

    def _exchange(self, left: int, entered: int) -> None:
        self._globals[left].leave(is_all=True)
        is_told = self._globals[entered].enter()
        if entered == 0 and not is_told and "torch.utils.data" in sys.modules and self._whose is not None:
            self._whose.tell()  # torch was imported by this part


def _stay(_place: int) -> None:
    """Does nothing; see `CommonPart._enter`."""
