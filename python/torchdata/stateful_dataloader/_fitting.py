"""Checks whether a state fits a loader: defines what each state records about its loader, and compares it on loading.

Role: pure functions in the main process. Between two epochs, the loader may differ from the loader of the state:
the dataset may have grown, and there may be more ranks. Within an epoch, the order depends on them, so a difference is
an error. If the state was saved before the first batch of an epoch, a different order restarts the epoch, because no
batch can be lost or repeated.
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
    """Returns what a state records about its loader, without unknown values.

    "sampler" is the class that provides the indices, unless that is a list or another sequence, and "length" is the
    number of samples of a map-style dataset. "rank" and "ranks" come from a sampler that splits the dataset among
    ranks. Without such a sampler, "rank" comes from `torch.distributed`.
    """
    index_sampler = loader._index_sampler
    sampler = getattr(index_sampler, "sampler", index_sampler)
    facts: dict[str, Any] = {}
    if not isinstance(sampler, Sequence):  # a list, a tuple or a range may contain the same indices
        facts["sampler"] = type(sampler).__name__
    if loader._dataset_kind == 0:
        with contextlib.suppress(Exception):  # some datasets raise an error
            facts["length"] = len(loader.dataset)
    ranks, rank = getattr(sampler, "num_replicas", None), getattr(sampler, "rank", None)
    if type(ranks) is int and type(rank) is int:
        return facts | {"rank": rank, "ranks": ranks}
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        facts["rank"] = torch.distributed.get_rank()
    return facts


def fitted(state: dict[str, Any], loader: Any, strict: bool) -> dict[str, Any]:
    """Compares a loader with the loader that saved a state, and returns the state in a form for this loader.

    Args:
        state: a state as `_state.normalized` returns it.
        loader: the loader that resumes from the state.
        strict: whether a different order inside an epoch is an error, and recomputed samples are compared.

    Raises:
        ValueError: the remaining epoch cannot be reproduced exactly.
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
    """Returns the error message for a different order of the epoch; empty if the order is the same."""
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
    """Returns the error message for a different batch size, unless the position in samples is known."""
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
    """Returns whether the position in a stream is a state of the dataset, rather than a number of batches."""
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
    """Returns among how many workers the dataset is split in an epoch; 0 for a loader without workers.

    Args:
        state: the state to resume from, in the form that `_state.normalized` returns; None for a new epoch.
        loader: the loader.
    """
    workers: int = loader.num_workers
    if state is None or is_over(state) or loader._dataset_kind == 0:
        return workers
    shards: int = state["_num_workers"]
    return shards
