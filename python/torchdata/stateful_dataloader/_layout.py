"""Defines the keys of a `StatefulDataLoader` state. Programs inspect states, so the keys have the same meaning as in
torchdata 0.8 to 0.11. A state describes the position after the last batch that the user received. The keys are the same
before, during and after an epoch, because `torch.distributed.checkpoint` ignores keys that the state of a new loader
lacks. All data that torchdata 0.11 does not save is in a dict under the key `OURS`. The dict under `OURS` also contains
the states of a user's iterators, because a new loader's state may lack keys of these states. The dict under `OURS` is
the only member of a tuple, because a checkpoint treats a tuple as one value, and drops no keys inside it. The dict has
these keys:

- "generators": the states of the generators for orders and seeds. The key "now" contains the generators' states when
  the loader's state was saved. For samplers that cannot save their positions, "iter" contains the states before the
  sampler's iterator was created, and "first" the states before its first index. "first" contains only the states that
  changed after "iter", and "now" only the states that changed after "first".
- "indices": the indices that the sampler had returned before its state was saved, for batches that the user had not
  received. The key "indices" exists for loaders with `in_order=False` and, for a user's sampler, before the first batch
- "indices_since": the number of indices that were drawn after the sampler's state was saved
- for a sampler without a state, "ahead": the number of indices (or of samples, if this package forms the batches) that
  the sampler had returned for samples that the user had not received; "used_up": whether the sampler had returned all
  indices; "digest": a checksum of the indices; "draws": the generators' states at each draw of the sampler that
  followed a draw by other code
- "batch_size": the number of samples per batch, if the sampler provides it
- "epoch": the epoch of a sampler or batch sampler that has `set_epoch` and `epoch`. Within an epoch, "epoch" is the
  epoch number of the current order, even if the program has already set the next epoch
- "skipped": if samples may be skipped, the number of skipped samples by kind of exception, and the number of all
  samples
- "workers", or "reading" without workers: for each worker, the part of its position that torchdata 0.11 does not save
- "sampler": a second copy of the states of a user's sampler and its iterator, because a checkpoint may drop parts of
  the first copy
- "loader": properties, such as the sampler's class, that must be the same in the saved loader and in the loader that
  loads the state
- "unstarted": whether no batch had been read when the state was saved
"""

from __future__ import annotations

import json
import zlib
from operator import itemgetter
from typing import Any, NamedTuple

from torchdata.datapipes._pipe.witnessing import SampleDigest
from torchdata.stateful_dataloader._generators import MANY, Moment, flag, whole
from torchdata.stateful_dataloader._position import (
    UNKNOWN,
    Counts,
    EpochState,
    LoaderFacts,
    OrderState,
    ReadingPosition,
)

OURS = "_torchdata_rs"
_WORKERS = 1 << 16
_MOST_REPEATED = 1 << 24
_STEPS = 1 << 31
_HIDDEN = "_sampler_iter_state", "dataset_iter_state"
_SAMPLER = "_sampler_iter_state", "_index_sampler_state"
_KINDS = {"_num_yielded", "_snapshot"}
#: The keys of the dataset's state and of its iterator's state in a saved position.
_STATES = "dataset_state", "dataset_iter_state"

#: The keys of a saved position that torchdata 0.11 does not know. Empty values are left out.
_OWN = "collate_state", "random", "random_then", "random_since", "since", "digest"


class IndicesState(NamedTuple):
    """The state of an iterator over the indices of a `RandomSampler`; `generator` is None before the first draw."""

    yielded: int
    generator: Any = None


class BatchesState(NamedTuple):
    """The state of an iterator over batches of indices. Missing states are UNKNOWN. `rest` contains indices of later
    batches that the sampler has already returned."""

    samples_yielded: int
    sampler_iter_state: Any = UNKNOWN
    sampler_state: Any = UNKNOWN
    ended: bool = False
    rest: Any = UNKNOWN

    def dump(self) -> dict[str, Any]:
        return {name: part for name, part in self._asdict().items() if part is not UNKNOWN and part is not False}


def parse_indices(kind: Any, state: Any) -> Any:
    count_in(state, kind._fields[0])
    return kind(**{name: state[name] for name in kind._fields if name in state})


def listed(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"the state is damaged: {name!r} is a {type(value).__name__}")
    return value.copy()


def count_in(state: Any, name: str) -> int:
    count = state.get(name) if isinstance(state, dict) else None
    if isinstance(count, int) and count < 0:
        raise ValueError(f"Cannot load state_dict with negative {name} value: {count}")
    return whole(count, name)


