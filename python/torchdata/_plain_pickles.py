"""Pickles that hold plain data alone: reading one runs no code, whoever has written it.

Role: pure functions. The bytes name no class and call nothing, and the extension has looked at each instruction before
Python's unpickler does: those that Python writes for plain data, with lengths that the bytes have. An unpickler takes
others, of which some ask for gigabytes by a number.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, Never

from torchdata import _native

__all__ = ["dumps_plain", "loads_plain"]


class _NotPlainError(Exception):
    pass


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Never:  # called for all that is none of the types with instructions
        raise _NotPlainError


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Never:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def dumps_plain(value: Any) -> bytes | None:
    """The pickle of a value, in which what was one object stays one; None where the value is no plain data.

    Plain are `None`, `bool`, `int`, `float`, `str`, `bytes`, `bytearray`, and tuples, lists, dicts, sets and frozensets
    of these.
    """
    file = io.BytesIO()
    try:
        _Pickler(file, protocol=5).dump(value)
    except (_NotPlainError, RecursionError):
        return None
    return file.getvalue()


def loads_plain(pickled: Any) -> Any:
    """The value that was pickled.

    Raises:
        ValueError: the bytes are no such pickle.
    """
    _native.check_plain_pickle(pickled)
    try:
        return _Unpickler(io.BytesIO(pickled)).load()
    except Exception as error:
        raise ValueError(f"they are no pickle of plain data ({type(error).__name__}: {error})") from None
