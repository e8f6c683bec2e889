"""The iterator of a loader without workers: reads in the process of the program."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import IterDataPipe, MapDataPipe

from torchdata._native import SharedIterator
from torchdata.stateful_dataloader._frozen import copied
from torchdata.stateful_dataloader._iterator import StatefulIterator
from torchdata.stateful_dataloader._order import state_of
from torchdata.stateful_dataloader._pinning import pinned
from torchdata.stateful_dataloader._random import global_state, restored_afterwards, set_global_state
from torchdata.stateful_dataloader._reading import Reader

__all__ = ["InProcessIterator"]

#: Stands for no index.
_NONE = object()


class InProcessIterator(SharedIterator, StatefulIterator):
    """Reads in this process, a batch when it is asked for."""

    def __init__(self, loader: Any, state: dict[str, Any] | None) -> None:
        super().__init__(loader, state)
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            torch.utils.data.graph_settings.apply_sharding(self._dataset, self._world_size, self._rank)
        self._reader = Reader(self._reading, owns_generators=False)
        #: The global generators when the dataset's iterator was made: it may have been shuffled by them.
        self._random: dict[str, Any] | None = None
        #: The collate function's state then, where the dataset is read again from its beginning.
        self._collate: Any = None
        #: The index that was drawn last.
        self._index: Any = _NONE
        if state is None:
            self._order.begin(self._sampler_iter)
            self._begin(None)
        elif state["_iterator_finished"]:
            self._order.begin(self._sampler_iter)
            self._begin(state["_places"][0] if state["_places"] else None, fresh=True)
        else:
            self._go_on(state)

    def _begin(self, place: dict[str, Any] | None, fresh: bool = False) -> None:
        if self._reading.is_iterable:
            self._random = global_state()
            self._collate = copied(state_of(self._collate_fn))
        self._reader.begin(place, fresh)

    def _go_on(self, state: dict[str, Any]) -> None:
        self._sampler_iter = self._order.restore(state)
        place = state["_places"][0] if state["_places"] else None
        random = None if place is None else place.get("random")
        if not self._reading.is_iterable or self._reader_restores(place):
            self._reader.begin(place)
        else:
            # Read from the beginning, under the generators that were in force then.
            with restored_afterwards():
                if random is not None:
                    set_global_state(random)
                self._random = global_state()
                self._collate = None if place is None else place["collate_state"]
                again = None if place is None else {**place, "since": state["_num_yielded"], "random": None}
                self._reader.begin(again)
        self._num_yielded = state["_num_yielded"]
        self._pass_over()

    def _reader_restores(self, place: dict[str, Any] | None) -> bool:
        return place is not None and (place["dataset_state"] is not None or place["dataset_iter_state"] is not None)

    def _next_data(self) -> Any:
        self._index = self._next_index()
        data = self._reader.read(self._index)
        if self._pin_memory:
            data = pinned(data, self._pin_memory_device)
        return data

    def next(self) -> Any:
        """The next batch, for one thread at a time."""
        yielded, self._index = self._num_yielded, _NONE
        try:
            return StatefulIterator.__next__(self)
        except Exception:
            raise
        except BaseException:  # Ctrl-C: the next call reads that batch, here or where the state is loaded
            if self._index is not _NONE and self._num_yielded == yielded:
                self._order.put_back(self._index)
            raise

    def state_dict(self) -> dict[str, Any]:
        """Where the iterator stands."""
        place = {**copied(self._reader.place()), "random": self._random}
        if not self._reader.restores_place:
            place["collate_state"] = self._collate
        return self._state([], [place], 0)
