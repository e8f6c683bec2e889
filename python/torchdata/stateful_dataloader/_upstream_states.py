"""States that torchdata 0.8 to 0.11 saved, brought into the form of this package.

Role: pure functions. There are two kinds. A loader without workers saved where it stood. One with workers saved a
snapshot and how many batches it gave after it; these are read again and dropped. Where neither the dataset nor its
iterator had a state, all batches are.
"""

from __future__ import annotations

from typing import Any

__all__ = ["from_upstream", "is_upstream"]


def is_upstream(state: dict[str, Any]) -> bool:
    """Whether torchdata 0.8 to 0.11 saved the state."""
    return "_format" not in state and ("_snapshot" in state or "_num_yielded" in state)


def from_upstream(state: dict[str, Any]) -> dict[str, Any]:
    """The state in the form of this package.

    Raises:
        ValueError: something is missing in it.
    """
    try:
        return _with_workers(state) if "_snapshot" in state else _without_workers(state)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"this looks like a state of torchdata 0.11's StatefulDataLoader, but it is damaged ({error!r})"
        ) from error


def _common(state: dict[str, Any], main: dict[str, Any]) -> dict[str, Any]:
    return {
        "_iterator_finished": bool(state["_iterator_finished"]),
        "_IterableDataset_len_called": main["_IterableDataset_len_called"],
        "_shared_seed": main["_shared_seed"],
        "_sampler_iter_yielded": main["_sampler_iter_yielded"],
        "_index_sampler_state": main["_index_sampler_state"],
        "_sampler_iter_state": main["_sampler_iter_state"],
        "_sampler_ended": bool(state["_iterator_finished"]),
        "_waiting": [],
        "_random": None,
        "_generators": [],
    }


def _without_workers(state: dict[str, Any]) -> dict[str, Any]:
    place = _place({"fetcher_state": state["fetcher_state"], "dataset_state": state["dataset_state"]})
    return {
        **_common(state, state),
        "_num_workers": 0,
        "_num_yielded": state["_num_yielded"],
        "_base_seed": None,
        "_places": [place],
        "_next_worker": 0,
    }


def _with_workers(state: dict[str, Any]) -> dict[str, Any]:
    snapshot = state["_snapshot"]
    main = snapshot["_main_snapshot"]
    count: int = main["_num_workers"]
    saved = [snapshot["_worker_snapshots"][f"worker_{number}"] for number in range(count)]
    places = [_place(one) for one in saved]
    stood = all(one["fetcher_state"] is None for one in saved) or any(
        place["dataset_state"] is not None or place["dataset_iter_state"] is not None for place in places
    )
    step: int = snapshot["_snapshot_step"]
    behind: int = state["_steps_since_snapshot"]
    return {
        **_common(state, main),
        "_num_workers": count,
        "_num_yielded": step if stood else 0,
        "_base_seed": main.get("_base_seed"),
        "_places": places if stood else [],
        "_next_worker": (snapshot["_last_yielded_worker_id"] + 1) % count if stood else 0,
        "_passing_over": behind if stood else step + behind,
    }


def _place(saved: dict[str, Any]) -> dict[str, Any]:
    fetcher = saved["fetcher_state"]
    return {
        "dataset_state": saved["dataset_state"],
        "dataset_iter_state": None if fetcher is None else fetcher["dataset_iter_state"],
        "collate_state": None,
        "random": None,
        "since": [] if fetcher is None else 0,
        "ended": fetcher is not None and bool(fetcher["fetcher_ended"]),
    }
