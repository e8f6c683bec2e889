"""The order of an epoch: which index, or batch of indices, comes next, and how it is saved and restored.

Role: main's side. Draws from the loader's sampler as torch's loader does. Workers are ahead of the user, and so is the
sampler: what it gave for batches that the user has not got yet is kept (`waiting`) and saved with its place, so that
nothing has to be asked of the sampler at each step.

A sampler, or its iterator, with `state_dict` and `load_state_dict` is restored by them. Any other is made anew with the
generators as they were when it began, and passes over what it had given.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Sampler, SequentialSampler
from torch.utils.data.dataloader import _InfiniteConstantSampler

from torchdata._stateful import Stateful
from torchdata.stateful_dataloader._random import global_state, states_of, under
from torchdata.stateful_dataloader.sampler import BatchIndices

__all__ = ["IndexOrder", "generators_of"]


def generators_of(loader: Any) -> list[torch.Generator]:
    """The generators that the loader and its samplers draw from, each once."""
    found = [loader.generator] if isinstance(loader.generator, torch.Generator) else []
    seen: list[Any] = [loader._index_sampler]
    for sampler in seen:  # grows meanwhile
        for value in getattr(sampler, "__dict__", {}).values():
            if isinstance(value, torch.Generator) and all(value is not one for one in found):
                found.append(value)
            elif isinstance(value, Sampler) and all(value is not one for one in seen):
                seen.append(value)
    return found


def innermost_of(index_sampler: Any) -> Any:
    """The sampler of indices, below one of batches."""
    return getattr(index_sampler, "sampler", index_sampler)


class IndexOrder:
    """The order of one epoch.

    Args:
        loader: whose samplers and generators are used.
    """

    def __init__(self, loader: Any) -> None:
        self._sampler = loader._index_sampler
        self._generators = generators_of(loader)
        #: Whether the order depends on nothing that could be random.
        innermost = innermost_of(self._sampler)
        self._is_plain = type(innermost) in (SequentialSampler, _InfiniteConstantSampler)
        self._never_ends = type(innermost) is _InfiniteConstantSampler
        self._iterator: Iterator[Any] = iter(())
        #: Indices that are to come before those of the sampler.
        self._saved: deque[Any] = deque()
        #: How many the sampler has given.
        self.drawn = 0
        self._ended = False
        #: The generators before the sampler's iterator was made, and before it gave its first index.
        self._at_iter: dict[str, Any] | None = None
        self._at_first: dict[str, Any] | None = None

    def note_random(self) -> None:
        """Takes down the generators. To be called before the sampler's iterator is made."""
        self._at_iter, self._at_first = self._random(), None

    def begin(self, iterator: Iterator[Any] | None = None) -> Iterator[Any]:
        """Begins an epoch, and returns the sampler's iterator.

        Args:
            iterator: the sampler's iterator, if it was made since `note_random`.
        """
        self._saved.clear()
        self.drawn, self._ended = 0, False
        if iterator is None:
            self.note_random()
            iterator = iter(self._sampler)
        self._iterator = iterator
        return iterator

    def draw_ahead(self) -> None:
        """Draws the first index now, for `draw` to give later."""
        with contextlib.suppress(StopIteration):
            self._saved.append(self.draw())

    def _random(self) -> dict[str, Any] | None:
        if self._is_plain:
            return None
        return {"global": global_state(), "own": states_of(self._generators)}

    def draw(self) -> Any:
        """The next index.

        Raises:
            StopIteration: there is none.
        """
        if self._saved:
            return self._saved.popleft()
        if self._ended:
            raise StopIteration
        if self.drawn == 0:
            self._at_first = self._random()
        try:
            index = next(self._iterator)
        except StopIteration:
            self._ended = True
            raise
        self.drawn += 1
        return index

    def put_back(self, index: Any) -> None:
        """Has `draw` give an index again that it gave last."""
        self._saved.appendleft(index)

    @property
    def _keeps_place(self) -> bool:
        if isinstance(self._iterator, BatchIndices):
            return self._iterator.keeps_place
        return any(isinstance(one, Stateful) for one in (self._sampler, self._iterator))

    # -- saving ------------------------------------------------------------------------------------

    def state(self, waiting: list[Any]) -> dict[str, Any]:
        """What it takes to go on from here.

        Args:
            waiting: indices that were drawn, in their order, but whose batches the user has not got.
        """
        keeps = self._keeps_place
        return {
            "_sampler_iter_yielded": self.drawn,
            "_index_sampler_state": state_of(self._sampler),
            "_sampler_iter_state": state_of(self._iterator) if keeps else None,
            "_waiting": [*waiting, *self._saved],
            "_sampler_ended": self._ended,
            "_random": None if keeps and not self._is_fresh else self._state_of_random(),
            "_generators": states_of(self._generators),
        }

    @property
    def _is_fresh(self) -> bool:
        """Whether the sampler has given nothing yet, so that its order may not be drawn."""
        return self.drawn == 0 and not self._ended

    def _state_of_random(self) -> dict[str, Any] | None:
        now = self._random()
        at_first = now if self._is_fresh else self._at_first
        return None if now is None else {"iter": self._at_iter or now, "first": at_first or now}

    # -- restoring ---------------------------------------------------------------------------------

    def restore(self, state: dict[str, Any]) -> Iterator[Any]:
        """Goes on from a saved place, and returns the sampler's iterator.

        Args:
            state: what `state` returned, or what a state of torchdata 0.11 was turned into.
        """
        random, drawn = state["_random"], state["_sampler_iter_yielded"]
        before = random if random is not None else _now(self._generators)
        self._at_iter, self._at_first = before["iter"], before["first"]
        if isinstance(self._sampler, Stateful) and state["_index_sampler_state"] is not None:
            self._sampler.load_state_dict(state["_index_sampler_state"])
        with under(before["iter"]["global"], self._generators, before["iter"]["own"]):
            self._iterator = iter(self._sampler)
        first = before["first"]
        with under(first["global"], self._generators, first["own"], go_on=drawn == 0):
            self._pass_over(state, drawn)
        for generator, one in zip(self._generators, state["_generators"], strict=False):
            if drawn > 0 or state["_sampler_ended"]:
                generator.set_state(one)
        self._saved.extend(state["_waiting"])
        self._ended = state["_sampler_ended"]
        return self._iterator

    def _pass_over(self, state: dict[str, Any], drawn: int) -> None:
        """Brings the sampler's iterator to its place."""
        if state["_sampler_iter_state"] is not None and isinstance(self._iterator, Stateful):
            self._iterator.load_state_dict(state["_sampler_iter_state"])
        elif state["_index_sampler_state"] is None or not isinstance(self._sampler, Stateful):
            passed = 0 if isinstance(self._sampler, _InfiniteConstantSampler) else drawn
            next(itertools.islice(self._iterator, passed, passed), None)
        self.drawn = drawn
        if state["_sampler_ended"] and not self._never_ends:
            self._end_again(state)
        elif drawn == 0 and not self._is_plain:
            self.draw_ahead()  # nothing was drawn when the state was saved; now the generators are what they were
            if self._ended and isinstance(innermost_of(self._sampler), Stateful):
                # Its state was that at the end of the epoch before; it has seen that end now, and begins.
                self._iterator, self._ended = iter(self._sampler), False
                self.draw_ahead()

    def _end_again(self, state: dict[str, Any]) -> None:
        """Leaves the sampler as it was when it had ended, for the epochs to come."""
        try:
            next(self._iterator)
        except StopIteration:
            return
        # One that had made itself ready for the next epoch, and begins that now: it is to begin it later.
        if state["_sampler_iter_state"] is not None and isinstance(self._iterator, Stateful):
            self._iterator.load_state_dict(state["_sampler_iter_state"])
        elif isinstance(self._sampler, Stateful):
            self._sampler.load_state_dict(state["_index_sampler_state"])


def _now(generators: list[torch.Generator]) -> dict[str, Any]:
    now = {"global": global_state(), "own": states_of(generators)}
    return {"iter": now, "first": now}


def state_of(one: Any) -> Any:
    """The state of an object that has one, else None."""
    return one.state_dict() if isinstance(one, Stateful) else None
