"""Pickles that contain only plain data, so that reading a pickle runs no code of its author.

Role: pure functions. The pickle refers only to functions of this package that create arrays, batches and files, and
that are safe with any arguments. Before Python's unpickler runs, the extension checks each instruction. The check
accepts only instructions that Python writes for plain data, and only lengths within the pickle, because a large number
could make the unpickler allocate gigabytes.
"""

from __future__ import annotations

import io
import math
import pickle
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torchdata._bounded_pickles import pickle_file
from torchdata._native import check_plain_pickle

#: A function that creates a value of plain data, and its arguments.
_Made = tuple[Callable[..., Any], tuple[Any, ...]]

#: For each class, a function that returns how to recreate an instance, or None if the instance is not plain data.
_known: dict[type, Callable[[Any], _Made | None]] = {}
#: The functions that a pickle may refer to, by module and name.
_makers: dict[tuple[str, str], Callable[..., Any]] = {}

#: Arrays of at most this many bytes are copied, because a view of them is more expensive.
_SMALL = 4096

#: Kinds of dtypes with items of plain bytes, without objects.
_KINDS = frozenset("biufcmM")


def register(kind: type, parts: Callable[[Any], _Made | None], *makers: Callable[..., Any]) -> None:
    """Registers a class whose instances are plain data. Subclasses must be registered separately.

    Args:
        kind: the class.
        parts: a function that returns what recreates an equal instance: a function and its arguments, or None.
        makers: all functions to which the result of `parts` may refer. A malicious pickle may pass any arguments.
    """
    _known[kind] = parts
    for maker in makers:
        # The function gets the name of this module, so that pickles remain valid when source files are moved.
        if isinstance(maker, FunctionType):
            assert globals().setdefault(maker.__name__, maker) is maker, "names of makers differ"
            maker.__module__ = __name__
        _makers[maker.__module__, maker.__qualname__] = maker


class _NotPlainError(Exception):
    pass


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:  # called for all types without their own pickle instructions
        parts = _known.get(type(obj)) or _of_library(type(obj))
        made = None if parts is None else parts(obj)
        if made is not None:
            return made
        if _makers.get((getattr(obj, "__module__", ""), getattr(obj, "__qualname__", ""))) is obj:
            return NotImplemented  # pickles the object by its name
        raise _NotPlainError


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _makers:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return _makers[module, name]


def dumps_plain(value: Any) -> bytes | None:
    """Returns the pickle of a value, preserving object identity; None if the value is not plain data.

    Plain data consists of `None`, `bool`, `int`, `float`, `str`, `bytes`, `bytearray`, arrays and tensors of numbers,
    batches, in-memory files and files by path, and tuples, lists, dicts, sets and frozensets of these.
    """
    try:
        with pickle_file() as file:
            _Pickler(file, protocol=5).dump(value)
    except (_NotPlainError, RecursionError, TypeError):
        return None
    return file.getvalue()


def loads_plain(pickled: Any) -> Any:
    """Returns the value of a pickle. Raises ValueError if the bytes are not a pickle of `dumps_plain`."""
    check_plain_pickle(pickled)
    try:
        return _Unpickler(io.BytesIO(pickled)).load()
    except Exception as error:
        raise ValueError(f"they are not a pickle of plain data ({type(error).__name__}: {error})") from None


# -- arrays and files in memory ----------------------------------------------------------------------------------------


def _of_library(kind: type) -> Callable[[Any], _Made | None] | None:
    """Returns the function in `_known` for classes of libraries that may not be imported."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and (kind is numpy.ndarray or (issubclass(kind, numpy.generic) and kind is not numpy.void)):
        return _array_parts
    return _tensor_parts if torch is not None and kind is torch.Tensor else None


def _array_parts(array: Any) -> _Made | None:
    import numpy

    if array.dtype.kind not in _KINDS or array.dtype.hasobject or not array.flags.c_contiguous:
        return None
    scalar = isinstance(array, numpy.generic)
    # A large array is copied only once, directly into the pickle.
    data = (
        array.tobytes() if scalar or array.nbytes < _SMALL else pickle.PickleBuffer(array.reshape(-1).view(numpy.uint8))
    )
    return _array, (data, array.dtype.str, array.shape, scalar)


def _array(data: bytes, dtype: str, shape: tuple[int, ...], scalar: bool) -> Any:
    import numpy

    kind = numpy.dtype(dtype)
    if kind.kind not in _KINDS or kind.hasobject:
        raise ValueError(f"no array has the dtype {dtype!r}")
    made = numpy.frombuffer(_own(data), kind).reshape(shape)
    return made[()] if scalar else made


def _tensor_parts(tensor: Any) -> _Made | None:
    import torch

    plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.requires_grad
    if not plain or tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or vars(tensor):
        return None
    data = pickle.PickleBuffer(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else b""
    return _tensor, (data, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def _tensor(data: bytes, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"no tensor has the dtype {dtype!r}")
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=kind) if not data else None
    return torch.frombuffer(_own(data), dtype=kind).reshape(shape)


def _own(data: bytes | bytearray) -> bytearray:
    """Returns the bytes in writable form. If the pickled object was writable, the pickle already contains writable
    bytes."""
    return data if type(data) is bytearray else bytearray(data)


def _file_parts(file: Any) -> _Made | None:
    if file.closed or vars(file):
        return None
    return (_text_file if type(file) is io.StringIO else _bytes_file), (file.getvalue(), file.tell())


def _bytes_file(content: bytes, position: int) -> io.BytesIO:
    file = io.BytesIO(bytes(content))
    file.seek(position)
    return file


def _text_file(content: str, position: int) -> io.StringIO:
    file = io.StringIO(content, newline="")
    file.seek(position)
    return file


for _maker in (_array, _tensor):
    _makers[_maker.__module__, _maker.__qualname__] = _maker
register(io.BytesIO, _file_parts, _bytes_file)
register(io.StringIO, _file_parts, _text_file)
