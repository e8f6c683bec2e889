"""Runs the pipes before a `sharding_filter` once for all shards of a process, if the number of shards is fixed.

With `splits`, a process may run dozens of shards, which would all compute the same items before the filter. Each shard
has a replica of the whole graph, but only one replica reads the pipes before the filter, the *common part*. The common
part gives each item to its shard, and queues the items that the shards have not requested yet. The same thread runs the
shards and the pipes before the filter, either in a worker or in the main process. A `CommonPart` belongs to one filter,
one epoch and one process.

The items of the common part do not depend on the number of workers: its generators are seeded equally in all processes,
and torch's worker info shows a single worker. A shard's state contains a snapshot of the common part, and the number of
items to recompute after this snapshot. The state of a shard does not depend on other shards, so any process can load
this state.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from itertools import count, cycle, islice
from typing import Any, NamedTuple

from torchdata._handlers import FailuresSuppressed
from torchdata._native import ShardTurns
from torchdata.dataloader2.services.common_pipes import attributes_of, filters_with_common_part, may_draw
from torchdata.dataloader2.services.reused_objects import ReusedObjects
from torchdata.datapipes._pipe import witnessing
from torchdata.datapipes._pipe.division import Division
from torchdata.datapipes._pipe.exchanging import ShardGlobals
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.splitting import read_whole
from torchdata.datapipes._pipe.state.layout import PipeEntry
from torchdata.datapipes._pipe.state.record import token_of
from torchdata.datapipes.iter.ordering.sharding import ShardingFilter
from torchdata.datapipes.state import beginning_entries, load_entries, load_generators, save_entries, save_generators

#: The maximum number of items in the queue of a shard. If a queue would exceed `MOST_WAITING` items, its shard reads
#: its own replica of the common part instead of the queue.
MOST_WAITING = 1 << 14
#: The maximum number of snapshots that a `CommonPart` keeps for the states of its shards.
_MOST_SNAPSHOTS = 8


class _Start(NamedTuple):
    """A position in the sequence of items that the pipes before a filter yield.

    Args:
        position: the number of items that the pipes before the filter have yielded.
        entries: the states of the pipes before the filter; None if the shard's replica of these pipes is already at
            `position`.
        generators: the states of the random generators; None if no number was drawn since the beginning of the epoch.
    """

    position: int
    entries: Sequence[PipeEntry] | None = None
    generators: dict[str, Any] | None = None


class CommonParts:
    """Creates a `CommonPart` for each `sharding_filter` if the pipes before the filter can run once for all shards.

    Args:
        is_alone: whether the process runs only one shard. A process with a single shard needs a `CommonPart` only for
            pipes that may draw random numbers.
    """

    def __init__(self, *, is_alone: bool) -> None:
        self._is_alone = is_alone
        self._parts: list[CommonPart] = []

    def begin(self, datapipe: Any, seed: Callable[[int], None], inform: Callable[[], None], *, is_first: bool) -> None:
        """Adds a shard to the common parts. Before this call, the caller must have seeded the shard's random generators
        for the epoch.

        Args:
            datapipe: the last pipe of the shard's graph.
            seed: a function that seeds the process's random generators with a number, for the common part.
            inform: a function that sets torch's worker info for the shard.
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
                part.add(Share(each, inform))

    def close(self) -> None:
        """Stops reading the pipes, so that they close their files."""
        for part in self._parts:
            part.close()


