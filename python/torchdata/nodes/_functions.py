"""Calls user functions so that their exceptions are not mistaken for the end of the data."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from torchdata._engine.items.failures import describe, reraise
from torchdata.datapipes._pipe.explaining import not_the_end


class Failure:
    """Replaces, in a list of results, the result of a call that raised an error.

    Args:
        error: the error, or its description if another process has raised it.
    """

    def __init__(self, error: BaseException | tuple[Any, ...]) -> None:
        self._error = error

    def raisable(self) -> BaseException:
        return error_of(self._error) if isinstance(self._error, tuple) else self._error

    def __reduce__(self) -> Any:
        name = multiprocessing.current_process().name.removeprefix("torchdata ")
        return Failure, (describe(self.raisable(), name),)


def error_of(description: tuple[Any, ...]) -> BaseException:
    try:
        reraise(description)
    except BaseException as error:
        return error


class MapEach:
    """Calls a function with each item of a list. If a call raises an error of the class `caught`, the list of results
    contains a `Failure` instead of the result."""

    def __init__(self, function: Callable[[Any], Any], caught: type[BaseException] = BaseException) -> None:
        self.function, self.caught = function, caught

    def __call__(self, items: list[Any]) -> list[Any]:
        results: list[Any] = []
        for item in items:
            try:
                results.append(self.function(item))
            except StopIteration as error:
                results.append(Failure(not_the_end("map_fn of ParallelMapper", error)))
            except self.caught as error:
                results.append(Failure(error))
        return results
