"""Defines the layout of a `StatefulDataLoader` state, and validates and reads saved states.

Role: pure functions in the main process. The layout is that of torchdata 0.8 to 0.11, which programs inspect. Its keys
have the same meaning as there, and describe what the user has received. They are the same before, during and after an
epoch, because `torch.distributed.checkpoint` loads only the keys that the state of a new loader has. A new loader does
not know the keys of a user's iterator states, so these are stored only in this package's part. That part is a tuple
under a single key, `OURS`, which such a checkpoint treats as one value regardless of its contents. It contains:

- "generators": the states of the generators for orders and seeds: "now", when the state was taken; for samplers
  without a position also "iter", when their iterator was created, and "first", before the first index. A value that
  equals the previous one is omitted.
- "indices": indices that were drawn but whose batches the user has not received, if the sampler's state is after them.
  This applies before the first batch of a user's sampler, and if batches are out of order. "indices_since": how many
  indices were drawn after the sampler's state
- for samplers that are iterated again, "ahead": how many indices, or samples in batches of this package, the sampler
  had returned beyond those received; "used_up": whether it had ended; "digest": a checksum of its indices; "draws":
  the generators before those of its draws that followed draws of other code, each with the number of indices before
- "batch_size": the number of samples per batch, if the sampler provides it
- "epoch": the epoch of a `DistributedSampler`
- "skipped": if samples may be skipped, how many were skipped by kind of exception, and the number of all samples
- "workers", or "reading" without workers: for each worker, the parts of its position other than the dataset's state;
  see `_reading`
- "sampler": the states of a user's sampler and its iterator. They are included even if keys of 0.11 contain them,
  because a checkpoint may have lost some of their keys. For the same reason, the positions include the states of
  datasets
- "loader": facts that must match in a loader that loads the state; see `_fitting`
- "unstarted": whether nothing was read yet
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

from torchdata.datapipes._pipe.witnessing import Digest
from torchdata.stateful_dataloader._reading import NO_PLACE
from torchdata.stateful_dataloader._trails import STATES

__all__ = ["OURS", "UNKNOWN", "is_over", "laid_out", "normalized"]

#: The key of the part that torchdata 0.11 does not have.
OURS = "_torchdata_rs"
#: An upper limit for batches and indices.
_MANY = 1 << 53
#: An upper limit for workers.
_WORKERS = 1 << 16
#: An upper limit for batches that are recomputed from abandoned epochs.
_AGAIN = 1 << 24
#: An upper limit for the batches between two snapshots of torchdata 0.11.
_STEPS = 1 << 31
#: A placeholder for a value that a new loader cannot know.
UNKNOWN: Any = object()
#: The states of a snapshot that are stored both under keys of 0.11 and in this package's part.
_TOLD = "dataset_state", "dataset_iter_state"
#: Keys of 0.11 with states that may be omitted, because the keys of these states are unknown before an epoch.
_HIDDEN = "_sampler_iter_state", "dataset_iter_state"
#: The keys of 0.11 that identify a state without workers, and a state with workers.
_KINDS = {"_num_yielded", "_snapshot"}
_SAMPLER = "_sampler_iter_state", "_index_sampler_state", "_sampler_iter_yielded"


# -- saving ------------------------------------------------------------------------------------------------


def laid_out(
    main: dict[str, Any], places: Sequence[dict[str, Any] | None], ours: dict[str, Any], num_workers: int
) -> dict[str, Any]:
    """Returns a state in its saved form.

    Args:
        main: the values of the main process, under their names there.
        places: the reading position of each worker, or of the main process; None for no position.
        ours: the remaining values.
        num_workers: the number of workers.
    """
    taken = [_place(place, main["is_iterable"], main["is_own_iterator"]) for place in places]
    common = _known({key: main[key] for key in (*_SAMPLER, "_IterableDataset_len_called", "_shared_seed")})
    if num_workers == 0:
        [(theirs, own)] = taken
        ours = ours | ({"reading": own} if own else {})
        return {
            **common,
            "_num_yielded": main["_num_yielded"],
            **theirs,
            "_iterator_finished": main["_iterator_finished"],
            OURS: (ours,),
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
        OURS: (ours,),
    }


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not UNKNOWN}


def _place(place: dict[str, Any] | None, is_iterable: bool, is_own: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits a snapshot into the part under the keys of 0.11 and this package's part."""
    place = NO_PLACE | (place or {})
    shown = place["dataset_iter_state"] if is_own else None
    fetcher = _known({"dataset_iter_state": shown, "fetcher_ended": place["ended"]}) if is_iterable else None
    theirs = _known({"dataset_state": place["dataset_state"], "fetcher_state": fetcher})
    parts = "collate_state", "random", "random_then", "random_since", "since", "digest"
    own = {key: place[key] for key in parts if place.get(key)}
    told = {key: place[key] for key in _TOLD if place[key] is not None and place[key] is not UNKNOWN}
    if place["later"] is not None:  # a program that modifies the dataset's state refers to this epoch
        own |= {"later": place["later"], "mark": _mark(told.get("dataset_state"), told.get("dataset_iter_state"))}
        if place["base"]:
            # A part that is left out is equal to that in the snapshot.
            base, now = place["base"].items(), own | told
            own["base"] = {key: value for key, value in base if value is not False and not _same(value, now.get(key))}
    return theirs, own | told


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # arrays and user classes may fail to compare
        return False


