"""Stateful: what it takes for an object to save its own place. Shared by `nodes` and `stateful_dataloader`."""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard, runtime_checkable

__all__ = ["Stateful", "is_stateful", "state_of"]


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


def is_stateful(one: object) -> TypeGuard[Stateful]:
    """Whether an object is a `Stateful`: as `isinstance`, which takes some microseconds before Python 3.12."""
    return hasattr(one, "state_dict") and hasattr(one, "load_state_dict")


def state_of(one: object) -> Any:
    """The state of an object that has one, else None."""
    return one.state_dict() if is_stateful(one) else None
