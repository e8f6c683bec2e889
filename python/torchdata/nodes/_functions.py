"""Calling users' functions: what they raise must not be taken for the end of the data."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from torchdata._engine.items.failures import describe, reraise

__all__ = ["Failed", "Failure", "MapEach", "not_the_end"]


def not_the_end(what: str) -> RuntimeError:
    """The error to raise in place of a StopIteration that a user's function raised (see PEP 479).

    Args:
        what: names the function and its node.
    """
    return RuntimeError(
        f"the {what} raised StopIteration, which would end the epoch although the source has more items; catch it in "
        "the function (`next(iterator, default)` does not raise it)"
    )


class Failure:
    """Stands among results for one whose function raised an error.

    Args:
        error: what it raised.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error
        #: The description by which an error of another process is raised here.
        self.description: tuple[Any, ...] | None = None

    def raisable(self) -> BaseException:
        """The error, to be raised; out of another process, one like it."""
        return self.error if self.description is None else Failed.told(self.description).error

    def __reduce__(self) -> Any:
        return _described, (describe(self.error, name_of_this_process()),)


def _described(description: tuple[Any, ...]) -> Failure:
    failure = Failure(RuntimeError())
    failure.description = description
    return failure


def name_of_this_process() -> str:
    """The name of this process in messages."""
    return multiprocessing.current_process().name.removeprefix("torchdata ")


class Failed:
    """An error in the place of a result, to be raised there.

    Args:
        error: what was raised.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error

    @classmethod
    def told(cls, description: tuple[Any, ...]) -> Failed:
        """One of another process, out of what describes it."""
        try:
            reraise(description)
        except BaseException as error:
            return cls(error)


class MapEach:
    """Calls a function with each member of a list, and puts a `Failure` where it raises an error.

    Args:
        function: what is called.
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