class Share:
    """The items of one shard, from pipes that run once for all shards.

    Args:
        datapipe: the shard's `sharding_filter`.
        inform: a function that sets torch's worker info for the shard.
    """

    def __init__(self, datapipe: ShardingFilter[Any], inform: Callable[[], None]) -> None:
        self.datapipe, self.inform = datapipe, inform
        datapipe._share = self
        self.part: CommonPart | None = None
        #: The items that the shard has not requested yet. The first `skips` items precede the position where the shard
        #: resumed, and are dropped.
        self.queue: deque[Any] = deque()
        self.skips = 0
        #: A position, not later than the shard's position, where the shard's replica can resume; None until the shard
        #: requests its first item.
        self.start: _Start | None = None
        self._begun = 0

    @property
    def source(self) -> Any:
        return self.datapipe.source_datapipe

    @property
    def division(self) -> Division:
        return self.datapipe._shard()

    def begin(self, position: int, generators: dict[str, Any] | None) -> Iterator[Any]:
        """Returns an iterator over the items of the shard. The `sharding_filter` calls this method once in an epoch.

        Args:
            position: how many items the pipes before the filter have yielded in this shard's replica of the graph.
            generators: the states that the random generators of the common part have at `position`; see `_Start`.
        """
        part, begun = self.part, token_of(self.datapipe).yielded
        if part is None or (self.start is not None and begun != self._begun):
            raise RuntimeError("a sharding_filter was iterated twice in one epoch, but no later pipe repeats items")
        self._begun, self.start = begun, _Start(position, None, generators)
        part.join(self)
        # No Python code runs between the removal of an item and its count, so Ctrl-C cannot lose the item.
        return map(deque.popleft, iter(self._filled, None))

    def skip_from(self, position: int) -> None:
        """Makes the shard drop its items from `position` up to its present position."""
        self.skips = self.division.own_before(self.datapipe._position()) - self.division.own_before(position)

    def _filled(self) -> deque[Any] | None:
        """Returns a queue that begins with the shard's next item; None at the end."""
        while True:
            queue = self.queue
            if not queue:
                if self.part is None or not self.part.fill(self):
                    return None
            elif self.skips:
                self.skips -= 1  # Python runs signal handlers after calls, so Ctrl-C cannot separate these two lines
                queue.popleft()
            else:
                return queue

    def saved(self) -> _Start | None:
        """Returns a position where the shard can resume, with the states of the pipes before the `sharding_filter`;
        None if no item was requested from the filter yet."""
        return self.start if self.part is None else self.part.before(self) or self.start

    def entries(self) -> dict[int, PipeEntry]:
        """Returns the states of the pipes before the sharding filter, by pipe id, at the position that `saved()`
        returns."""
        found = self.saved()
        if found is None or found.entries is None:
            return {}
        return {id(pipe): entry for pipe, entry in zip(Graph(self.source), found.entries, strict=True)}