def _mark(*states: Any) -> int:
    return zlib.crc32(json.dumps(states, default=repr, sort_keys=False).encode())


# -- loading -----------------------------------------------------------------------------------------------


def normalized(state: Any) -> dict[str, Any]:
    """Validates a state and converts it to the flat form for the iterators, with a position for each worker.

    Args:
        state: a state of this loader or of the loader of torchdata 0.8 to 0.11.

    Raises:
        TypeError: the state is not a dict.
        ValueError: the state is damaged, or does not belong to a `StatefulDataLoader`.
    """
    if not isinstance(state, dict):
        raise TypeError(f"the state of a StatefulDataLoader is a dict, but this is a {type(state).__name__}")
    if "_snapshot" not in state and "_num_yielded" not in state:
        within = [key for key, value in state.items() if isinstance(value, dict) and not _KINDS.isdisjoint(value)]
        part = f"state[{within[0]!r}]" if within else "what state_dict() returned"
        raise ValueError(
            f"this is not the state of a StatefulDataLoader, but a dict with the keys {sorted(map(str, state))}; pass "
            f"{part} to load_state_dict. (State doesn't contain key '_num_yielded' expected for single process "
            "dataloader. State doesn't contain key '_snapshot' expected for multiprocess dataloader.)"
        )
    try:
        state = _filled(state)
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


