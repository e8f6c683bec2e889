"""Shared code of pipes that turn one item into several (flatmap, map_batches, unbatch, mux, …).

`Unfolding` yields the parts of each item without running Python code for each part, and tracks which parts remain.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

from torchdata._reporting import add_note, name_of
from torchdata.datapipes._pipe.explaining import not_the_end
from torchdata.datapipes._pipe.parts import SLICED, Remaining, detached, is_rest, listed, state_of_members
from torchdata.datapipes._pipe.state.declared import checked_state, state
from torchdata.datapipes._pipe.streams import with_detached_streams
from torchdata.datapipes.datapipe import token_of


class _Raising:
    def __init__(self, error: BaseException) -> None:
        self._errors = [error]

    def __iter__(self) -> _Raising:
        return self

    def __next__(self) -> Any:
        if self._errors:
            raise self._errors.pop()  # no frame may refer to the raised error
        raise StopIteration


def _iterator_over(parts: Any, pipe: Any) -> Iterator[Any]:
    try:
        return iter(parts)
    except TypeError as error:
        add_note(
            error,
            f"The function of {name_of(pipe)} must return an iterable of items, but returned {reprlib.repr(parts)}; "
            "map() takes functions that return one item.",
        )
        raise


class Unfolding:
    """A pipe that yields the parts of its source's items, such as the members of lists. If the parts of an item are in
    memory, a state contains the parts that were not yielded. If a generator creates the parts on demand, a state
    contains the item and the number of yielded parts, and a resumed pipe creates the parts again."""

    #: The remaining parts of the current item; None before the first item.
    _left: Iterator[Any] | None = state(items=True, saved=False)
    _in_memory: Any = state(items=True, saved=False)  # the parts, if they are in memory
    _item: Any = state(items=True, saved=False)  # the item, if its parts are generated on demand
    _yielded_before: int = state(0, saved=False)  # the number of items that were yielded before the parts of `_item`
    _unfolding: Any = checked_state((is_rest, None), items=True)

    def _unfold(self, items: Iterator[Any], parts_of: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
        return chain.from_iterable(self._each_parts(items, parts_of))

    def _each_parts(self, items: Iterator[Any], parts_of: Callable[[Any], Iterable[Any]]) -> Iterator[Iterator[Any]]:
        token, sliced = token_of(self), SLICED
        left: Iterator[Any] | None = None
        try:
            if self._unfolding is not None:
                try:
                    left = self._resumed_parts(parts_of)
                except Exception as error:
                    left = _Raising(error)
                yield left
            for item in items:
                try:
                    parts = parts_of(item)
                    members: Any = parts if type(parts) in sliced else listed(parts)
                    # The item is copied before its parts are generated, because generating them may read a stream in
                    # the item.
                    kept = with_detached_streams(item) if members is None else None
                    left = _iterator_over(parts if members is None else members, self)
                except Exception as error:
                    # `_Raising` raises the error outside this generator, because a generator ends when it raises an
                    # error.
                    yield _Raising(not_the_end(f"function of {name_of(self)}", error))
                    continue
                if members is None:
                    self._item, self._yielded_before = kept, token.yielded
                self._in_memory, self._left = members, left
                yield left
        except GeneratorExit:
            if self._left is left is not None:  # the parts are not those of a newer iteration
                self._detach_buffered()
            raise

    def _drop_broken(self) -> None:
        """Drops the remaining parts of the current item after one part has raised an exception."""
        self._item, self._in_memory, self._left = None, [], iter(())

    def _detach_buffered(self) -> None:
        """Called when the iteration is abandoned: closes files, and keeps only what `state_dict` needs."""
        if self._in_memory is None:
            self._left = iter(())
        elif self._left is not None:
            self._in_memory = detached(self._in_memory, self._left)
            self._left = iter(self._in_memory)

    def _resumed_parts(self, parts_of: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
        (self._in_memory, self._item, done), self._unfolding = Remaining(**self._unfolding), None
        self._yielded_before = token_of(self).yielded - done
        self._left = left = iter(parts_of(self._item) if self._in_memory is None else self._in_memory)
        next(islice(left, done, done), None)
        return left

    def state_dict(self) -> dict[str, Any]:
        if self._unfolding is not None or self._left is None:
            return {"unfolding": self._unfolding}
        if self._in_memory is not None:
            return {"unfolding": state_of_members(self._in_memory, self._left)}
        return {"unfolding": {"item": self._item, "done": token_of(self).yielded - self._yielded_before}}
