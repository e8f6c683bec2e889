"""Defines the classes of a loader's state, which `_layout` converts to saved states (`dump`) and back (`parse`).

The main process has a `Progress` for each worker.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

from torchdata._handlers import FailuresSuppressed
from torchdata._stateful import StreamState, copied
from torchdata.datapipes._pipe.witnessing import SampleDigest
from torchdata.stateful_dataloader._generators import Moment, encoded

UNKNOWN: Any = object()
Counts = tuple[dict[str, int], int]


class ReadingPosition(NamedTuple):
    """The position of a reader in its dataset: a snapshot, and the batches that were read after the snapshot. Positions
    are never modified.

    Args:
        dataset: the state of the dataset; None without a state, or if the dataset is its own iterator.
        random: the states of the random generators when the snapshot was taken, or, without workers, when the loader's
            state was saved.
        since: the number of batches that were read after the snapshot; for a map-style dataset, their indices.
        ended: whether the dataset had ended.
        digest: a checksum of some samples of the epoch, for an iterable dataset without a state; otherwise None.
        follows_end: if the snapshot is from the beginning of an epoch, whether the previous epoch had ended; otherwise
            None.
        then: the generators' states at the beginning of the epoch, without states that equal `random`.
        now: the generators' states for recomputing the last `now_since` batches.
        now_since: the number of batches that are recomputed with the states `now`.
        unstarted: in a worker, whether the main process took the snapshot before the loader's first epoch.
    """

    dataset: Any = None
    iterator: Any = None
    collate: Any = None
    random: Moment | None = None
    since: Any = 0
    ended: bool = False
    digest: int | None = None
    follows_end: bool | None = None
    then: Moment | None = None
    now: Moment | None = None
    now_since: int = 0
    unstarted: bool = False

    @property
    def has_state(self) -> bool:
        return not (self.dataset is None and self.iterator is None and self.collate is None)

    @property
    def is_of_dataset(self) -> bool:
        """Whether the position is a state of the dataset or its iterator, and not a number of batches."""
        return not (self.dataset is None and self.iterator is None)

    @property
    def begins(self) -> bool:
        return self.follows_end is not None and not self.ended

    def of_stream(self, is_own_iterator: bool) -> StreamState:
        """Returns a `StreamState` with the states of the dataset and of its iterator. If the dataset is its own
        iterator, its state may be stored in `self.iterator`.
        """
        is_own = self.dataset is None and is_own_iterator
        own, inner = (self.iterator, None) if is_own else (self.dataset, self.iterator)
        return StreamState(own, inner, not self.begins, bool(self.follows_end or self.ended))

    def copied(self) -> ReadingPosition:
        """Returns a position with copied states, because user code may modify the originals."""
        states = [copied(state) for state in self[:3]]
        return ReadingPosition._make([*states, *self[3:]])

    def frozen(self) -> bytes:
        with FailuresSuppressed():
            return pickle.dumps(tuple(self), protocol=5)
        from torchdata._by_value import dumps

        return dumps(tuple(self))

    @classmethod
    def thawed(cls, frozen: bytes) -> ReadingPosition:
        return cls(*pickle.loads(frozen))


class OrderState(NamedTuple):
    """The position of the sampler, and the generators for drawing the order and the seeds.

    Args:
        yielded: the number of indices, or batches of indices, that the user has received.
        is_users: whether `sampler` and `iterator` contain the states of a user-defined sampler and its iterator.
        is_batched: whether `iterator` is the state of a `BatchSampler`'s iterator, which has known keys.
        indices: the indices that the sampler returned before its state was saved, for batches that the user has not
            received.
        indices_since: the number of indices that the sampler returned after its state was saved.
        ahead: for a sampler without a state, the number of drawn indices or samples that the user had not received.
        used_up: whether the sampler had returned all indices.
        draws: draws of the sampler that followed a use of the same generators by other code. Each entry of `draws`
            contains the number of earlier indices, and the generators' states.
        digest: a checksum of the sampler's indices.
        generators: the generators' states when the state was saved, as `encoded` returns them.
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
        positions: the position of each worker. Without workers, there is one position, for the main process. A missing
            position is None.
        workers: the number of workers that share the dataset; 0 for a loader without workers.
        received: the number of batches of the epoch that the user has received.
        unstarted: whether no batch had been read when the state was saved.
        skipped: the counts of skipped samples; None if samples are not skipped.
        base_seed: the seed for deriving the workers' seeds.
        shared_seed: the epoch's seed for pipes of torch.
        passing_over: the number of batches that a resumed loader must read and drop; needed for states of torchdata
            0.11.
        kind: the dataset's kind in PyTorch's loader, map-style or iterable; not contained in a loaded state.
        is_own_iterator: whether an iterable dataset is its own iterator.
    """

    order: OrderState
    positions: Sequence[ReadingPosition | None]
    workers: int
    facts: LoaderFacts
    received: int = 0
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


class Progress:
    """The position of one worker after the batches that the main process has received."""

    def __init__(self, since: Any) -> None:
        self.position: bytes | ReadingPosition | None = None
        self.since = since
        self.ended = False
        #: For an iterable dataset without a state, a checksum of some samples of this epoch; a resumed loader compares
        #: its own samples with this checksum.
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

    def restart_at(self, frozen: bytes) -> None:
        """Records a pickled snapshot that the worker has sent. Empty bytes mean that the snapshot would be equal to the
        worker's previous snapshot."""
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
        if self.since:
            now_since = position.now_since if position.now is None else position.now_since + self.since
            position = position._replace(since=position.since + self.since, now_since=now_since)
        return position._replace(ended=self.ended or position.ended, digest=self.digest)

    def saved(self, is_stateful: bool) -> ReadingPosition | None:
        position = self.reached()
        has_position = self.position is not None or not self.since
        if isinstance(self.since, list) and not is_stateful and not position.random and has_position:
            return None
        return position._replace(random={name: encoded(one) for name, one in (position.random or {}).items()})

    def saved_of_program(self) -> ReadingPosition:
        """Returns the position in the form that a loader without workers saves, for a worker that resumes an epoch
        which was begun without workers."""
        position = self.reached()
        then = position.random or {}
        now, since = position.now, position.now_since
        if now is None:
            now, since = then, position.since
        random, at_first = ({name: encoded(one) for name, one in moment.items()} for moment in (now, then))
        at_first = {name: one for name, one in at_first.items() if one != random.get(name)}
        return position._replace(random=random, then=at_first, now=None, now_since=since)