def _filled(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the state with this package's part as a dict, which also fills in missing keys of 0.11."""
    if OURS not in state:
        return state
    ours = state[OURS]
    if not isinstance(ours, dict):  # JSON converts the tuple to a list
        ours = ours[0]
    state = {**state, OURS: ours}
    if "_snapshot" not in state:
        return _place_filled(_sampler_filled(state, ours), ours.get("reading", {}))
    snapshot = state["_snapshot"]
    own = dict(enumerate(ours.get("workers") or []))
    places = {
        name: _place_filled(place, own.get(place["worker_id"], {}))
        for name, place in snapshot["_worker_snapshots"].items()
    }
    main = _sampler_filled(snapshot["_main_snapshot"], ours)
    return {**state, "_snapshot": {**snapshot, "_main_snapshot": main, "_worker_snapshots": places}}


def _sampler_filled(main: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    own = ours.get("sampler", {})
    return main | {key: _filled_value(main, own, key) for key in _SAMPLER[:2]}


def _place_filled(saved: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    saved = saved | {"dataset_state": _filled_value(saved, own, "dataset_state")}
    fetcher = saved["fetcher_state"]
    if fetcher is not None:
        fetcher = fetcher | {"dataset_iter_state": _filled_value(fetcher, own, "dataset_iter_state")}
    return saved | {"fetcher_state": fetcher}


def _filled_value(theirs: dict[str, Any], ours: dict[str, Any], key: str) -> Any:
    """Merges the value under a key of 0.11 with this package's value, which fills in missing keys."""
    if key not in theirs or (theirs[key] is None and key in _HIDDEN):
        return ours.get(key)
    one, other = theirs[key], ours.get(key)
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return one
    return {key: _filled_value(one, other, key) for key in {**other, **one}}


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
    else:  # 0.11 reads a stream without a state from its beginning
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
    """Returns this package's part. The positions of the workers are completed."""
    ours = state.get(OURS, {})
    own = ours.get("workers") if "_snapshot" in state else [ours.get("reading", {})]
    if own is not None and OURS in state:
        if len(own) != len(found["places"]):
            raise ValueError(
                f"the state is damaged: it is of {len(found['places'])} workers, and has {len(own)} places"
            )
        for number, (place, more) in enumerate(zip(found["places"], own, strict=True)):
            # In addition to the returned batches, there may be batches without any sample, because all were skipped.
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
        raise ValueError("the state is damaged: 'generators' is not a dict of dicts")
    return {
        "generators": generators,
        "indices": list(indices),
        "indices_since": whole(ours.get("indices_since", 0), "indices_since"),
        "ahead": whole(ours.get("ahead", 0), "ahead", most=_AGAIN),
        "used_up": bool(ours.get("used_up", False)),
        "draws": _read_draws(ours.get("draws", [])),
        "digest": None if ours.get("digest") is None else Digest.of(ours["digest"]),
        "batch_size": None if size is None else whole(size, "batch_size", least=1),
        "epoch": None if epoch is None else whole(epoch, "epoch", least=-_MANY),
        "skipped": _read_skipped(ours.get("skipped")),
        "loader": _read_loader(ours.get("loader", {})),
        "unstarted": bool(ours.get("unstarted", False)),
        "is_ours": OURS in state,
    }


def _read_loader(saved: Any) -> dict[str, Any]:
    """Validates a result of `_fitting.facts_of`."""
    counts = {key: whole(saved[key], key) for key in ("rank", "ranks", "length") if saved.get(key) is not None}
    return counts | {"sampler": str(saved["sampler"])} if "sampler" in saved else counts


def _read_skipped(saved: Any) -> tuple[dict[str, int], int] | None:
    """Returns the number of skipped samples by kind of exception, and the number of all samples."""
    if saved is None:
        return None
    kinds = {str(kind): whole(count, "skipped") for kind, count in saved["kinds"].items()}
    return kinds, whole(saved["seen"], "seen", least=sum(kinds.values()))


def _read_draws(saved: Any) -> list[list[Any]]:
    """Returns pairs of a number of indices and a moment. The numbers never decrease."""
    numbers = [whole(number, "draws") for number, _ in saved]
    if numbers != sorted(numbers) or not all(isinstance(moment, dict) for _, moment in saved):
        raise ValueError("the state is damaged: 'draws' is not a list of moments in ascending order")
    return [list(pair) for pair in saved]


def _completed(place: dict[str, Any], more: dict[str, Any], given: int) -> dict[str, Any] | None:
    is_list = isinstance(place["since"], list)
    since, later = more.get("since", [] if is_list else 0), None
    if "later" in more:
        later = [whole(count, "later", most=_AGAIN) for count in more["later"]]
        if later and later[-1] > given:
            raise ValueError(f"the state is damaged: 'later' is {later!r}")
        if more["mark"] != _mark(place["dataset_state"], place["dataset_iter_state"]):
            since, later = (later or [0])[-1], None
    if isinstance(since, list) != is_list:
        raise ValueError(f"the state is damaged: 'since' is {since!r}")
    if not is_list:
        whole(since, "since", most=given if later is None else _AGAIN)
    if more.get("digest") is not None:
        whole(more["digest"], "digest", most=(1 << 64) - 1)
    own = {key: more.get(key) for key in ("collate_state", "random", "random_then", "digest")}
    own["random_since"] = whole(more.get("random_since", 0), "random_since", most=_AGAIN)
    place = place | own | {"since": since}
    return place if later is None else place | {"later": later, "base": _base(more.get("base"), place)}


def _base(saved: Any, place: dict[str, Any]) -> dict[str, Any] | None:
    if saved is None:
        return None
    base = {**{part: saved.get(part, place.get(part)) for part in STATES}, "ended": bool(saved.get("ended"))}
    return base | ({"unbegun": True} if saved.get("unbegun") else {})


def is_over(state: dict[str, Any]) -> bool:
    """Returns whether the epoch of a validated state is over."""
    return bool(state["_iterator_finished"] or state["unstarted"])


def whole(value: Any, name: str, least: int = 0, most: int = _MANY) -> int:
    """Returns a whole number from a state.

    Raises:
        ValueError: the value is not a whole number, or is out of range.
    """
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"the state is damaged: {name!r} is {value!r}, and not a whole number from {least} to {most}")
    return value
