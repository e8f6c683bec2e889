"""Checks whether a saved state fits a loader, and creates a loader's state before its first loop.

A state from between two epochs fits even a loader with another length of the dataset or another number of ranks. A
state from within an epoch fits only a loader with the same order. A state from before the epoch's first batch fits any
order; the epoch then starts over in the new order.

`unstarted_at` creates a loader's state without iterating over the dataset or the sampler.
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data.dataloader import _InfiniteConstantSampler

from torchdata._handlers import FailuresSuppressed
from torchdata._stateful import copied, is_stateful, state_of
from torchdata.stateful_dataloader._drawing import Moments
from torchdata.stateful_dataloader._generators import GLOBAL, encoded
from torchdata.stateful_dataloader._layout import BatchesState
from torchdata.stateful_dataloader._pipes import source_of
from torchdata.stateful_dataloader._position import UNKNOWN, EpochState, LoaderFacts, OrderState, ReadingPosition
from torchdata.stateful_dataloader.sampler import (
    BatchIndices,
    BatchSampler,
    RandomIndices,
    RandomSampler,
    StatefulDistributedSampler,
)

StateAt = Callable[[Moments], EpochState]


def innermost_of(index_sampler: Any) -> Any:
    return getattr(index_sampler, "sampler", index_sampler)


def iterates_as(one: Any, cls: Any) -> bool:
    of_object: Any = type(one)
    return isinstance(one, cls) and of_object.__iter__ is cls.__iter__


def _with_epoch(index_sampler: Any) -> Any:
    """Returns the sampler or batch sampler that has `set_epoch` and `epoch`, or None."""
    for one in (index_sampler, innermost_of(index_sampler)):
        if callable(getattr(one, "set_epoch", None)) and isinstance(getattr(one, "epoch", None), numbers.Integral):
            return one
    return None


def epoch_of(index_sampler: Any) -> int | None:
    one = _with_epoch(index_sampler)
    return None if one is None else int(one.epoch)


def set_epoch(index_sampler: Any, epoch: int | None) -> None:
    one = _with_epoch(index_sampler)
    if one is not None and epoch not in (None, one.epoch):
        one.set_epoch(epoch)


# -- before the first loop ---------------------------------------------------------------------------------


def unstarted_at(loader: Any) -> StateAt:
    """Returns a function that creates the state of a loader before its first epoch."""
    kind, workers = int(loader._dataset_kind), loader.num_workers
    dataset = source_of(loader.dataset) if kind else loader.dataset
    sampler, iterator = unstarted_sampler(loader._index_sampler)
    is_own_iterator = hasattr(dataset, "__next__")

    def position() -> ReadingPosition:
        found = _state_of(dataset)
        own, inner = (None, found) if kind and is_own_iterator else (found, None)
        return ReadingPosition(own, inner, follows_end=False if kind else None)

    here = None if workers else position()
    encoded_order = loader._drawing.encoded
    state = EpochState(
        OrderState(sampler=sampler, iterator=iterator, epoch=epoch_of(loader._index_sampler)),
        (),
        workers,
        facts_of(loader),
        unstarted=True,
        length_called=loader._IterableDataset_len_called,
        kind=kind,
        is_own_iterator=is_own_iterator,
    )

    def at(moments: Moments) -> EpochState:
        if here is None:  # workers share no state, because `torch.distributed.checkpoint` modifies states
            positions = [position() for _ in range(workers)]
        else:  # the dataset may draw random numbers from the program's generators
            positions = [here._replace(random={name: encoded(moments.program(name)) for name in GLOBAL})]
        order = state.order._replace(generators=encoded_order(moments.order))
        return state._replace(order=order, positions=positions)

    return at


def unstarted_sampler(index_sampler: Any) -> tuple[Any, Any]:
    own, inner, iterator = _state_of(index_sampler), innermost_of(index_sampler), None
    if isinstance(inner, _InfiniteConstantSampler):
        iterator = None if index_sampler is inner else BatchesState(0).dump()
    elif iterates_as(index_sampler, BatchSampler):
        found, iterator = _state_of(inner), BatchIndices(index_sampler).state_before(0)
        iterator |= {} if found is None or found is UNKNOWN else {"sampler_state": found}
    elif iterates_as(index_sampler, RandomSampler):
        iterator = RandomIndices(index_sampler).state_dict()
    return own, iterator


def _state_of(one: Any) -> Any:
    """Returns the state of an object: None without a state, and `UNKNOWN` if it has a state only during an
    iteration."""
    if not is_stateful(one):
        return None
    try:
        state = copied(state_of(one))
    except AttributeError:  # an object that is its own iterator may have no state before it iterates
        return UNKNOWN
    return UNKNOWN if state is None else state


# -- fitting -----------------------------------------------------------------------------------------------


def facts_of(loader: Any) -> LoaderFacts:
    sampler, length = innermost_of(loader._index_sampler), None
    # The type of a sequence is not recorded, because a list and a tuple may contain the same indices.
    name = None if isinstance(sampler, Sequence) else type(sampler).__name__
    if loader._dataset_kind == 0:
        with FailuresSuppressed():
            length = len(loader.dataset)
    ranks, rank = getattr(sampler, "num_replicas", None), getattr(sampler, "rank", None)
    if type(ranks) is not int or type(rank) is not int:
        is_ranked = torch.distributed.is_available() and torch.distributed.is_initialized()
        ranks, rank = None, torch.distributed.get_rank() if is_ranked else None
    return LoaderFacts(name, length, rank, ranks)


def fitted(state: EpochState, loader: Any, strict: bool) -> EpochState:
    """Raises ValueError if the loader's order differs from the saved order. With `strict=False`, returns a state
    without checksums, so that a different order and different samples raise no error."""
    there, here = state.facts, facts_of(loader)
    if here.rank != there.rank and None not in (here.rank, there.rank):
        warnings.warn(
            f"StatefulDataLoader: rank {here.rank} loads the state of rank {there.rank}, with its random numbers and "
            "the state of its dataset, so both ranks may draw the same augmentations. Save one state per rank, and "
            "load each rank's own state",
            RuntimeWarning,
            stacklevel=3,
        )
    if not strict:
        positions = [position and position._replace(digest=None) for position in state.positions]
        state = state._replace(order=state.order._replace(digest=None), positions=positions)
    if state.is_over:
        return state
    order, size = _other_order(there, here), _other_size(state, loader)
    if (order or size) and loader._dataset_kind == 0 and _is_before_first_batch(state, loader):
        return state._replace(unstarted=True)
    if order and strict:
        raise ValueError(order)
    if size:
        raise ValueError(size)
    if loader._dataset_kind == 1 and any(
        one and isinstance(one.since, list) and (one.is_of_dataset or state.workers) for one in state.positions
    ):
        raise ValueError("the state is damaged: 'fetcher_state' is None, but the dataset of the loader is iterable")
    _check_epoch(state, loader, strict)
    _check_workers(state, loader)
    return state


def _is_before_first_batch(state: EpochState, loader: Any) -> bool:
    """Returns False if a user's sampler has drawn a batch: the saved state of this sampler is from after that batch."""
    sampler = innermost_of(loader._index_sampler)
    is_users = is_stateful(sampler) and not isinstance(sampler, StatefulDistributedSampler)
    return state.order.yielded == 0 and not (state.order.indices and is_users)


