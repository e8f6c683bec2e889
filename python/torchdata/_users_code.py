"""Finds the user's code that makes the samples of a data set: `Photos.__getitem__`, `train.py:12`.

Role: pure functions for statistics, notes of exceptions and logs, in whichever process reads the data set. They look
through the classes of PyTorch and of this package that read other data sets, such as `Subset` and `SequenceWrapper`.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import CodeType, TracebackType
from typing import Any

from torchdata._reporting import PACKAGE

__all__ = ["INDEXED", "ITERATED", "READ", "UsersCode", "code_of", "codes_of_dataset", "place_of", "raised_in"]

#: Methods of data sets: those that pipes call with an index, those that PyTorch calls, and those of an iteration.
INDEXED, READ, ITERATED = ("__getitem__",), ("__getitems__", "__getitem__"), ("__next__", "__iter__", "__getitem__")
#: Attributes in which classes of PyTorch and of this package keep what they read.
_INNER = ("dataset", "datasets", "datapipe", "datapipes", "source_dp", "source_datapipe", "sequence", "iterable")
#: How many data sets within others are looked at.
_DEEPEST = 16


@dataclass(frozen=True)
class UsersCode:
    """A function of the user's.

    Attributes:
        name: its name, with that of its class: `Photos.__getitem__`.
        location: the file and the line at which it begins: `train.py:12`.
        code: its code.
    """

    name: str
    location: str
    code: CodeType

    def __str__(self) -> str:
        return f"{self.name} ({self.location})"


def codes_of_dataset(dataset: Any, methods: tuple[str, ...]) -> list[UsersCode]:
    """The user's code that makes the samples of a data set, the outermost function first.

    Args:
        dataset: a data set, or a pipe that is read by index.
        methods: the names of the methods that are called, the preferred one first.
    """
    found: list[UsersCode] = []
    waiting, seen = [dataset], 0
    while waiting and seen < _DEEPEST:
        one, seen = waiting.pop(0), seen + 1
        if inspect.isgeneratorfunction(one):
            found += _users(one, _plain(getattr(one, "__qualname__", type(one).__qualname__)))
        elif _is_wrapper(type(one)):
            if callable(function := getattr(one, "fn", None)):
                found += _users(function, getattr(function, "__name__", type(function).__qualname__))
            inner = [getattr(one, name, None) for name in _INNER if name in getattr(one, "__dict__", {})]
            waiting += [each for value in inner for each in (value if isinstance(value, (list, tuple)) else [value])][
                :4
            ]
        else:
            method = next((name for name in methods if getattr(type(one), name, None) is not None), None)
            if method is not None:
                found += _users(getattr(type(one), method), f"{_plain(type(one).__qualname__)}.{method}")
    return found


def _is_wrapper(kind: type) -> bool:
    """Whether a class only reads other data sets."""
    return kind.__module__.partition(".")[0] in ("torch", "torchdata")


def _plain(qualified: str) -> str:
    """A qualified name without the functions that it is local to."""
    return qualified.rpartition("<locals>.")[2]


def _users(function: Any, name: str) -> Iterator[UsersCode]:
    code = code_of(function)
    if code is not None and not code.co_filename.startswith(PACKAGE):
        yield UsersCode(name, place_of(code), code)


def code_of(function: Any) -> CodeType | None:
    """The code of a function, of what is bound by `partial`, or of an object that can be called."""
    while isinstance(function, partial):
        function = function.func
    if not hasattr(function, "__code__") and not isinstance(function, type):
        function = vars(type(function)).get("__call__", function)
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def place_of(code: CodeType) -> str:
    """The file and the line at which code begins."""
    return f"{_short(code.co_filename)}:{code.co_firstlineno}"


def _short(path: str) -> str:
    """A path relative to the program's folder, or to the working directory, if it lies below; else its
    last two parts.
    """
    for root in (os.getcwd(), os.path.dirname(getattr(sys.modules.get("__main__"), "__file__", "") or "")):
        if root and path.startswith(root.rstrip(os.sep) + os.sep):
            return os.path.relpath(path, root)
    return os.sep.join(path.split(os.sep)[-2:]) if os.path.isabs(path) else path


def raised_in(error: BaseException, codes: list[UsersCode]) -> UsersCode | None:
    """The innermost of some functions that an exception has passed; None if it has passed none of them."""
    found: UsersCode | None = None
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        found = next((one for one in codes if one.code is code), found)
        traceback = traceback.tb_next
    return found
