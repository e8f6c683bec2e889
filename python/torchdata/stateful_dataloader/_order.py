"""Determines the order of an epoch: draws the next index or batch, and saves and restores the order.

Indices are drawn from the loader's sampler as in PyTorch's loader. If workers read ahead, the sampler has returned
indices of batches that the user has not received. A state contains the position after the last received batch, not
after the last drawn index. The data in a state depend on the sampler:

- For PyTorch's `RandomSampler`, a state contains the generator's state before the order was drawn, and the number of
  indices that the user has received.
- If the sampler or its iterator has `state_dict`, the loader calls `state_dict` every `snapshot_every_n_steps` indices,
  and stores each result until the user has received the batch of the index.
- For any other sampler, a resumed loader restores the generators' states from the beginning of the epoch and rereads
  the sampler, which then returns the same indices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from inspect import GEN_CREATED, getgeneratorstate, isgenerator
from itertools import repeat
from typing import Any

from torch.utils.data import BatchSampler as TorchBatchSampler
from torch.utils.data import DistributedSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data import RandomSampler as TorchRandomSampler
from torch.utils.data.dataloader import _InfiniteConstantSampler

from torchdata._handlers import FailuresSuppressed
from torchdata._stateful import copied, is_same, is_stateful, load_into, state_of
from torchdata.stateful_dataloader._drawing import Drawing, Draws, Replay
from torchdata.stateful_dataloader._fitting import epoch_of, innermost_of, iterates_as, set_epoch, unstarted_sampler
from torchdata.stateful_dataloader._generators import GLOBAL, Moment
from torchdata.stateful_dataloader._layout import BatchesState, parse_indices
from torchdata.stateful_dataloader._position import UNKNOWN, OrderState
from torchdata.stateful_dataloader.sampler import (
    BatchIndices,
    BatchSampler,
    RandomIndices,
    RandomSampler,
    StatefulDistributedSampler,
    pass_over,
)

_NONE: Any = object()
_PLAIN = (SequentialSampler, _InfiniteConstantSampler, list, tuple, range)
_RANDOM = (TorchRandomSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
# Samplers of these types draw random numbers only from torch's global generator, and only for the first index.
_KNOWN = (*_PLAIN, *_RANDOM, DistributedSampler, StatefulDistributedSampler)


#: The error message for a state that is requested while the sampler computes an index.
_WITHIN_A_DRAW = (
    "state_dict() was called while the sampler computes an index, in the sampler or in a signal handler: let the "
    "handler set a flag, and call state_dict() between two batches"
)
#: The error message if Ctrl-C has interrupted a sampler at its first index, after the sampler had changed its
#: attributes.
_CHANGED = (
    "Ctrl-C interrupted {} while it computed its first index, and changed its state, so this epoch cannot continue: "
    "create the sampler and the loader again, or load a saved state"
)


def _changes(before: Moment, after: Moment) -> Moment:
    return {key: value for key, value in after.items() if before.get(key) != value}


def _is_known(index_sampler: Any) -> bool:
    innermost = innermost_of(index_sampler)
    is_outer_known = index_sampler is innermost or type(index_sampler) in (TorchBatchSampler, BatchSampler)
    return is_outer_known and type(innermost) in _KNOWN


def generators_drawn_by(index_sampler: Any) -> tuple[str, ...]:
    return ("torch",) if _is_known(index_sampler) else GLOBAL


class IndexOrder:
    """Draws the indices of an epoch from the sampler, at most `ahead` indices before the first batch is returned."""

    def __init__(self, loader: Any, drawing: Drawing, ahead: int) -> None:
        self._sampler = loader._index_sampler
        self._drawing, self._ahead = drawing, ahead
        self._every = max(1, loader.snapshot_every_n_steps or 1)
        innermost = innermost_of(self._sampler)
        self._is_known = _is_known(self._sampler)
        self._size: int | None = getattr(self._sampler, "batch_size", None)
        self._is_plain = self._is_known and isinstance(innermost, _PLAIN)
        self._never_ends = type(innermost) is _InfiniteConstantSampler
        #: Whether the sampler is computing an index.
        self._is_drawing = False
        self.begin(iter(()))
        #: The generators' states before the sampler's iterator was created. `_at_first` contains the generators' states
        #: before the first index.
        self._at_iter: Moment = {}
        self._at_first: Moment | None = None
        # The sampler's epoch when the order was determined.
        self._epoch: int | None = None
        self._draws = Draws(drawing)
        self._is_kept = False

    def note_random(self) -> None:
        self._at_iter = {} if self._is_plain else self._drawing.now()
        self._at_first, self._epoch = None, epoch_of(self._sampler)

    def begin(self, iterator: Iterator[Any]) -> None:
        """Begins an epoch. `note_random` records the generators' states, and must be called before the sampler's
        iterator is created."""
        self._iterator: Iterator[Any] = iterator
        # Indices that were drawn in advance. `draw` first returns the indices in `_pending`, and then draws new ones.
        self._pending: deque[Any] = deque()
        #: The index that `draw` is about to return, so that Ctrl-C cannot lose the index. The index is stored in
        #: `_read` until `drawn` counts it, and then in `_counted`.
        self._read = self._counted = _NONE
        #: Whether Ctrl-C has ended the sampler's iterator, because the iterator is a generator.
        self._is_broken = False
        #: Whether Ctrl-C has interrupted the sampler's iterator without ending it.
        self._is_cut = False
        #: Indices that the saved sampler had returned for batches that the user had not received. `_is_used_up` is True
        #: if the saved sampler had returned all indices of its epoch.
        self._early, self._is_used_up = deque[Any](), False
        #: Saved states of a user's sampler: the number of returned indices, and the states of the sampler, its iterator
        #: and the generators.
        self._kept: deque[tuple[int, Any, Any, Moment]] = deque()
        self._has_holes = False
        self.drawn, self._ended = 0, False
        #: For a user's sampler: its state before the first index was requested; `_NONE` if the loaded state is from
        #: after the first index.
        self._unread_state: Any = None

    def draw(self) -> Any:
        if self._counted is _NONE:
            self._count_next()
        # KeyboardInterrupt cannot be raised in the following lines, which contain neither calls nor loops.
        index, self._counted = self._counted, _NONE
        return index

    def _count_next(self) -> None:
        if self._pending:
            self._counted = self._pending[0]
            del self._pending[0]
        else:
            self._draw()

    def _draw(self) -> None:
        if self._ended:
            raise StopIteration
        if self._is_broken:
            self._draw_again()
            return
        if (self._is_known and self.drawn > 0) or self._is_plain:
            self._next()
            return
        with self._drawing.under_way():
            if self.drawn == 0 and not (self._early or self._is_cut) and self._read is _NONE:
                self._at_first = self._drawing.now()
                self._draws.begin(self._at_first)
                self._note_epoch()
                self._unread_state = _NONE if self._unread_state is _NONE else self._own_state()
            if self._is_known:
                self._next()
                return
            early, drawn = len(self._early), self.drawn
            number = self._returned + early
            self._draws.before()
            self._next()
            indices = self._counted if isinstance(self._iterator, BatchIndices) else [self._counted]
            self._draws.after(number, drawn, indices[early:])

    def _note_epoch(self) -> None:
        """If no index was requested yet, records the sampler's epoch, because some samplers determine the order only at
        the first request."""
        one = self._iterator.inner if isinstance(self._iterator, BatchIndices) else self._iterator
        if one is None or (isgenerator(one) and getgeneratorstate(one) == GEN_CREATED):
            self._epoch = epoch_of(self._sampler)

    @property
    def _returned(self) -> int:
        """The number of indices that the sampler has returned; for a user's batch sampler, the number of batches."""
        return self._iterator.samples_yielded if isinstance(self._iterator, BatchIndices) else self.drawn

    def _next(self) -> None:
        if self._read is _NONE:
            indices = map(next, repeat(self._iterator, 1))
            self._is_drawing = True
            try:
                for self._read in indices:
                    break
                else:
                    self._ended = True
                    raise StopIteration
            except Exception:
                raise
            except BaseException:
                inner = self._iterator.inner if isinstance(self._iterator, BatchIndices) else self._iterator
                self._is_broken = getattr(inner, "gi_frame", self) is None
                begins = inner is None or (self._is_broken and not self.drawn and not self._early)
                if begins and self._at_first and not self._is_known:
                    self._drawing.set(self._at_first)  # the sampler draws its order again
                self._is_cut = not begins
                raise
            finally:
                self._is_drawing = False
        drawn = self.drawn + 1
        if drawn == 1:
            self._is_kept = self._keeps_position
        if self._is_kept and (drawn % self._every == 0 or drawn == 1):
            self._keep(drawn)
        self.drawn, self._counted, self._read = drawn, self._read, _NONE

    def _draw_again(self) -> None:
        """Creates a new iterator after Ctrl-C has ended the sampler's iterator. Skips the indices that were already
        drawn, and draws the next index."""
        epoch, before, draws = epoch_of(self._sampler), vars(self).copy(), vars(self._draws).copy()
        set_epoch(self._sampler, self._epoch)
        try:
            with self._drawing.unchanged_on_error():
                self._restore_and_draw()
        except BaseException:  # after another Ctrl-C, the next call iterates over the sampler once more
            vars(self).update(before)
            vars(self._draws).update(draws)
            raise
        finally:
            set_epoch(self._sampler, epoch)

    def _restore_and_draw(self) -> None:
        if self._never_ends or (self._keeps_user_s and not self.drawn):
            if not is_same(self._unread_state, self._own_state()):
                raise RuntimeError(_CHANGED.format(type(innermost_of(self._sampler)).__name__))
            self._iterator, self._is_broken = iter(self._sampler), False
        else:
            self.restore(self.state_at([], False, None)(self._drawing.now()))
        self._count_next()

    def put_back(self, index: Any) -> None:
        self._pending.appendleft(index)

    def _own_state(self) -> Any:
        """Returns the state of a user's sampler; None if the sampler cannot save a state before its first index."""
        with FailuresSuppressed():
            return None if self._is_known else copied(state_of(innermost_of(self._sampler)))

    @property
    def _keeps_position(self) -> bool:
        if isinstance(self._iterator, BatchIndices):
            return self._iterator.keeps_position
        if type(self._iterator) is RandomIndices:
            return False
        return is_stateful(self._sampler) or is_stateful(self._iterator)

    def _keep(self, drawn: int) -> None:
        kept = self._kept
        now = self._drawing.now()
        kept.append((drawn, copied(state_of(self._sampler)), copied(state_of(self._iterator)), now))
        while len(kept) > 1 and kept[1][0] < drawn - self._ahead:
            kept.popleft()

    # -- saving ------------------------------------------------------------------------------------

    def state_at(
        self, waiting: list[Any], finished: bool, batches: tuple[int, int] | None, in_order: bool = True
    ) -> Callable[[Moment], OrderState]:
        """Returns a function that creates an `OrderState` with the position after the last batch that the user
        received.

        The returned function takes the generators' states, and can still be called after the next epoch has begun.

        Args:
            waiting: the indices of batches that the user has not received, in the order of drawing.
            batches: the number of returned batches and the batch size; None for a map-style dataset.
            in_order: whether the loader returns the batches in the order of their indices.
        """
        read = [] if self._read is _NONE else [self._read]
        waiting = [*waiting, *(() if self._counted is _NONE else (self._counted,)), *read, *self._pending]
        received = self.drawn + len(read) - len(waiting)
        indices: list[Any] = []
        if waiting and (self._has_holes or not in_order):
            indices, waiting = waiting, []
        encoded, iterator, inner = self._drawing.encoded, None, innermost_of(self._sampler)
        self._note_epoch()
        epoch = epoch_of(self._sampler) if finished else self._epoch
        if self._keeps_position:
            state, then = self._kept_state(OrderState(received, indices=indices), waiting)
            state = state._replace(batch_size=self._size, epoch=epoch)
            return lambda now: state._replace(generators=encoded(now | then))
        if batches is not None:
            received, iterator = batches[0], BatchesState(batches[0] * batches[1]).dump() if batches[1] else None
        elif isinstance(self._iterator, (BatchIndices, RandomIndices)):
            iterator = self._iterator.state_before(self._size_of(waiting))
        state = OrderState(received, None, iterator, indices=indices, batch_size=self._size, epoch=epoch)
        # The state of a `RandomSampler` suffices to draw the order again, because it contains the generator's state.
        is_random = type(inner) is RandomSampler and (self._sampler is inner or type(self._sampler) is BatchSampler)
        if self._is_plain or is_random or finished:
            return lambda now: state._replace(generators=encoded(now))
        return self._with_beginning(state, waiting)

    def _size_of(self, indices: list[Any]) -> int:
        return sum(map(len, indices)) if isinstance(self._iterator, BatchIndices) else len(indices)

    def _with_beginning(self, state: OrderState, waiting: list[Any]) -> Callable[[Moment], OrderState]:
        """Adds to `state` the data for rereading a sampler from its beginning: the generators' initial states, the
        number of returned indices, and the recorded draws."""
        if self._is_drawing and self.drawn and not self._is_known and self._draws.is_within():
            raise RuntimeError(_WITHIN_A_DRAW)
        has_ended = self._ended or self._is_used_up
        if isinstance(self._iterator, BatchIndices):
            has_ended |= self._iterator.has_ended
        state = state._replace(
            ahead=self._size_of(waiting) + len(self._early),
            used_up=has_ended,
            draws=list(self._draws.noted),
            digest=None if self._is_known or not self.drawn else self._draws.digest,
        )
        encoded, iter_, first = self._drawing.encoded, self._at_iter, self._at_first
        # A first draw that was not finished is repeated after resuming, so the generators' states from before this draw
        # are saved.
        is_within = (self._is_drawing or self._is_cut) and self._read is _NONE
        unread = first if is_within and not self.drawn else None

        def at(now: Moment) -> OrderState:
            now = unread or now
            at_iter, at_first = encoded(iter_), None if first is None else encoded(first)
            return state._replace(
                at_iter=at_iter,
                at_first=at_first and _changes(at_iter, at_first),
                generators=_changes(at_iter if at_first is None else at_first, encoded(now)),
            )

        return at

    @property
    def _keeps_user_s(self) -> bool:
        """Returns whether the sampler itself or its iterator has a user-defined state."""
        return self._keeps_position or is_stateful(innermost_of(self._sampler))

    def draw_first(self) -> None:
        """Draws the first index of a user's sampler before a state is saved, because the state must contain this
        index."""
        begins = self.drawn == 0 and self._read is _NONE and not self._ended
        if begins and not self._never_ends and self._keeps_user_s:
            if self._is_drawing:
                raise RuntimeError(_WITHIN_A_DRAW)
            self._draw_ahead()

    def _draw_ahead(self) -> None:
        with suppress(StopIteration):
            self._draw()
            self._pending, self._counted = deque([*self._pending, self._counted]), _NONE

    def _kept_state(self, state: OrderState, waiting: list[Any]) -> tuple[OrderState, Moment]:
        """Adds to `state` the sampler's last recorded state before the batches that the user has not received. Returns
        the new state, and the generators' states that were recorded together with the sampler's state."""
        if not self._kept and self._read is not _NONE:
            self._keep(1)
        if not self._kept:
            own, inner = (None if one is UNKNOWN else one for one in unstarted_sampler(self._sampler))
            return state._replace(sampler=own, iterator=inner), {}
        received = state.yielded + len(state.indices)
        taken = [kept for kept in self._kept if kept[0] <= max(received, 1)]
        number, sampler, iterator, then = taken[-1] if taken else self._kept[0]
        state = state._replace(
            sampler=copied(sampler), iterator=copied(iterator), is_users=True,
            is_batched=iterates_as(self._sampler, BatchSampler),
        )  # fmt: skip
        if received == 0:
            state = state._replace(indices=waiting[:1])
        elif received > number:
            state = state._replace(indices_since=received - number)
        # A resumed sampler repeats the draws after its recorded state, so the states of its generators at the time of
        # the recorded state are saved.
        drawn = {key for key, last in self._draws.last.items() if last >= number}
        return state, {key: one for key, one in then.items() if isinstance(key, int) or key in drawn}

    # -- restoring ---------------------------------------------------------------------------------

    def restore(self, state: OrderState) -> Iterator[Any]:
        iter_, first, now = self._moments(state)
        self._at_iter, self._at_first, self._epoch = iter_, first, epoch_of(self._sampler)
        self.begin(iter(()))
        self._has_holes = len(state.indices) > 1
        with self._drawing.resumed(now):
            if state.at_iter is None or self._never_ends:
                self._load(state)
                # The generator of PyTorch's `RandomSampler` is not set, because `_load` has already drawn the order
                # from this generator.
                inner = innermost_of(self._sampler)
                self._drawing.set(now, but=inner.generator if isinstance(inner, TorchRandomSampler) else None)
                if self._is_kept and self.drawn:
                    number = self.drawn - state.indices_since
                    self._kept.append((number, state.sampler, state.iterator, self._drawing.now()))
                    # Some samplers apply a loaded state only when an index is requested, so an index is requested here.
                    self._draw_ahead()
            else:
                self._drawing.set(iter_)
                self._iterator = iter(self._sampler)
                if first is not None:
                    self._replay(first, state)
                self._drawing.set(now)
        return self._iterator

    def _moments(self, state: OrderState) -> tuple[Moment, Moment | None, Moment]:
        iter_ = state.at_iter or {}
        first = None if state.at_first is None else iter_ | state.at_first
        now = (iter_ if first is None else first) | (state.generators or {})
        return (
            self._drawing.decoded(iter_),
            None if first is None else self._drawing.decoded(first),
            self._drawing.decoded(now),
        )

    def _load(self, state: OrderState) -> None:
        drawn = state.yielded + len(state.indices)
        if is_stateful(self._sampler) and state.sampler is not None:
            load_into(self._sampler, state.sampler)
        self._iterator = iter(self._sampler)
        if state.iterator is not None and is_stateful(self._iterator):
            load_into(self._iterator, state.iterator)
        elif state.sampler is None and not self._never_ends:
            pass_over(self._iterator, drawn)
        self._pass_batches(state.indices_since, state.batch_size)
        self.drawn = drawn
        if isinstance(self._iterator, BatchIndices) and state.indices and state.batch_size not in (None, self._size):
            self._iterator.put_back([index for batch in state.indices for index in batch])
            self.drawn, self._unread_state = state.yielded, _NONE
        else:
            self._pending.extend(state.indices)
        self._is_kept = self._keeps_position

    def _replay(self, first: Moment, state: OrderState) -> None:
        received = self.drawn = state.yielded + len(state.indices)
        self._pending.extend(state.indices)
        batches = self._iterator if isinstance(self._iterator, BatchIndices) else None
        size = (state.batch_size or 1) if batches is not None else 1
        if batches is not None:
            is_counted = isinstance(state.iterator, dict)
            received = parse_indices(BatchesState, state.iterator).samples_yielded if is_counted else received * size
        # At the end of a sampler, some indices may not fill a batch, so `ahead` includes up to one more batch.
        ahead = state.ahead + (size if state.used_up else 0)
        replay = Replay(self._iterator if batches is None else iter(self._sampler.sampler))
        self._drawing.set(first)
        draws = [(number, self._drawing.decoded(moment)) for number, moment in state.draws]
        digest = replay.run(received, ahead, draws, self._drawing, state.digest)
        self._draws.begin(first, state.draws, digest)
        self._early, self._is_used_up, self._is_kept = replay.early, state.used_up, False
        if batches is None:
            self._iterator = replay
        else:
            batches.inner, batches.samples_yielded = replay, received

    def _pass_batches(self, count: int, old: int | None) -> None:
        if count == 0:
            return
        if not isinstance(self._iterator, BatchIndices) or old is None or old == self._size:
            pass_over(self._iterator, count)
        else:
            self._iterator.pass_samples(count * old, most_missing=old - 1)

    def follow(self, state: OrderState, unstarted: bool) -> None:
        _, _, now = self._moments(state)
        with self._drawing.resumed(now):
            inner, is_saved = innermost_of(self._sampler), not (state.sampler is None and state.iterator is None)
            if isinstance(inner, StatefulDistributedSampler):
                inner.next_yielded = None
            elif not unstarted and self._keeps_user_s and is_saved:
                self._load(state)
                self._pending.clear()
                self._end_again(state)
            self._drawing.set(now)

    def _end_again(self, state: OrderState) -> None:
        """Requests an index after the sampler's last index, because some samplers prepare the next epoch at this
        request."""
        try:
            next(self._iterator)
        except StopIteration:
            return
        # The sampler has returned an index after its last index, so it has begun its next epoch. Loading the saved
        # state a second time moves the sampler back to the end of its epoch.
        inner = innermost_of(self._sampler)
        of_batches = state.iterator or {} if isinstance(self._iterator, BatchIndices) else {}
        if is_stateful(self._sampler) and state.sampler is not None:
            load_into(self._sampler, state.sampler)
        elif is_stateful(inner) and "sampler_state" in of_batches:
            load_into(inner, of_batches["sampler_state"])
