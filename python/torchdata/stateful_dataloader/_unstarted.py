"""Builds a loader's state before its first loop, from facts that are available before an epoch begins.

Role: pure functions in the main process. They create no iterator of a dataset or of a user's sampler. The keys of
torchdata 0.11 never change, so states of such iterators are stored in this package's part of a state instead.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data.dataloader import _InfiniteConstantSampler

from torchdata._stateful import copied, is_stateful, state_of
from torchdata.stateful_dataloader._reading import NO_PLACE
from torchdata.stateful_dataloader._state import UNKNOWN
from torchdata.stateful_dataloader.sampler import BatchIndices, BatchSampler, RandomIndices, RandomSampler

__all__ = ["is_own_iterator", "shown", "unstarted_place", "unstarted_sampler"]


def unstarted_sampler(index_sampler: Any) -> dict[str, Any]:
    """Returns the states of a sampler and of its iterator, under the keys of torchdata 0.11."""
    found: dict[str, Any] = {"_sampler_iter_state": None, "_index_sampler_state": _told(index_sampler)}
    inner = getattr(index_sampler, "sampler", index_sampler)
    if isinstance(inner, _InfiniteConstantSampler):
        found["_sampler_iter_state"] = None if index_sampler is inner else {"samples_yielded": 0}
    elif _iterates_as(index_sampler, BatchSampler):
        found["_sampler_iter_state"] = state = BatchIndices(index_sampler).state_before(0)
        if is_stateful(inner) and (told := _told(inner)) is not UNKNOWN:
            state["sampler_state"] = told
    elif _iterates_as(index_sampler, RandomSampler):
        found["_sampler_iter_state"] = RandomIndices(index_sampler).state_dict()
    return found


def shown(index_sampler: Any, state: Any) -> Any:
    """Returns the part of a user's sampler iterator state with the keys that are fixed before an epoch."""
    if not _iterates_as(index_sampler, BatchSampler):
        return None
    return {key: state[key] for key in ("samples_yielded", "sampler_state") if key in state}


def is_own_iterator(dataset: Any) -> bool:
    """Returns whether an iterable dataset is its own iterator, so that the keys of the iterator's state are known."""
    return hasattr(dataset, "__next__")


def unstarted_place(dataset: Any, is_iterable: bool) -> dict[str, Any]:
    """Returns the snapshot of a reader that has not begun."""
    state: Any = _told(dataset)
    iterators: Any = None
    if is_iterable and is_own_iterator(dataset):
        state, iterators = None, state
    return NO_PLACE | {
        "dataset_state": state,
        "dataset_iter_state": iterators,
        "later": [] if is_iterable else None,
    }


def _told(one: Any) -> Any:
    """Returns a copy of an object's state; None if it has no state, `UNKNOWN` if the state is not available yet."""
    if not is_stateful(one):
        return None
    try:
        state = copied(state_of(one))
    except AttributeError:  # it is its own iterator and has not begun
        return UNKNOWN
    return UNKNOWN if state is None else state


def _iterates_as(one: Any, cls: Any) -> bool:
    """Returns whether the object's iterators belong to a sampler class."""
    of_object: Any = type(one)
    return isinstance(one, cls) and of_object.__iter__ is cls.__iter__
