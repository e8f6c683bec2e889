"""Defines the typed values to which `_layout.parse` converts a loader's state, and which `_layout.dump` converts back.

Role: the process that reads a dataset has `Trails` for its reader. The main process has a `Progress` for each worker.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torchdata._stateful import copied
from torchdata.datapipes._pipe.witnessing import SampleDigest
from torchdata.stateful_dataloader._generators import Moment, encoded

UNKNOWN: Any = object()
_MOST = 256
Counts = tuple[dict[str, int], int]


def freeze(state: Any) -> bytes:
    try:
        return pickle.dumps(state, protocol=5)
    except Exception:
        from torchdata._by_value import dumps

        return dumps(state)


class ReadingPosition(NamedTuple):
    """The position of a reader in its dataset: a snapshot, and the batches that were read after the snapshot. Positions
    are never modified.

    Args:
        dataset: the state of the dataset; None if the dataset has no state or is its own iterator.
        random: the states of the random generators when the snapshot was taken, or, without workers, when the loader's
            state was saved.
        since: the batches that were read after the snapshot: their number, or their indices for a map-style dataset.
        ended: whether the dataset had ended.
        digest: a checksum of some samples of the epoch, for an iterable dataset without a state; otherwise None.
        base: an earlier snapshot, or None before the first epoch. A resumed reader loads `base`, and then repeats the
            epochs in `later`.
        later: the number of batches that were read in each epoch after `base`; None for a position within an epoch.
        unbegun: whether the snapshot is from before the first epoch.
        then: the generators' states at the beginning of the epoch, if they differ from `random`.
        now: the states of the generators for recomputing the last `now_since` batches.
        now_since: the number of batches that were read with the generators `now`.
        unstarted: in a worker, whether the main process took the snapshot before the loader's first epoch.
    """

    dataset: Any = None
    iterator: Any = None
    collate: Any = None
    random: Moment | None = None
    since: Any = 0
    ended: bool = False
    digest: int | None = None
    base: ReadingPosition | None = None
    later: Sequence[int] | None = None
    unbegun: bool = False
    then: Moment | None = None
    now: Moment | None = None
    now_since: int = 0
    unstarted: bool = False

    @property
    def has_state(self) -> bool:
        return not (self.dataset is None and self.iterator is None and self.collate is None)

    @property
    def is_of_dataset(self) -> bool:
        """Whether the position is a state of the dataset or its iterator, instead of a number of batches."""
        return not (self.dataset is None and self.iterator is None)

    @property
    def origin(self) -> ReadingPosition | None:
        """The snapshot that a resumed reader loads before it rereads batches, or None."""
        if self.later is None:
            return self
        if self.base is not None or self.later:
            return self.base
        own = self.iterator if self.dataset is None else self.dataset
        return ReadingPosition(own, None, self.collate, unbegun=True)

    def copied(self) -> ReadingPosition:
        """Returns a position with copied states, because user code may modify the originals."""
        if not self.has_state and self.base is None:
            return self
        dataset, iterator, collate = copied(self.dataset), copied(self.iterator), copied(self.collate)
        base = self.base and self.base.copied()
        return self._replace(dataset=dataset, iterator=iterator, collate=collate, base=base)

    def frozen(self) -> bytes:
        return freeze(tuple(self))

    @classmethod
    def thawed(cls, frozen: bytes) -> ReadingPosition:
        return cls(*pickle.loads(frozen))


class OrderState(NamedTuple):
    """The position of the sampler, and the generators for drawing the order and the seeds.

    Args:
        yielded: the number of indices, or batches of indices, that the user has received.
        is_users: whether `sampler` and `iterator` are states of a user's sampler.
        is_batched: whether `iterator` is the state of a `BatchSampler`'s iterator, whose keys are known.
        indices: the indices that the sampler returned before its state was saved, but whose batches the user has not
            received.
        indices_since: the number of indices that the sampler returned after its state was saved.
        ahead: for a sampler without a state, the number of drawn indices (or samples, if this package forms the
            batches) that the user had not received.
        used_up: whether the sampler had returned all indices.
        draws: an entry for each random draw of the sampler after other code had used the generator: the number of
            indices before the draw, and the states of the generators.
        digest: a checksum of the sampler's indices.
        generators: the states of the generators at the time of the state, in the saved form.
        at_iter: the states of the generators when the iterator was created, for a sampler without a position.
        at_first: the generators' states before the first index was drawn, if they differ from `at_iter`.
        batch_size: the number of samples per batch, if the sampler provides it.
    """

    yielded: int = 0
    sampler: Any = None
    iterator: Any = None
    is_users: bool = False
    is_batched: bool = False
    indices: Sequence[Any] = ()
    indices_since: int = 0
    ahead: int = 0
    used_up: bool = False
    draws: Sequence[list[Any]] = ()
    digest: SampleDigest | None = None
    generators: Moment | None = None
    at_iter: Moment | None = None
    at_first: Moment | None = None
    batch_size: int | None = None
    epoch: int | None = None


class LoaderFacts(NamedTuple):
    """Properties of a loader that must be equal in another loader that loads its state. An unknown property is None.

    Args:
        sampler: the name of the sampler's class; None if the sampler is a list or another sequence.
        rank: the rank of a sampler that splits the dataset among ranks, or the rank in `torch.distributed`.
        ranks: the number of ranks of a sampler that splits the dataset among ranks.
    """

    sampler: str | None = None
    length: int | None = None
    rank: int | None = None
    ranks: int | None = None


class EpochState(NamedTuple):
    """The state of a loader.

    Args:
        positions: the position of each worker; without workers, only that of the main process. A missing position is
            None.
        workers: the number of workers that share the dataset; 0 for a loader without workers.
        given: the number of batches of the epoch that the user has received.
        unstarted: whether no batch had been read when the state was saved.
        skipped: the counts of skipped samples; None if samples are not skipped.
        base_seed: the seed from which the workers' seeds are derived.
        shared_seed: the epoch's seed for pipes of torch.
        passing_over: for a state of torchdata 0.11, the number of batches that a resumed loader must read and drop.
        kind: the dataset's kind in PyTorch's loader, map-style or iterable; not contained in a loaded state.
        is_own_iterator: whether an iterable dataset is its own iterator.
    """

    order: OrderState
    positions: Sequence[ReadingPosition | None]
    workers: int
    facts: LoaderFacts
    given: int = 0
    finished: bool = False
    unstarted: bool = False
    skipped: Counts | None = None
    length_called: Any = None
    base_seed: Any = None
    shared_seed: int | None = None
    next_worker: int = 0
    passing_over: int = 0
    kind: int = 0
    is_own_iterator: bool = False

    @property
    def is_over(self) -> bool:
        return self.finished or self.unstarted


@dataclass
class _Trail:
    """A snapshot of an iterable dataset, and the batches and epochs that were read after the snapshot.

    Before the first batch of an epoch, the last snapshot is from the previous epoch. Some datasets continue from the
    position that the previous epoch reached, and other datasets start over. Rereading the recorded batches and epochs
    leads both kinds to the correct position.

    Args:
        base: a snapshot, which may be pickled; None if no snapshot was taken or loaded.
        since: the number of batches that were read in the epoch of the snapshot, after the snapshot.
        later: the number of batches that were read in each epoch after the epoch of the snapshot.
        is_whole: whether a reader has the snapshot's position as soon as it has loaded the snapshot. Otherwise, the
            reader must also read a batch, because a generator function applies a loaded state only when it yields an
            item.
    """

    base: ReadingPosition | bytes | None = None
    since: int = 0
    later: list[int] = field(default_factory=list)
    is_whole: bool = True

    @property
    def is_walked(self) -> bool:
        return bool(self.since or self.later)

    def position(self, now: ReadingPosition) -> ReadingPosition:
        base = self.thawed()
        bare = base and ReadingPosition(*base[:3], ended=base.ended, unbegun=base.unbegun)
        random = base.random if base else {}
        return now._replace(base=bare, random=random, since=self.since, later=list(self.later))

    def thawed(self) -> ReadingPosition | None:
        return ReadingPosition.thawed(self.base) if isinstance(self.base, bytes) else self.base


class Trails:
    """The last two snapshots of an iterable dataset, with the batches that were read after each snapshot."""

    def __init__(self, position: ReadingPosition | None = None) -> None:
        self._trails = [_Trail()]
        if position is not None:
            base = position.origin
            if base is not None and position.later is not None:
                base = base._replace(random=position.random)
            self._trails = [_Trail(base, position.since, list(position.later or ()))]

    @property
    def stand_at_an_end(self) -> bool:
        """Whether the last snapshot is from the end of an epoch, and no later epoch has begun."""
        newest = self._trails[-1]
        return newest.is_whole and newest.base is not None and not newest.is_walked

    @property
    def is_unknown(self) -> bool:
        return self._trails[-1].base is None and not self._trails[-1].is_walked

    @property
    def is_inside(self) -> bool:
        return not self._trails[-1].later and self._trails[-1].base is not None

    def count(self) -> None:
        # Ctrl-C cannot interrupt the following lines, because they contain neither calls nor loops.
        first, last = self._trails[0], self._trails[-1]
        if first.later:
            first.later[-1] += 1
        else:
            first.since += 1
        if last is first:
            return
        if last.later:
            last.later[-1] += 1
        else:
            last.since += 1

    def note(self, position: ReadingPosition | bytes, is_end: bool) -> None:
        fresh = _Trail(position, is_whole=is_end)
        if self._trails[-1].is_walked:
            self._trails = [self._trails[-1], fresh]
        else:
            self._trails[-1] = fresh

    def begin(self) -> None:
        newest = self._trails[-1]
        trail = newest if newest.is_whole or newest.is_walked else self._trails[0]
        if len(trail.later) >= _MOST:
            trail = _Trail(newest.base, max(1, newest.since))
        trail.later.append(0)
        self._trails = [trail]

    def at_the_beginning(self, now: ReadingPosition) -> ReadingPosition:
        """Returns the position before the first batch of an epoch, given a position with the current states."""
        return self._trails[0].position(now)

    def inside(self, now: ReadingPosition) -> ReadingPosition:
        """Returns the position after at least one batch of an epoch, given a position with the current states."""
        trail = self._trails[-1]
        if trail.later:
            return trail.position(now)._replace(ended=False)
        base = trail.thawed()
        assert base is not None
        return base._replace(since=trail.since)


class Progress:
    """The position of one worker after the batches that the main process has received."""

    def __init__(self, since: Any) -> None:
        self.position: bytes | ReadingPosition | None = None
        self.since = since
        self.ended = False
        #: A checksum of some samples that the worker has read in this epoch, for an iterable dataset without a state.
        self.digest: int | None = None

    def load(self, position: ReadingPosition | None) -> None:
        if position is not None:
            self.position, self.ended, self.digest = position, position.ended, position.digest

    def copied(self) -> Progress:
        other = copy.copy(self)
        other.since = copy.copy(self.since)
        return other

    def count(self, index: Any) -> None:
        if isinstance(self.since, list):
            self.since.append(index)
        else:
            self.since += 1

    def stand(self, frozen: bytes) -> None:
        """Records a pickled snapshot from the worker. Empty bytes mean that the worker's states have not changed."""
        self.since = type(self.since)()
        if frozen:
            self.position = frozen
        elif isinstance(self.position, ReadingPosition):
            self.position = self.position._replace(since=type(self.since)())

    def reached(self) -> ReadingPosition:
        """Returns the worker's position after the received batches."""
        if isinstance(self.position, bytes):
            self.position = ReadingPosition.thawed(self.position)
        position = self.position or ReadingPosition(since=type(self.since)())
        since, later, now_since = position.since, position.later, position.now_since
        ended = self.ended or position.ended
        if self.since:
            if later:
                later = [*later[:-1], later[-1] + self.since]
            else:
                since = since + self.since
            if position.now is not None:
                now_since += self.since
        elif ended == position.ended and self.digest == position.digest:
            return position
        return position._replace(since=since, later=later, ended=ended, digest=self.digest, now_since=now_since)

    def saved(self, is_stateful: bool) -> ReadingPosition | None:
        position = self.reached()
        has_position = self.position is not None or not self.since
        if isinstance(self.since, list) and not is_stateful and not position.random and has_position:
            return None
        return position._replace(random={name: encoded(one) for name, one in (position.random or {}).items()})

    def saved_of_program(self) -> ReadingPosition:
        """Converts the position of a loader without workers to the form of a worker's saved position."""
        position = self.reached()
        then, later = position.random or {}, position.later
        now, behind = position.now, position.now_since
        if now is None:
            now, behind = then, later[-1] if later else position.since
        random, at_first = ({name: encoded(one) for name, one in moment.items()} for moment in (now, then))
        at_first = {name: one for name, one in at_first.items() if one != random.get(name)}
        return position._replace(random=random, then=at_first, now=None, now_since=behind)
