"""Shared code of pipes that turn one item into several (flatmap, map_batches, unbatch, mux, …).

Role: yields the parts of each item without running Python code for each part, and tracks which parts remain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from torchdata._reporting import name_of
from torchdata.datapipes._pipe.explaining import not_the_end
from torchdata.datapipes._pipe.parts import Parts
from torchdata.datapipes._pipe.state.declared import state


class _Raising:
    def __init__(self, error: BaseException) -> None:
        self._errors = [error]

    def __iter__(self) -> _Raising:
        return self

    def __next__(self) -> Any:
        if self._errors:
            raise self._errors.pop()  # no frame may refer to the raised error
        raise StopIteration


class Unfolding:
    """A pipe that yields the parts of items, and saves the remaining parts of the current item. If the parts are
    generated on demand, the state instead contains the item and the number of yielded parts, and a resumed pipe
    regenerates the parts."""

    _parts: Parts | None = state(items=True, saved=False)  # the parts of the current item; None before the first item
    _resume: dict[str, Any] | None = state(items=True, saved=False)

    def _unfold(self, items: Iterator[Any], parts_of: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
        return chain.from_iterable(self._each_parts(items, parts_of))

    def _each_parts(self, items: Iterator[Any], parts_of: Callable[[Any], Iterable[Any]]) -> Iterator[Iterator[Any]]:
        parts: Parts | None = None
        try:
            if self._resume is not None:
                resume, self._resume = self._resume, None
                try:
                    parts = self._parts = Parts.restored(self, parts_of, resume)
                    yield parts.left
                except Exception as error:
                    yield _Raising(error)
            for item in items:
                try:
                    parts = Parts(self, parts_of, item)
                except Exception as error:
                    # `_Raising` raises the error outside this generator, which would end if it raised the error.
                    yield _Raising(not_the_end(name_of(self), error))
                    continue
                self._parts = parts
                yield parts.left
        except GeneratorExit:
            if parts is not None and self._parts is parts:  # the parts are not those of a newer iteration
                parts.detach()
            raise

    def _drop_broken(self) -> None:
        """Drops the rest of the current item after computing one of its parts has raised an exception."""
        self._parts = None

    def state_dict(self) -> dict[str, Any]:
        if self._resume is not None or self._parts is None:
            return {"unfolding": self._resume}
        state = self._parts.state_dict()
        return {"unfolding": state if state.get("members", True) else None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._load_declared({})  # type: ignore[attr-defined]
        resume = state_dict["unfolding"]
        if resume is not None and "members" not in resume and not ("item" in resume and type(resume["done"]) is int):
            raise KeyError("it contains neither the remaining part of an item, nor the number of this item")
        self._resume = resume