class CommonPart:
    """The pipes before a `sharding_filter`: one replica of them computes the items for several shards of a process.

    Args:
        seed: a function that seeds the random generators of the process for these pipes.
    """

    def __init__(self, seed: Callable[[], None]) -> None:
        self._seed = seed
        self._shares: list[Share] = []
        self._runner: Share | None = None
        #: The position of the first item that was put into the queues.
        self._first = 0
        #: The position where the replica began to run, and the number of items that its last pipe had yielded at this
        #: position.
        self._began = 0, 0
        self._iterator: Iterator[Any] = iter(())
        #: Each step of this iterator computes an item, and appends the item to the queue of its shard.
        self._distributing: Iterator[None] = iter(())
        self._has_ended = False
        #: Snapshots in the order of their positions. No shard is at an earlier position than the first of these
        #: snapshots.
        self._snapshots: list[_Start] = []
        self._wants_snapshot = False
        #: `_blocks`: the number of shards, and the number of consecutive items for each shard. `_by_number` maps
        #: numbers to shards.
        self._blocks = 1, 1
        self._by_number: dict[int, Share] = {}
        self._reused = ReusedObjects(self._waits, self._oldest)
        #: The attributes of each pipe at the beginning of the epoch; see `attributes_of`.
        self._attributes: Sequence[dict[str, Any]] | None = None
        self._current: Share | None = None
        self._seeded: dict[str, Any] = {}
        #: The random generators of the shard that requests an item, and the random generators of the pipes before the
        #: filter.
        self._globals = ShardGlobals(), ShardGlobals()
        self._turns = ShardTurns(self._globals, self._exchange, 0)
        #: The function that switches between the random generators of the common part and of the shard. If the common
        #: part contains no user code, `_enter` is `_stay`, which does nothing.
        self._enter: Callable[[int], object] = self._turns.enter

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
        """Adds a shard that begins to read, possibly after other shards."""
        assert share.start is not None
        if not self.is_running:
            return
        if share.datapipe._position() >= self._first:
            share.skip_from(self._first)
        else:
            self._remove(share, share.start)
            self._distribute()

    def _remove(self, share: Share, start: _Start | None) -> None:
        """Removes a shard from this common part, so that the shard runs its own replica of the pipes."""
        part = CommonPart(self._seed)
        part._shares.append(share)
        part._attributes = self._attributes
        share.start, share.queue, share.skips = start, deque(), 0
        share.part = part
        self._shares.remove(share)

    def fill(self, share: Share) -> bool:
        """Runs the pipes before the filter until the shard has an item. Returns False if the pipes have ended."""
        if self._has_ended:
            return False
        self._current = share
        witness = None if self.is_running or self._snapshots else witnessing.current
        enter = self._enter
        enter(1)
        try:
            if not self.is_running:
                self._begin(None if witness is None else witness.watch)
            elif self._wants_snapshot:
                self._save()
            queue = share.queue
            for _ in self._distributing:
                if queue:
                    break
            else:
                self.close()
        except Exception:
            if self.is_running:
                self._distribute()
            raise
        finally:
            enter(0)
        if len(self._shares) > 1:
            self._look_after(share)
        return bool(share.queue) or share.part is not self

    def close(self) -> None:
        """Stops reading."""
        self._has_ended, self._iterator, self._distributing = True, iter(()), iter(())

    def _look_after(self, share: Share) -> None:
        """Removes shards from the common part if their items must not be queued, or if their queues are too long."""
        if self._reused.is_found:
            for each in [*self._shares]:
                self._remove(each, each.start and self.before(each))
            self.close()
        for each in [*self._shares]:
            is_late = len(each.queue) > MOST_WAITING and each is not share
            if is_late and each.start is not None and not self._has_ended:
                self._remove(each, self.before(each))
                if each is self._runner:
                    self._move_to(self._shares[0])
                self._distribute()

    def _move_to(self, share: Share) -> None:
        """Makes one shard (`share`) run the pipes before the filter for all shards, from the current position."""
        self._current, position = share, self.position
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
        start = self._snapshots[0] if self._snapshots else first.start
        assert start is not None
        self._first = start.position
        for share in self._shares:
            share.queue = deque()
        for share in joined:
            share.skip_from(self._first)
        # The first shard's replica runs in every epoch, because a user's pipe may count its epochs in an attribute.
        runner = self._shares[0]
        if start.entries is None and first is not runner:
            start = start._replace(entries=beginning_entries(Graph(first.source)))
        if self._attributes is None:
            self._attributes = [attributes_of(pipe) for pipe in Graph(runner.source)]
        self._run(runner, start, watch)

    def _run(self, share: Share, start: _Start, watch: Any) -> None:
        """Begins to read the pipes before the filter in the replica of a shard."""
        graph = Graph(share.source)
        self._seed()
        self._seeded = save_generators()
        if start.generators is not None:
            load_generators(start.generators)
        if start.entries is None:
            start = start._replace(entries=beginning_entries(graph))
        else:
            assert self._attributes is not None
            # A user's pipe may count its epochs, but not every replica runs in every epoch. Therefore, each replica of
            # such a pipe gets the attributes that the first shard's replica had at the beginning of the epoch.
            for pipe, attributes in zip(graph, self._attributes, strict=True):
                vars(pipe).update(deepcopy(attributes))
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
        self._distribute()

    def _distribute(self) -> None:
        """Assigns the next items to the queues of the shards."""
        position = self.position
        if len(self._shares) == 1:
            [share] = self._shares
            self._distributing = map(share.queue.append, share.division.share_of(self._iterator, position))
            return
        self._by_number = {share.division.shard: share for share in self._shares}
        division, unused = self._shares[0].division, deque[Any](maxlen=0)
        queues = [self._by_number[n].queue if n in self._by_number else unused for n in range(division.shards)]
        order = [queue for queue in queues for _ in range(division.block)]
        self._blocks, offset = (division.shards, division.block), position % len(order)
        items = map(self._reused.examine, self._iterator, count(position))
        self._distributing = map(deque.append, cycle(order[offset:] + order[:offset]), items)

    def _waits(self, position: int) -> bool:
        """Returns whether the item at `position` is still in a queue, because its shard has not requested the item."""
        shards, block = self._blocks
        share = self._by_number.get(position // block % shards)
        return share is not None and bool(share.queue) and share.datapipe._position() <= position

    def _oldest(self) -> int:
        """Returns the lowest position of all shards."""
        return min(share.datapipe._position() for share in self._shares)

    # -- states --------------------------------------------------------------------------------------

    def before(self, share: Share) -> _Start | None:
        """Returns the last snapshot before the position of a shard; None if no item was read yet."""
        taken = share.datapipe._position()
        found = next((snapshot for snapshot in reversed(self._snapshots) if snapshot.position <= taken), None)
        if found is not None and found is self._snapshots[-1] and found.position < self.position:
            self._wants_snapshot = True
        return found

    def _save(self) -> None:
        """Takes a snapshot, and removes the snapshots that no shard needs."""
        assert self._runner is not None
        self._wants_snapshot = False
        entries = None
        with FailuresSuppressed():
            entries = save_entries(Graph(self._runner.source))
        if entries is None:  # the shards then use an earlier snapshot
            return
        now = self._seeded if self._enter is _stay else save_generators()
        made = _Start(self.position, entries, None if now == self._seeded else now)
        lowest = self._oldest()
        following = [*self._snapshots[1:], made]
        kept = [one for one, after in zip(self._snapshots, following, strict=True) if after.position > lowest]
        if len(kept) >= _MOST_SNAPSHOTS:
            kept[1:] = kept[2::2]
        self._snapshots = [*kept, made]

    # -- random numbers ------------------------------------------------------------------------------

    def _exchange(self, left: int, entered: int) -> None:
        self._globals[left].leave(is_all=True)
        is_set = self._globals[entered].enter()
        if entered == 0 and not is_set and "torch.utils.data" in sys.modules and self._current is not None:
            self._current.inform()  # these pipes have imported torch


def _stay(_shard: int) -> None:
    """Does nothing; see `CommonPart._enter`."""