# -- writing -----------------------------------------------------------------------------------------------


def dump(state: EpochState) -> dict[str, Any]:
    order, workers = state.order, state.workers
    taken = [_dump_position(position, state) for position in state.positions]
    ours = _dump_ours(state)
    common = {
        "_sampler_iter_state": _shown(order),
        "_index_sampler_state": order.sampler,
        "_sampler_iter_yielded": order.yielded,
        "_IterableDataset_len_called": state.length_called,
        "_shared_seed": state.shared_seed,
    }
    if workers == 0:
        [(theirs, own)] = taken
        whole = {**common, "_num_yielded": state.received, **theirs}
        ours |= {"reading": own} if own else {}
    else:
        if any(own for _, own in taken):
            ours["workers"] = [own for _, own in taken]
        main = {"_num_workers": workers, **common, "_dataset_kind": state.kind, "_base_seed": state.base_seed}
        snapshots = {f"worker_{number}": {"worker_id": number, **theirs} for number, (theirs, _) in enumerate(taken)}
        snapshot = {
            "_snapshot_step": state.received,
            "_last_yielded_worker_id": (state.next_worker - 1) % workers,
            "_main_snapshot": main,
            "_worker_snapshots": snapshots,
        }
        whole = {"_snapshot": snapshot, "_steps_since_snapshot": 0}
    whole = _known(whole) if state.unstarted else whole
    return {**whole, "_iterator_finished": state.finished, OURS: (ours,)}


def _known(value: Any) -> Any:
    if type(value) is not dict:
        return value
    return {key: _known(one) for key, one in value.items() if one is not UNKNOWN}


def _shown(order: OrderState) -> Any:
    """Returns the state of the sampler's iterator. For a user's sampler, returns only the part of the state with known
    keys."""
    if not order.is_users or order.iterator is UNKNOWN:
        return order.iterator
    if not order.is_batched:
        return None
    return {key: order.iterator[key] for key in ("samples_yielded", "sampler_state") if key in order.iterator}


def _dump_ours(state: EpochState) -> dict[str, Any]:
    order = state.order
    moments = {"iter": order.at_iter, "first": order.at_first, "now": order.generators}
    moments = {name: moment for name, moment in moments.items() if moment is not None}
    facts = {name: fact for name, fact in zip(LoaderFacts._fields, state.facts, strict=True) if fact is not None}
    ours: dict[str, Any] = {"generators": moments, "loader": facts}
    ours |= {"unstarted": True} if state.unstarted else {"batch_size": order.batch_size}
    if order.is_users:
        saved = {"_index_sampler_state": order.sampler, "_sampler_iter_state": order.iterator}
        ours["sampler"] = {key: one for key, one in saved.items() if one is not None}
    digest, indices = order.digest and list(order.digest.as_tuple()), list(order.indices)
    more = {"indices": indices, "indices_since": order.indices_since, "ahead": order.ahead, "used_up": order.used_up}
    more |= {"draws": list(order.draws), "digest": digest}
    ours |= {key: value for key, value in more.items() if value}
    if order.epoch is not None:
        ours["epoch"] = order.epoch
    if state.skipped is not None:
        kinds, seen = state.skipped
        ours["skipped"] = {"kinds": dict(kinds), "seen": seen}
    return ours


