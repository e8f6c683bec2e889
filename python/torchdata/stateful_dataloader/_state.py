"""The state of a `StatefulDataLoader`: how it is laid out, and how a saved one is checked and read.

Role: pure functions, in main. The layout is that of torchdata 0.8 to 0.11, which programs look into, and its keys mean
what they mean there, as of what the user was given. Further data stand under one key, `OURS`:

- "generators": where orders and seeds are drawn from, when the state was taken ("now"), and for samplers that keep no
  place when their iterator was made ("iter") and before its first index ("first"); what did not change stands once
- "indices": those that were drawn and not given, if the sampler's state is behind them: before the first batch of a
  user's sampler, and out of order; "indices_since": how many indices its state is behind
- "batch_size": how many samples a batch has, if the sampler tells
- "epoch": that of a `DistributedSampler`
- "skipped": if samples may be skipped, how many were, by kind of exception, and how many were seen
- "workers", or with no worker "reading": by worker what its place has beyond the state of the dataset, see `_reading`
- "unstarted": nothing was read yet
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from torchdata.stateful_dataloader._reading import NO_PLACE
from torchdata.stateful_dataloader._trails import STATES

__all__ = ["OURS", "is_over", "laid_out", "normalized"]

#: The key of what torchdata 0.11 has not.
OURS = "_torchdata_rs"
#: More batches and indices than any loader gives.
_MANY = 1 << 53
#: More workers than any machine has.
_WORKERS = 1 << 16
#: More batches of epochs that were left than are read again.
_AGAIN = 1 << 24
#: More batches than are given between two snapshots of torchdata 0.11.
_STEPS = 1 << 31
_SAMPLER = "_sampler_iter_state", "_index_sampler_state", "_sampler_iter_yielded"


# -- laying out --------------------------------------------------------------------------------------------


def laid_out(
    main: dict[str, Any], places: list[dict[str, Any] | None], ours: dict[str, Any], num_workers: int
) -> dict[str, Any]:
    """A state as it is saved.

    Args:
        main: the values of main's keys, by their names there.
        places: where each worker's reading stands, or the one in main; None for nowhere.
        ours: what else there is.
        num_workers: how many workers there are.
    """
    taken = [_place(place, main["is_iterable"]) for place in places]
    common = {key: main[key] for key in (*_SAMPLER, "_IterableDataset_len_called", "_shared_seed")}
    if num_workers == 0:
        [(theirs, own)] = taken
        ours = ours | ({"reading": own} if own else {})
        return {
            **common,
            "_num_yielded": main["_num_yielded"],
            **theirs,
            "_iterator_finished": main["_iterator_finished"],
            OURS: ours,
        }
    if any(own for _, own in taken):
        ours = ours | {"workers": [own for _, own in taken]}
    snapshot = {
        "_snapshot_step": main["_num_yielded"],
        "_last_yielded_worker_id": main["last_worker"],
        "_main_snapshot": {"_num_workers": num_workers, **common, "_dataset_kind": main["_dataset_kind"],
                           "_base_seed": main["_base_seed"]},
        "_worker_snapshots": {
            f"worker_{number}": {"worker_id": number, **theirs} for number, (theirs, _) in enumerate(taken)
        },
    }  # fmt: skip
    return {
        "_snapshot": snapshot,
        "_steps_since_snapshot": 0,
        "_iterator_finished": main["_iterator_finished"],
        OURS: ours,
    }


def _place(place: dict[str, Any] | None, is_iterable: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The part of a place under the keys of 0.11, and the rest."""
    place = NO_PLACE | (place or {})
    fetcher = {"dataset_iter_state": place["dataset_iter_state"], "fetcher_ended": place["ended"]}
    theirs = {"dataset_state": place["dataset_state"], "fetcher_state": fetcher if is_iterable else None}
    own = {key: place[key] for key in ("collate_state", "random", "random_then", "since", "digest") if place.get(key)}
    if place["later"] is not None:  # who changes the dataset's state means it for this epoch
        own |= {"later": place["later"], "mark": _mark(theirs)}
        if place["base"]:
            own["base"] = {
                key: value for key, value in place["base"].items() if value is not None and value is not False
            }
    return theirs, own


def _mark(theirs: Any) -> int:
    return zlib.crc32(json.dumps(theirs, default=repr, sort_keys=False).encode())


