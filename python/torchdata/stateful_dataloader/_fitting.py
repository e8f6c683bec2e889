"""Whether a state belongs to a loader: what each state notes of its loader, and what is compared when one is loaded.

Role: pure functions, in main. Between two epochs a loader may differ from the one that saved the state: the dataset may
have grown, and there may be more ranks. Inside an epoch the order depends on these, so another one is an error.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from torchdata.stateful_dataloader._state import is_over

__all__ = ["check_fits", "facts_of", "shards_of"]


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


def check_fits(state: dict[str, Any], loader: Any) -> None:
    """Compares a loader with the one that saved a state.

    Args:
        state: a state as `_state.normalized` returns it.
        loader: the loader that is to go on from it.

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
    if is_over(state):
        return
    _check_order(there, here)
    _check_workers(state, loader)


def _check_order(there: dict[str, Any], here: dict[str, Any]) -> None:
    """Raises ValueError if the order of the epoch is another one."""
    for name, message in (
        ("sampler", "with a {there} as its sampler, and this loader has a {here}. Give the loader the same `shuffle`, "
         "`sampler` or `batch_sampler`"),
        ("ranks", "by one of {there} ranks, and the sampler of this loader shares the dataset out over {here}. Use "
         "{there} ranks"),
        ("length", "of a dataset with {there} samples, and this one has {here}. Load the same dataset"),
    ):  # fmt: skip
        if name in there and name in here and there[name] != here[name]:
            raise ValueError(
                "StatefulDataLoader: the state was saved inside an epoch "
                + message.format(there=there[name], here=here[name])
                + ", or a state that was saved at the end of an epoch"
            )


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
