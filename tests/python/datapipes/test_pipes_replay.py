"""If a pipe has no state, a resumed graph replays the items of this pipe and of the pipes that depend on it."""

from __future__ import annotations

from typing import Any

import pytest

from pipes_table.core import plus_one
from torchdata.datapipes.iter import IterableWrapper, Mapper
from torchdata.datapipes.state import forget_state, load_state, save_state


class Overriding(Mapper[int]):
    """A user-defined subclass that overrides `__iter__`, so the state of its base class does not describe it."""

    def __iter__(self) -> Any:
        yield from enumerate(self.datapipe)


class Tagging(Mapper[Any]):
    """A user-defined subclass that calls the `__iter__` of its base class."""

    def __iter__(self) -> Any:
        yield from super().__iter__()


@pytest.mark.parametrize("kind", [Overriding, Tagging])
def test_a_subclass_that_overrides_iter_is_replayed(kind: Any) -> None:
    pipe = kind(IterableWrapper(range(5)), plus_one)
    expected = list(pipe)
    iterator = iter(pipe)
    head = [next(iterator) for _ in range(2)]
    state = save_state(pipe)
    assert [entry.get("drop") for entry in state["pipes"]] == [None, 2]
    restored = kind(IterableWrapper(range(5)), plus_one)
    load_state(restored, state)
    assert head + list(restored) == expected


def test_a_pipe_over_a_plain_iterable_is_restored_too() -> None:
    pipe = Mapper(range(5), plus_one)
    iterator = iter(pipe)
    assert [next(iterator), next(iterator)] == [1, 2]
    restored = Mapper(range(5), plus_one)
    load_state(restored, save_state(pipe))
    assert list(restored) == [3, 4, 5]
    assert list(restored) == [1, 2, 3, 4, 5]


def test_a_state_that_was_forgotten_is_not_saved_again() -> None:
    pipe = IterableWrapper(range(5))
    next(iter(pipe))
    restored = IterableWrapper(range(5))
    load_state(restored, save_state(pipe))
    forget_state(restored)
    again = IterableWrapper(range(5))
    load_state(again, save_state(restored))
    assert list(again) == list(restored) == [0, 1, 2, 3, 4]