# -- reading -----------------------------------------------------------------------------------------------


def normalized(state: Any) -> dict[str, Any]:
    """The state in the form that the iterators take: checked, flat, a place for each worker.

    Args:
        state: what `state_dict` of this loader, or of torchdata 0.8 to 0.11's, returned.

    Raises:
        TypeError: it is no dict.
        ValueError: it is the state of something else, or damaged.
    """
    if not isinstance(state, dict):
        raise TypeError(f"the state of a StatefulDataLoader is a dict, but this is a {type(state).__name__}")
    if "_snapshot" not in state and "_num_yielded" not in state:
        raise ValueError(
            "this is no state of a StatefulDataLoader: State doesn't contain key '_num_yielded' expected for single "
            "process dataloader, nor State doesn't contain key '_snapshot' expected for multiprocess dataloader. Give "
            "load_state_dict what state_dict returned"
        )
    try:
        found = _with_workers(state) if "_snapshot" in state else _without_workers(state)
        if OURS in state and found["_num_yielded"] > found["_sampler_iter_yielded"]:
            name = "_snapshot_step" if found["_num_workers"] else "_num_yielded"
            raise ValueError(
                f"the state is damaged: {found['_num_yielded']} batches were given ({name!r}) of "
                f"{found['_sampler_iter_yielded']} ('_sampler_iter_yielded')"
            )
        return found | _ours(state, found)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"the state of a StatefulDataLoader is damaged: {error!r}") from error


def _common(state: dict[str, Any], main: dict[str, Any]) -> dict[str, Any]:
    seeds = {name: main.get(name) for name in ("_base_seed", "_shared_seed")}
    for name, seed in seeds.items():
        if seed is not None:
            whole(seed, name, least=-(1 << 63), most=(1 << 63) - 1)
    length = main.get("_IterableDataset_len_called")
    return {
        **seeds,
        "_iterator_finished": bool(state["_iterator_finished"]),
        "_IterableDataset_len_called": None if length is None else whole(length, "_IterableDataset_len_called"),
        "_sampler_iter_yielded": whole(main["_sampler_iter_yielded"], "_sampler_iter_yielded"),
        "_index_sampler_state": main["_index_sampler_state"],
        "_sampler_iter_state": main["_sampler_iter_state"],
    }


def _without_workers(state: dict[str, Any]) -> dict[str, Any]:
    place = _read_place({"fetcher_state": state["fetcher_state"], "dataset_state": state["dataset_state"]})
    return {
        **_common(state, state),
        "_num_workers": 0,
        "_num_yielded": whole(state["_num_yielded"], "_num_yielded"),
        "places": [place],
        "next_worker": 0,
        "passing_over": 0,
    }


def _with_workers(state: dict[str, Any]) -> dict[str, Any]:
    snapshot = state["_snapshot"]
    main = snapshot["_main_snapshot"]
    count = whole(main["_num_workers"], "_num_workers", least=1, most=_WORKERS)
    saved = snapshot["_worker_snapshots"]
    names = {f"worker_{number}" for number in range(count)}
    if set(saved) != names:
        raise ValueError(
            f"the state is damaged: it is of {count} workers, and has '_worker_snapshots' of {sorted(saved)}"
        )
    places = [_read_place(saved[f"worker_{number}"]) for number in range(count)]
    last = whole(snapshot["_last_yielded_worker_id"], "_last_yielded_worker_id", most=count - 1)
    step = whole(snapshot["_snapshot_step"], "_snapshot_step")
    behind = whole(state["_steps_since_snapshot"], "_steps_since_snapshot", most=_STEPS)
    if (
        OURS in state
        or all(one["fetcher_state"] is None for one in saved.values())
        or any(place["dataset_state"] is not None or place["dataset_iter_state"] is not None for place in places)
    ):
        where = {"_num_yielded": step, "places": places, "next_worker": (last + 1) % count, "passing_over": behind}
    else:  # 0.11 reads a stream that has no state from its beginning
        where = {"_num_yielded": 0, "places": [None] * count, "next_worker": 0, "passing_over": step + behind}
    return {**_common(state, main), "_num_workers": count, **where}


