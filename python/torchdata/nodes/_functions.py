"""Calls user functions so that their exceptions are not mistaken for the end of the data."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from torchdata._engine.items.failures import describe, reraise

__all__ = ["Failure", "MapEach", "error_of", "not_the_end"]


def not_the_end(what: str) -> RuntimeError:
    """Returns the error that replaces a StopIteration of a user's function (see PEP 479).

    Args:
        what: the function and its node, for the error message.
    """
    return RuntimeError(
        f"the {what} raised StopIteration, which would end the epoch although the source has more items; catch it in "
        "the function (`next(iterator, default)` does not raise it)"
    )


class Failure:
    """Replaces the result of a function that raised an error, within a list of results.

    Args:
        error: the error.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error
        #: The description of an error in another process, for recreating the error here.
        self.description: tuple[Any, ...] | None = None

    def raisable(self) -> BaseException:
        """Returns the error to raise. The error of another process is recreated from its description."""
        return self.error if self.description is None else error_of(self.description)

    def __reduce__(self) -> Any:
        return _described, (describe(self.error, name_of_this_process()),)


def _described(description: tuple[Any, ...]) -> Failure:
    failure = Failure(RuntimeError())
    failure.description = description
    return failure


def name_of_this_process() -> str:
    """Returns the name of this process for error messages."""
    return multiprocessing.current_process().name.removeprefix("torchdata ")


def error_of(description: tuple[Any, ...]) -> BaseException:
    """Recreates an error of another process from its description."""
    try:
        reraise(description)
    except BaseException as error:
        return error


class MapEach:
    """Calls a function with each member of a list, and returns a `Failure` for each call that raises.

    Args:
        function: the function.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, items: list[Any]) -> list[Any]:
        results: list[Any] = []
        for item in items:
            try:
                results.append(self.function(item))
            except StopIteration as error:
                failure: BaseException = not_the_end("map_fn of ParallelMapper")
                failure.__cause__ = error
                results.append(Failure(failure))
            except BaseException as error:
                results.append(Failure(error))
        return results
