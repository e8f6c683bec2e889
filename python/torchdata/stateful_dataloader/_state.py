"""The state of a `StatefulDataLoader` as it is loaded: of whatever version, brought into one form and checked.

Role: pure functions. The form is what the iterators write (`StatefulIterator._state`); states of torchdata 0.11 are
turned into it (`_upstream_states`). Keys that both have are named as there: libraries look at them.
"""

from __future__ import annotations

from typing import Any

from torchdata.stateful_dataloader._upstream_states import from_upstream, is_upstream

__all__ = ["FORMAT", "normalized"]

#: The version of the form.
FORMAT = 1

_DEFAULTS: dict[str, Any] = {"_passing_over": 0}

_NEEDED = (
    "_num_workers", "_num_yielded", "_iterator_finished", "_sampler_iter_yielded", "_waiting", "_places"
)  # fmt: skip


def normalized(state: Any) -> dict[str, Any]:
    """The state in the form that the iterators take.

    Args:
        state: what `state_dict` of this loader, or of torchdata 0.11's, returned.

    Raises:
        TypeError: it is no dict.
        ValueError: it is the state of something else, or of a later version.
    """
    if not isinstance(state, dict):
        raise TypeError(f"the state of a StatefulDataLoader is a dict, but this is a {type(state).__name__}")
    if is_upstream(state):
        return _DEFAULTS | from_upstream(state)
    version = state.get("_format")
    if isinstance(version, int) and version > FORMAT:
        raise ValueError(
            f"the state was saved by a later torchdata-rs (format {version}, this one reads up to {FORMAT}); "
            "upgrade torchdata-rs"
        )
    lacking = [key for key in _NEEDED if key not in state]
    if version != FORMAT or lacking:
        raise ValueError(
            "this is no state of a StatefulDataLoader: it lacks "
            f"{', '.join(lacking) or 'its version'}. Give load_state_dict what state_dict returned"
        )
    return _DEFAULTS | state
