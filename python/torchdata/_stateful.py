"""Stateful: what it takes for an object to save its own place. Shared by `nodes` and `stateful_dataloader`."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

__all__ = ["Stateful"]


@runtime_checkable
class Stateful(Protocol):
    """An object with `state_dict` and `load_state_dict`.

    If a dataset, an iterator, a sampler or a collate function has them, it is saved and restored by them instead of
    being read anew. The value of `state_dict` must not change when the iteration goes on: return copies of values that
    do.
    """

    def state_dict(self) -> dict[str, Any]:
        """Where the object stands, as values that pickle."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next `iter()` go on from a saved place.

        Args:
            state_dict: what `state_dict` returned.
        """
        ...
