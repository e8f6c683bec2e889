"""Finds the user's code that creates the samples of a dataset: `Photos.__getitem__`, `train.py:12`.

This module also finds datasets inside PyTorch's and this package's wrappers (`Subset`, `SequenceWrapper`).
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from functools import partial
from traceback import walk_tb
from types import CodeType
from typing import Any, NamedTuple

from torchdata._reporting import PACKAGE

#: The methods that pipes and PyTorch call to read a dataset, preferred methods first.
INDEXED, READ, ITERATED = ("__getitem__",), ("__getitems__", "__getitem__"), ("__next__", "__iter__", "__getitem__")
#: The attributes that classes of PyTorch and of this package use to store the datasets that they read.
_INNER = ("dataset", "datasets", "datapipe", "datapipes", "source_dp", "source_datapipe", "sequence", "iterable")
_DEEPEST = 16


class UsersCode(NamedTuple):
    """A function of the user. `name` includes the class, as in `Photos.__getitem__`. `location` is a file and a line,
    as in `train.py:12`."""

    name: str
    location: str
    code: CodeType

    def __str__(self) -> str:
        return f"{self.name} ({self.location})"


def codes_of_dataset(dataset: Any, methods: tuple[str, ...]) -> list[UsersCode]:
    """Returns the user's functions, the outermost function first. For each class, the result contains only the first of
    the `methods` that the class defines."""
    found: list[UsersCode] = []
    waiting, seen = [dataset], 0
    while waiting and seen < _DEEPEST:
        one, seen = waiting.pop(0), seen + 1
        if inspect.isgeneratorfunction(one):
            found += _users(one, _plain(getattr(one, "__qualname__", type(one).__qualname__)))
        elif type(one).__module__.partition(".")[0] in ("torch", "torchdata"):  # such classes only wrap datasets
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


def _plain(qualified: str) -> str:
    return qualified.rpartition("<locals>.")[2]


def _users(function: Any, name: str) -> Iterator[UsersCode]:
    code = code_of(function)
    if code is not None and not code.co_filename.startswith(PACKAGE):
        yield UsersCode(name, code_location(code), code)


def code_of(function: Any) -> CodeType | None:
    """Returns the code of a function, a `partial`, a callable object or a decorated function."""
    while isinstance(function, partial):
        function = function.func
    if not hasattr(function, "__code__") and not isinstance(function, type):
        function = vars(type(function)).get("__call__", function)
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def code_location(code: CodeType) -> str:
    return f"{_short(code.co_filename)}:{code.co_firstlineno}"


def _short(path: str) -> str:
    """Returns a path relative to the working directory or the program's folder. For an absolute path outside the
    working directory and the program's folder, returns only its last two parts."""
    for root in (os.getcwd(), os.path.dirname(getattr(sys.modules.get("__main__"), "__file__", "") or "")):
        if root and path.startswith(root.rstrip(os.sep) + os.sep):
            return os.path.relpath(path, root)
    return os.sep.join(path.split(os.sep)[-2:]) if os.path.isabs(path) else path


def raised_in(error: BaseException, codes: list[UsersCode]) -> UsersCode | None:
    found: UsersCode | None = None
    for frame, _ in walk_tb(error.__traceback__):
        found = next((one for one in codes if one.code is frame.f_code), found)
    return found
