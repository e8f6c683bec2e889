"""Stateful: what it takes for an object to save its own place. Shared by `nodes` and `stateful_dataloader`."""

from __future__ import annotations

import copy
import functools
from typing import Any, Protocol, TypeGuard, runtime_checkable

from torchdata._signatures import signature_of

__all__ = ["Stateful", "copied", "give", "is_stateful", "state_of"]


@runtime_checkable
class Stateful(Protocol):
    """An object with `state_dict` and `load_state_dict`.

    If a dataset, an iterator, a sampler or a collate function has them, it is saved and restored by them instead of
    being read anew. An object whose `state_dict` needs arguments is not `Stateful`. The value of `state_dict` must not
    change when the iteration goes on: return copies of values that do.
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
    """Whether an object is a `Stateful`, whose `state_dict` can be called without arguments.

    That of some datasets cannot, as it asks how far their loader has come.
    """
    if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
        return False
    method = one.state_dict
    function = getattr(method, "__func__", None)
    return _needs_nothing(method) if function is None else _is_method_without_arguments(function)


@functools.lru_cache(maxsize=1024)
def _is_method_without_arguments(function: Any) -> bool:
    return _needs_nothing(functools.partial(function, None))


def _needs_nothing(function: Any) -> bool:
    """Whether a function can be called without arguments, for all that its signature says."""
    try:
        signature_of(function).bind()
    except ValueError:  # a built-in one has no signature
        return True
    except TypeError:
        return not callable(function)
    return True


def state_of(one: object) -> Any:
    """The state of an object that has one, else None."""
    return one.state_dict() if is_stateful(one) else None


def copied(state: Any) -> Any:
    """A state that does not change when the first one does; itself if it cannot be copied."""
    try:
        return copy.deepcopy(state)
    except Exception:  # what cannot be copied is the user's to keep still
        return state


def give(one: Stateful, state: Any) -> None:
    """Loads a copy of a state into an object of the user, which may keep what it is given and change it."""
    one.load_state_dict(copied(state))