def _dump_position(position: ReadingPosition | None, state: EpochState) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits a position into the keys of torchdata 0.11 and the keys of this package."""
    if position is None:
        return {"dataset_state": None, "fetcher_state": None}, {}
    fetcher, since = None, position.since
    if state.kind:
        shown = position.iterator if state.is_own_iterator else None
        fetcher = {"dataset_iter_state": shown, "fetcher_ended": position.ended}
    theirs = {"dataset_state": position.dataset, "fetcher_state": fetcher}
    since = since.copy() if isinstance(since, list) else since
    parts = position.collate, position.random, position.then, position.now_since, since, position.digest
    own = {key: value for key, value in zip(_OWN, parts, strict=True) if value}
    kept = {key: one for key, one in zip(_STATES, position[:2], strict=True) if one is not None and one is not UNKNOWN}
    if position.follows_end is not None:
        mark = _mark(kept.get("dataset_state"), kept.get("dataset_iter_state"))
        own |= {"follows_end": position.follows_end, "mark": mark}
    return theirs, own | kept


def _mark(*states: Any) -> int:
    return zlib.crc32(json.dumps(states, default=repr, sort_keys=False).encode())


# -- loading -----------------------------------------------------------------------------------------------


def parse(state: Any) -> EpochState:
    if not isinstance(state, dict):
        raise TypeError(f"the state of a StatefulDataLoader is a dict, but got {type(state).__name__}")
    if "_snapshot" not in state and "_num_yielded" not in state:
        within = [key for key, value in state.items() if isinstance(value, dict) and not _KINDS.isdisjoint(value)]
        part = f"state[{within[0]!r}]" if within else "what state_dict() returned"
        raise ValueError(
            f"this is not the state of a StatefulDataLoader, but a dict with the keys {sorted(map(str, state))}; pass "
            f"{part} to load_state_dict. (State doesn't contain key '_num_yielded' expected for single process "
            "dataloader. State doesn't contain key '_snapshot' expected for multiprocess dataloader.)"
        )
    try:
        ours: Any = state.get(OURS, {})
        ours = ours if isinstance(ours, dict) else ours[0]  # JSON converts the tuple to a list
        return _parse(state, ours, OURS in state)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"the state of a StatefulDataLoader is damaged: {error!r}") from error


def _parse(state: dict[str, Any], ours: dict[str, Any], is_ours: bool) -> EpochState:
    """Converts a state.

    Args:
        ours: the dict under the key `OURS`.
        is_ours: False for a state of torchdata 0.8 to 0.11, which lacks the key `OURS`.
    """
    if "_snapshot" in state:
        main, saved = state["_snapshot"]["_main_snapshot"], state["_snapshot"]["_worker_snapshots"]
        names = [f"worker_{n}" for n in range(whole(main["_num_workers"], "_num_workers", least=1, most=_WORKERS))]
        if set(saved) != set(names):
            raise ValueError(
                f"the state is damaged: it has {len(names)} workers, but '_worker_snapshots' of {sorted(saved)}"
            )
        each, own = [saved[name] for name in names], ours.get("workers")
        if (numbers := [one.get("worker_id", number) for number, one in enumerate(each)]) != [*range(len(each))]:
            raise ValueError(f"the state is damaged: 'worker_id' of {names} is {numbers}")
        key, received = "_snapshot_step", state["_snapshot"]["_snapshot_step"]
    else:
        main, each = state, [state]
        own, key, received = [ours.get("reading", {})], "_num_yielded", state["_num_yielded"]
    if is_ours:
        main = main | {key: _filled(main, ours.get("sampler", {}), key) for key in _SAMPLER}
    received, finished = whole(received, key), flag(state, "_iterator_finished")
    yielded = whole(main["_sampler_iter_yielded"], "_sampler_iter_yielded")
    if is_ours and received > yielded:
        raise ValueError(
            f"the state is damaged: {received} batches were delivered ({key!r}), but only {yielded} were sampled "
            "('_sampler_iter_yielded')"
        )
    own = [{}] * len(each) if own is None else own
    if len(own) != len(each):
        raise ValueError(f"the state is damaged: it has {len(each)} workers, but {len(own)} positions")
    # `yielded` also counts empty batches (all samples were skipped), but `received` counts only returned batches.
    how = max(received, yielded), is_ours, finished
    positions = [_parse_position(one, more, *how) for one, more in zip(each, own, strict=True)]
    found = EpochState(
        _parse_order(OrderState(yielded, main["_index_sampler_state"], main["_sampler_iter_state"]), ours),
        positions,
        len(each) if "_snapshot" in state else 0,
        _parse_facts(ours.get("loader", {})),
        received,
        finished,
        flag(ours, "unstarted", False),
        _parse_skipped(ours.get("skipped")),
        _optional(main, "_IterableDataset_len_called"),
        _optional(main, "_base_seed", -(1 << 63)),
        _optional(main, "_shared_seed", -(1 << 63)),
    )
    if "_snapshot" in state:
        since = whole(state["_steps_since_snapshot"], "_steps_since_snapshot", most=0 if is_ours else _STEPS)
        last = whole(state["_snapshot"]["_last_yielded_worker_id"], "_last_yielded_worker_id", most=len(each) - 1)
        is_read = all(isinstance(one.since, list) for one in positions) or any(one.is_of_dataset for one in positions)
        if is_ours or is_read:
            found = found._replace(next_worker=(last + 1) % len(each), passing_over=since)
        else:  # 0.11 rereads an iterable dataset without a state from its beginning
            found = found._replace(received=0, positions=[None] * len(each), passing_over=received + since)
    return found


def _optional(saved: dict[str, Any], name: str, least: int = 0) -> int | None:
    value = saved.get(name)
    return None if value is None else whole(value, name, least, (1 << 63) - 1 if least else MANY)


def _parse_order(order: OrderState, ours: dict[str, Any]) -> OrderState:
    size, epoch = ours.get("batch_size"), ours.get("epoch")
    moments = ours.get("generators", {})
    return order._replace(
        indices=listed(ours.get("indices", []), "indices"),
        indices_since=whole(ours.get("indices_since", 0), "indices_since"),
        ahead=whole(ours.get("ahead", 0), "ahead", most=_MOST_REPEATED),
        used_up=flag(ours, "used_up", False),
        draws=_parse_draws(ours.get("draws", [])),
        digest=None if ours.get("digest") is None else SampleDigest.of(ours["digest"]),
        generators=_moment(moments, "now") or {},
        at_iter=_moment(moments, "iter"),
        at_first=_moment(moments, "first"),
        batch_size=None if size is None else whole(size, "batch_size", least=1),
        epoch=None if epoch is None else whole(epoch, "epoch", least=-MANY),
    )


def _parse_facts(saved: Any) -> LoaderFacts:
    counts = {key: whole(saved[key], key) for key in ("rank", "ranks", "length") if saved.get(key) is not None}
    return LoaderFacts(str(saved["sampler"]) if "sampler" in saved else None, **counts)


def _parse_skipped(saved: Any) -> Counts | None:
    if saved is None:
        return None
    kinds = {str(kind): whole(count, "skipped") for kind, count in saved["kinds"].items()}
    return kinds, whole(saved["seen"], "seen", least=sum(kinds.values()))


def _parse_draws(saved: Any) -> list[list[Any]]:
    draws = [[whole(number, "draws"), _moment({"draws": moment}, "draws")] for number, moment in saved]
    if draws != sorted(draws, key=itemgetter(0)):
        raise ValueError("the state is damaged: 'draws' is not a list in ascending order")
    return draws


def _moment(saved: dict[str, Any], name: str) -> Moment | None:
    moment = saved.get(name)
    if moment is not None and not (isinstance(moment, dict) and isinstance(moment.get("own", []), list)):
        raise ValueError(f"the state is damaged: {name!r} does not contain the states of generators")
    return moment


def _parse_position(
    saved: dict[str, Any], own: dict[str, Any], received: int, fills: bool, finished: bool
) -> ReadingPosition:
    """Converts a position.

    Args:
        own: the data that only this package saves. If `fills` is True, `own` also replaces missing values of `saved`.
        received: the number of received batches in the epoch, which "since" in `own` must not exceed.
    """
    fetcher, digest, follows_end = saved["fetcher_state"], own.get("digest"), None
    dataset = _filled(saved, own, "dataset_state", fills)
    iterator = None if fetcher is None else _filled(fetcher, own, "dataset_iter_state", fills)
    since = own.get("since", [] if fetcher is None else 0)
    if isinstance(since, list) != (fetcher is None):
        raise ValueError(f"the state is damaged: 'since' is {since!r}")
    if fetcher is not None:
        whole(since, "since", most=received)
    if digest is not None:
        whole(digest, "digest", most=(1 << 64) - 1)
    if "follows_end" in own and own["mark"] == _mark(dataset, iterator):
        follows_end = flag(own, "follows_end")
    return ReadingPosition(
        dataset,
        iterator,
        own.get("collate_state"),
        _moment(own, "random"),
        since,
        fetcher is not None and (flag(fetcher, "fetcher_ended") or (finished and follows_end is None)),
        digest,
        follows_end,
        _moment(own, "random_then"),
        now_since=whole(own.get("random_since", 0), "random_since", most=_MOST_REPEATED),
    )


def _filled(theirs: dict[str, Any], ours: dict[str, Any], key: str, fills: bool = True) -> Any:
    """Returns the value of `key` in `theirs`, a part of a state of torchdata 0.11. Missing values and missing entries
    of a dict are taken from `ours`."""
    if not fills:
        return theirs[key]
    if key not in theirs or (theirs[key] is None and key in _HIDDEN):
        return ours.get(key)
    one, other = theirs[key], ours.get(key)
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return one
    return {key: _filled(one, other, key) for key in {**other, **one}}