def _other_order(there: LoaderFacts, here: LoaderFacts) -> str:
    for name, message in (
        ("sampler", "with a {there} as its sampler, and this loader has a {here}. Give the loader the same `shuffle`, "
         "`sampler` or `batch_sampler`"),
        ("ranks", "by one of {there} ranks, and the sampler of this loader divides the dataset among {here}. Use "
         "{there} ranks"),
        ("length", "of a dataset with {there} samples, and this one has {here}. Load the same dataset"),
    ):  # fmt: skip
        old, new = getattr(there, name), getattr(here, name)
        if None not in (old, new) and old != new:
            return (
                "StatefulDataLoader: the state was saved inside an epoch "
                + message.format(there=old, here=new)
                + ", or a state that was saved at the end of an epoch. load_state_dict(state, strict=False) skips "
                "the same number of batches of the new order"
            )
    return ""


def _other_size(state: EpochState, loader: Any) -> str:
    index_sampler = loader._index_sampler
    old, new = state.order.batch_size, getattr(index_sampler, "batch_size", None)
    if old is None or new is None or old == new:
        return ""
    if loader._dataset_kind == 1:
        if all(position is None or _is_exact(position) for position in state.positions):
            return ""
        why = "the dataset does not have a position for each sample, so the position is a number of batches"
    elif type(index_sampler) is not BatchSampler:
        why = f"the position in the {type(index_sampler).__name__} is a number of batches. Give the loader `batch_size`"
    elif state.order.indices and state.order.yielded:
        why = "it holds batches that were drawn but not delivered, because it was saved with in_order=False"
    else:
        return ""
    return (
        f"this state was saved inside an epoch with batches of {old} samples, but now they have {new}: {why}. Load it "
        f"with batch_size={old}, or save a state between two epochs"
    )


def _is_exact(position: ReadingPosition) -> bool:
    return position.ended or (position.is_of_dataset and not position.since and not position.begins)


def _check_epoch(state: EpochState, loader: Any, strict: bool) -> None:
    """Warns if the program has set a `DistributedSampler`'s epoch that differs from the saved epoch. No checksum
    detects this."""
    there, here = state.order.epoch, epoch_of(loader._index_sampler)
    is_known = isinstance(innermost_of(loader._index_sampler), torch.utils.data.DistributedSampler)
    if strict and is_known and state.order.yielded and None not in (there, here) and here != there:
        warnings.warn(
            f"StatefulDataLoader: the state was saved inside epoch {there} of the sampler, but set_epoch({here}) was "
            "called after load_state_dict(), so the loop skips batches of another order. To resume, begin with epoch "
            f"{there}; to begin epoch {here}, load a state that was saved at the end of an epoch",
            RuntimeWarning,
            stacklevel=4,
        )


def _check_workers(state: EpochState, loader: Any) -> None:
    there, here = state.workers, loader.num_workers
    if there == here or loader._dataset_kind == 1:
        return
    if any(position is not None and not (position.dataset is position.collate is None) for position in state.positions):
        warnings.warn(
            f"the dataset or collate_fn has its own state in each worker; the states of {there} workers were saved, "
            f"and the {here} workers of this loader receive them in turn",
            stacklevel=4,
        )


def shards_of(state: EpochState | None, loader: Any) -> int:
    workers: int = loader.num_workers
    return workers if state is None or state.is_over or loader._dataset_kind == 0 else state.workers
