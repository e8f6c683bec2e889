"""The iterator of a loader without workers, which reads in the main process."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import IterDataPipe, MapDataPipe

from torchdata._native import SharedIterator
from torchdata._stateful import copied, state_of
from torchdata.stateful_dataloader._drawing import Drawing
from torchdata.stateful_dataloader._generators import (
    GLOBAL,
    Moment,
    decoded,
    encoded,
    mark_of,
    put_back_afterwards,
    read,
    set_all,
)
from torchdata.stateful_dataloader._iterator import StatefulIterator
from torchdata.stateful_dataloader._pinning import pinned
from torchdata.stateful_dataloader._reading import Reader
from torchdata.stateful_dataloader._skipping import NOTHING, Counts, Skipped
from torchdata.stateful_dataloader._state import is_over

__all__ = ["InProcessIterator"]

#: A placeholder for no index.
_NONE = object()


class InProcessIterator(SharedIterator, StatefulIterator):
    """Reads each batch in this process when it is requested."""

    def __init__(self, loader: Any, state: dict[str, Any] | None) -> None:
        #: The global generators that had been used when the state was saved.
        self._moved: Moment = self._set_program_s(loader._drawing, state) if state is not None else {}
        super().__init__(loader, state)
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            torch.utils.data.graph_settings.apply_sharding(self._dataset, self._world_size, self._rank)
        # The previous epoch's reader has stored the state in which it left the dataset.
        self._reader: Reader = loader._reader or Reader(self._reading)
        self._reader.reading = self._reading
        loader._reader = self._reader
        how = self._reading
        self._reader.time_by(self._recorder.begin_here(self, how.dataset, how.is_iterable, how.collate_fn))
        #: The global generators when the dataset's iterator was created, because they may have shuffled the dataset.
        self._then: Moment = {}
        #: Their marks before the first read.
        self._marks: dict[str, Any] = {}
        #: The state of the collate function at that time, for a dataset that is reread from its beginning.
        self._collate: Any = None
        #: The last index drawn, and how many batches were returned before its batch.
        self._index: Any = _NONE
        self._before = 0
        #: The counts of skipped samples before it, if samples may be skipped.
        self._counts: Counts = {}, 0
        if state is not None and not is_over(state):
            self._go_on(state)
            return
        self._order.begin(self._sampler_iter)
        if self._reading.is_iterable:
            self._then = {name: read(name) for name in GLOBAL}
            self._marks = {name: mark_of(name) for name in GLOBAL}
            self._collate = copied(state_of(self._collate_fn))
        if state is None or (state["_num_workers"] and self._reading.is_iterable and not state["unstarted"]):
            self._reader.begin()
        else:
            with put_back_afterwards(GLOBAL):
                self._reader.restore({**state["places"][0], "random": None})
            self._reader.begin()

    def _set_program_s(self, drawing: Drawing, state: dict[str, Any]) -> Moment:
        """Resumes the program's global generators if they were used while the epoch was read.

        The dataset shares these generators with the program. A generator that the program has seeded for a new epoch is
        kept.
        """
        place = state["places"][0]
        if state["_num_workers"] or place is None:
            return {}
        moved = {name: decoded(name, one) for name, one in (place["random"] or {}).items()}
        if is_over(state):
            moved = {name: one for name, one in moved.items() if not drawing.was_set(name, one)}
        set_all(moved)
        drawing.loaded(moved)
        return {} if is_over(state) else moved

    def _go_on(self, state: dict[str, Any]) -> None:
        self._sampler_iter = self._order.restore(state)
        place = state["places"][0] or {}
        then = {}
        if self._moved:
            then = {name: decoded(name, one) for name, one in (place.get("random_then") or {}).items()}
        self._num_yielded = state["_num_yielded"]
        behind, moved = place.get("random_since", 0), self._moved
        if behind:  # the snapshot is from a worker, whose generators were saved some batches earlier
            place = {**place, "now": moved, "now_since": behind}
        with put_back_afterwards(GLOBAL):
            self._then = {name: read(name) for name in GLOBAL} | then
            place = place and {**place, "random": None}
            if not self._has_read:  # the epoch begins here, as in `__init__`
                set_all(self._then)
                self._moved = {}
                if self._reading.is_iterable:
                    self._marks = {name: mark_of(name) for name in GLOBAL}
            if place and self._reads_again(place):
                self._collate = place["collate_state"]
            if place:
                self._restore(place)
            else:
                self._reader.begin()
            moved = {name: read(name) for name in moved} if behind else {}
        set_all(moved)
        if self._has_read:
            self._marks = {name: mark_of(name) for name in GLOBAL}
        self._pass_over()

    def _restore(self, place: dict[str, Any]) -> None:
        """Moves the reading to a position in this epoch."""
        if self._reads_again(place):
            # Read from the beginning, with the generators from that time.
            set_all(self._then)
            place = {**place, "collate_state": self._collate, "since": self._num_given}
        self._reader.restore(place)

    def _reads_again(self, place: dict[str, Any]) -> bool:
        states = place["dataset_state"], place["dataset_iter_state"]
        return self._reading.is_iterable and all(one is None for one in states)

    def _next_data(self) -> Any:
        skipped, data = self._skipped, NOTHING
        while data is NOTHING:
            self._index = _NONE  # an empty batch, all of whose samples were skipped, is passed over
            if skipped is not None:
                self._counts = skipped.counts
            self._index = self._next_index()
            if not self._marks:
                self._marks = {name: mark_of(name) for name in GLOBAL}
            if self._reader.must_go_back:
                with put_back_afterwards(GLOBAL):
                    self._restore({**copied(self._reader.place()), "random": None})
            self._reader.keep_place()
            data = self._reader.read(self._index) if skipped is None else self._read_counting(skipped)
            if data is NOTHING:
                self._num_empty += 1
                self._order.give_back(self._index, self._reader.left)
        if self._pin_memory:
            data = pinned(data, self._pin_memory_device)
        return data

    def _read_counting(self, skipped: Skipped) -> Any:
        """Returns the batch of the current index; `NOTHING` if all its samples were skipped."""
        try:
            data = self._reader.read(self._index)
        except Exception:
            self._note_skipped(skipped)
            raise
        self._note_skipped(skipped)
        return data

    def _note_skipped(self, skipped: Skipped) -> None:
        found = self._reader.skipped
        skipped.count(self._reader.seen, found)
        skipped.tell(found)

    def next(self) -> Any:
        """Returns the next batch. Only one thread at a time may call it."""
        if (successor := self._taken_over()) is not None:
            return next(successor)
        self._index, self._before = _NONE, self._num_yielded
        try:
            return StatefulIterator.__next__(self)
        except Exception:
            self._index = _NONE
            raise
        except BaseException:  # Ctrl-C: the next call reads this batch, here or after a resume
            if self._is_under_way:
                index, self._index = self._index, _NONE
                self._order.put_back(index)
                if self._skipped is not None:
                    self._skipped.counts = self._counts
            raise

    @property
    def _is_under_way(self) -> bool:
        """Returns whether a batch is in progress. A signal handler may request the state at that time."""
        return self._index is not _NONE and self._num_yielded == self._before

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the iterator."""
        is_under_way = self._is_under_way
        place = copied(self._reader.place(is_given=not is_under_way))
        if not is_under_way:
            self._reader.took(place)
        begins = not self._has_read and not self._finished
        again = self._reading.is_iterable and not self._reader.restores_place
        # Before the first batch, it is unknown which generators the samples use.
        moved = GLOBAL if begins else self._moved_names()
        now = {name: encoded(read(name)) for name in moved}
        place = {**place, "random": now, "random_since": 0}
        if again:
            place["collate_state"] = self._collate
        if again or (begins and self._reading.is_iterable):
            then = {name: encoded(self._then[name]) for name in moved}
            place["random_then"] = {name: one for name, one in then.items() if one != now[name]}
        waiting = [self._index] if is_under_way else []
        return self._state(waiting, [place], 0, self._counts if is_under_way else None)

    def _moved_names(self) -> list[str]:
        """Returns the global generators that were used while this epoch was read."""
        return [name for name, mark in self._marks.items() if name in self._moved or mark_of(name) != mark]