def _read_place(saved: dict[str, Any]) -> dict[str, Any]:
    fetcher = saved["fetcher_state"]
    return NO_PLACE | {
        "dataset_state": saved["dataset_state"],
        "dataset_iter_state": None if fetcher is None else fetcher["dataset_iter_state"],
        "since": [] if fetcher is None else 0,
        "ended": fetcher is not None and bool(fetcher["fetcher_ended"]),
    }


def _ours(state: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The part beside the keys of 0.11; the places of workers are completed."""
    ours = state.get(OURS, {})
    own = ours.get("workers") if "_snapshot" in state else [ours.get("reading", {})]
    if own is not None and OURS in state:
        if len(own) != len(found["places"]):
            raise ValueError(
                f"the state is damaged: it is of {len(found['places'])} workers, and has {len(own)} places"
            )
        for number, (place, more) in enumerate(zip(found["places"], own, strict=True)):
            # Beside those that were given there are batches of which all was skipped.
            found["places"][number] = _completed(
                place, more, max(found["_num_yielded"], found["_sampler_iter_yielded"])
            )
    if found["_iterator_finished"]:
        for place in found["places"]:
            if place is not None and not isinstance(place["since"], list) and place["later"] is None:
                place["ended"] = True
    indices = ours.get("indices", [])
    if not isinstance(indices, list):
        raise ValueError(f"the state is damaged: 'indices' is a {type(indices).__name__}")
    size = ours.get("batch_size")
    epoch = ours.get("epoch")
    generators = ours.get("generators", {})
    if not isinstance(generators, dict) or not all(isinstance(one, dict) for one in generators.values()):
        raise ValueError("the state is damaged: 'generators' are no dict of dicts")
    return {
        "generators": generators,
        "indices": list(indices),
        "indices_since": whole(ours.get("indices_since", 0), "indices_since"),
        "batch_size": None if size is None else whole(size, "batch_size", least=1),
        "epoch": None if epoch is None else whole(epoch, "epoch", least=-_MANY),
        "skipped": _read_skipped(ours.get("skipped")),
        "unstarted": bool(ours.get("unstarted", False)),
        "is_ours": OURS in state,
    }


def _read_skipped(saved: Any) -> tuple[dict[str, int], int] | None:
    """By kind of exception, how many samples were skipped, and how many were seen."""
    if saved is None:
        return None
    kinds = {str(kind): whole(count, "skipped") for kind, count in saved["kinds"].items()}
    return kinds, whole(saved["seen"], "seen", least=sum(kinds.values()))


def _completed(place: dict[str, Any], more: dict[str, Any], given: int) -> dict[str, Any] | None:
    theirs = {"dataset_state": place["dataset_state"], "fetcher_state": None}
    if not isinstance(place["since"], list):
        theirs["fetcher_state"] = {"dataset_iter_state": place["dataset_iter_state"], "fetcher_ended": place["ended"]}
    is_list = isinstance(place["since"], list)
    since, later = more.get("since", [] if is_list else 0), None
    if "later" in more:
        later = [whole(count, "later", most=_AGAIN) for count in more["later"]]
        if later and later[-1] > given:
            raise ValueError(f"the state is damaged: 'later' is {later!r}")
        if more["mark"] != _mark(theirs):
            since, later = (later or [0])[-1], None
    if isinstance(since, list) != is_list:
        raise ValueError(f"the state is damaged: 'since' is {since!r}")
    if not is_list:
        whole(since, "since", most=given if later is None else _AGAIN)
    if more.get("digest") is not None:
        whole(more["digest"], "digest", most=(1 << 32) - 1)
    own = {key: more.get(key) for key in ("collate_state", "random", "random_then", "digest")}
    place = place | own | {"since": since}
    return place if later is None else place | {"later": later, "base": _base(more.get("base"))}


def _base(saved: Any) -> dict[str, Any] | None:
    if saved is None:
        return None
    base = {**{part: saved.get(part) for part in STATES}, "ended": bool(saved.get("ended"))}
    return base | ({"unbegun": True} if saved.get("unbegun") else {})


def is_over(state: dict[str, Any]) -> bool:
    """Whether another epoch begins behind a state that was checked."""
    return bool(state["_iterator_finished"] or state["unstarted"])


def whole(value: Any, name: str, least: int = 0, most: int = _MANY) -> int:
    """A whole number of a state.

    Raises:
        ValueError: it is none, or out of range.
    """
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"the state is damaged: {name!r} is {value!r}, and not a whole number from {least} to {most}")
    return value
