"""Whether a state belongs to a loader: what each state notes of its loader, and what is compared when one is loaded.

Role: pure functions, in main. Between two epochs a loader may differ from the one that saved the state: the dataset may
have grown, and there may be more ranks. Inside an epoch the order depends on these, so another one is an error. Before
the first batch of an epoch another order means that the epoch begins anew, because no batch can be lost or repeated.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from torchdata.stateful_dataloader._state import is_over
from torchdata.stateful_dataloader.sampler import BatchSampler

__all__ = ["facts_of", "fitted", "shards_of"]


def facts_of(loader: Any) -> dict[str, Any]:
    """What a state notes of its loader, without what is not known.

    "sampler" is the class that gives the indices, unless that is a list or another sequence, and "length" the number of
    samples of a map-style dataset. "rank" and "ranks" are those of a sampler that shares the dataset out over ranks;
    without one, "rank" is that of `torch.distributed`.
    """
    index_sampler = loader._index_sampler
    sampler = getattr(index_sampler, "sampler", index_sampler)
    facts: dict[str, Any] = {}
    if not isinstance(sampler, Sequence):  # a list, a tuple or a range may hold the same indices
        facts["sampler"] = type(sampler).__name__
    if loader._dataset_kind == 0:
        with contextlib.suppress(Exception):  # some datasets do not know it
            facts["length"] = len(loader.dataset)
    ranks, rank = getattr(sampler, "num_replicas", None), getattr(sampler, "rank", None)
    if type(ranks) is int and type(rank) is int:
        return facts | {"rank": rank, "ranks": ranks}
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        facts["rank"] = torch.distributed.get_rank()
    return facts


def fitted(state: dict[str, Any], loader: Any, strict: bool) -> dict[str, Any]:
    """Compares a loader with the one that saved a state, and returns the state for this loader.

    Args:
        state: a state as `_state.normalized` returns it.
        loader: the loader that is to go on from it.
        strict: whether another order inside an epoch is an error, and what is read again is compared.

    Raises:
        ValueError: the rest of the epoch cannot be exact.
    """
    there, here = state["loader"], facts_of(loader)
    if here.get("rank") != there.get("rank") and "rank" in here and "rank" in there:
        warnings.warn(
            f"StatefulDataLoader: rank {here['rank']} loads the state of rank {there['rank']}, with its random numbers "
            "and the state of its dataset, so both ranks may draw the same augmentations. Save one state per rank, and "
            "load in each rank its own",
            RuntimeWarning,
            stacklevel=3,
        )
    if not strict:
        places = [place and {**place, "digest": None} for place in state["places"]]
        state = {**state, "digest": None, "places": places}
    if is_over(state):
        return state
    order, size = _other_order(there, here), _other_size(state, loader)
    if (order or size) and loader._dataset_kind == 0 and state["_sampler_iter_yielded"] == 0:
        return {**state, "unstarted": True}
    if order and strict:
        raise ValueError(order)
    if size:
        raise ValueError(size)
    _check_workers(state, loader)
    return state


def _other_order(there: dict[str, Any], here: dict[str, Any]) -> str:
    """How the order of the epoch differs, as the message of an error; empty if it does not."""
    for name, message in (
        ("sampler", "with a {there} as its sampler, and this loader has a {here}. Give the loader the same `shuffle`, "
         "`sampler` or `batch_sampler`"),
        ("ranks", "by one of {there} ranks, and the sampler of this loader shares the dataset out over {here}. Use "
         "{there} ranks"),
        ("length", "of a dataset with {there} samples, and this one has {here}. Load the same dataset"),
    ):  # fmt: skip
        if name in there and name in here and there[name] != here[name]:
            return (
                "StatefulDataLoader: the state was saved inside an epoch "
                + message.format(there=there[name], here=here[name])
                + ", or a state that was saved at the end of an epoch. load_state_dict(state, strict=False) passes "
                "over as many batches of the new order"
            )
    return ""


def _other_size(state: dict[str, Any], loader: Any) -> str:
    """The message of an error if batches have another size, and it is not known where the first one begins."""
    index_sampler = loader._index_sampler
    old, new = state["batch_size"], getattr(index_sampler, "batch_size", None)
    if old is None or new is None or old == new:
        return ""
    if loader._dataset_kind == 1:
        if all(place is None or _is_exact(place) for place in state["places"]):
            return ""
        why = "the data set tells no place for each sample, so its place is a number of batches"
    elif type(index_sampler) is not BatchSampler:
        why = f"the place in the {type(index_sampler).__name__} is a number of batches. Give the loader `batch_size`"
    elif loader.error_fill:
        why = "with error_fill=True a batch has samples of several batches of the sampler"
    elif state["indices"]:
        why = "it holds batches that were drawn and not given, because it was saved with in_order=False"
    else:
        return ""
    return (
        f"this state was saved inside an epoch with batches of {old}, and now they are of {new}: {why}. Load it with "
        f"batch_size={old}, or save a state between two epochs"
    )


def _is_exact(place: dict[str, Any]) -> bool:
    """Whether the place in a stream is a state of the data set, and no number of batches."""
    told = place["dataset_state"] is not None or place["dataset_iter_state"] is not None
    return place["ended"] or (told and not place["since"] and place["later"] is None)


def _check_workers(state: dict[str, Any], loader: Any) -> None:
    there, here = state["_num_workers"], loader.num_workers
    if there == here or loader._dataset_kind == 1:
        return
    parts = "dataset_state", "collate_state"
    if any(place is not None and place[part] is not None for place in state["places"] for part in parts):
        warnings.warn(
            f"the dataset or collate_fn has a state of its own in each worker; it was saved with {there} workers, "
            f"and the {here} of this loader get those states in turn",
            stacklevel=4,
        )


def shards_of(state: dict[str, Any] | None, loader: Any) -> int:
    """By how many workers the dataset is shared out in an epoch; 0 if there are none.

    Args:
        state: the state that the loader goes on from, as `_state.normalized` returns it; None for a new epoch.
        loader: the loader.
    """
    workers: int = loader.num_workers
    if state is None or is_over(state) or loader._dataset_kind == 0:
        return workers
    shards: int = state["_num_workers"]
    return shards
