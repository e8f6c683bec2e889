"""Pickles of plain data, which are safe to load, and states of pipes, which separate plain data from other values.

A pickle of plain data refers only to functions of this package that create arrays, batches and files, and that are safe
with any arguments. Before unpickling, the extension refuses instructions that plain data does not need. The extension
refuses lengths that exceed the size of the pickle, because such lengths could make Python allocate gigabytes.

`to_plain` converts the result of a pipe's `state_dict` to a value that the pipe cannot change later. `to_plain` does
not change `None`, `bool`, `int`, `float`, `str`, `bytes`, flat lists and tuples of these types, and dicts of all these
types. Values of other types, such as arrays, are pickled together, so that an item that two queues of a pipe contain
remains a single object. In a state, a pickle of plain data is stored under the key `NESTED`. A pickle of any other data
is stored under the key `PICKLED`, and is loaded only from trusted states.

A sealed snapshot consists of a header (magic number, version, length, CRC-32 checksum) and a pickle of plain data. The
checksum is verified before unpickling. A pickle that refers to classes is rejected.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import sys
import zlib
from collections.abc import Callable
from types import FunctionType, NoneType
from typing import Any

from torchdata._bounded_pickles import pickle_file
from torchdata._handlers import FailuresSuppressed, raise_if_of_handler
from torchdata._native import check_plain_pickle

_Made = tuple[Callable[..., Any], tuple[Any, ...]]

#: For each class of plain data: a function that returns the constructor and the arguments to recreate an instance, or
#: None if the instance is not plain data.
_known: dict[type, Callable[[Any], _Made | None]] = {}
_makers: dict[tuple[str, str], Callable[..., Any]] = {}

#: Arrays with fewer than `_SMALL` bytes are copied, which is faster than creating a view.
_SMALL = 4096

#: The kinds (`dtype.kind`) of dtypes with numbers, booleans or times as elements.
_KINDS = frozenset("biufcmM")


def register(kind: type, parts: Callable[[Any], _Made | None], *makers: Callable[..., Any]) -> None:
    """Registers a class as plain data; its subclasses are not included.

    Args:
        parts: a function that returns one of the `makers` and its arguments, to recreate an equal instance; or None if
            the instance is not plain data.
        makers: the functions that `parts` may return; malicious pickles may call them with any arguments.
    """
    _known[kind] = parts
    for maker in makers:
        # Pickles refer to Python functions as members of this module, and remain valid when source files are moved.
        if isinstance(maker, FunctionType):
            assert globals().setdefault(maker.__name__, maker) is maker, "two functions have the same name"
            maker.__module__ = __name__
        _makers[maker.__module__, maker.__qualname__] = maker


class _NotPlainError(Exception):
    pass


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        parts = _known.get(type(obj)) or _of_library(type(obj))
        made = None if parts is None else parts(obj)
        if made is not None:
            return made
        if _makers.get((getattr(obj, "__module__", ""), getattr(obj, "__qualname__", ""))) is obj:
            return NotImplemented
        raise _NotPlainError


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _makers:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return _makers[module, name]


def dumps_plain(value: Any) -> bytes | None:
    """Returns the pickle of plain data, or None for any other value.

    Plain data are `None`, `bool`, `int`, `float`, `str`, `bytes`, `bytearray`, arrays and tensors of numbers, batches,
    in-memory files, files by path, and tuples, lists, dicts, sets and frozensets of these.
    """
    try:
        with pickle_file() as file:
            _Pickler(file, protocol=5).dump(value)
    except (_NotPlainError, RecursionError, TypeError):
        return None
    return file.getvalue()


def loads_plain(pickled: Any) -> Any:
    check_plain_pickle(pickled)
    try:
        return _Unpickler(io.BytesIO(pickled)).load()
    except Exception as error:
        raise ValueError(f"they are not a pickle of plain data ({type(error).__name__}: {error})") from None


#: The dict key for a pickle that may run code when loaded.
PICKLED = "__pickled__"

#: The dict key for a pickle of plain data.
NESTED = "__nested__"

#: The key of a state that is not a dict with string keys.
_WHOLE = "__state__"

_RESERVED = frozenset({PICKLED, NESTED})

_ATOMS = frozenset({NoneType, bool, int, float, str, bytes})

_OTHER: Any = object()

_HEADER = struct.Struct("<4sIQI")
_MAGIC, _VERSION = b"tdrs", 1


def seal(snapshot: Any) -> bytes:
    """The pickle is written after a gap for its header, because joining two byte strings would copy the state."""
    with pickle_file() as sealed:
        sealed.seek(_HEADER.size)
        pickle.Pickler(sealed, protocol=5).dump(snapshot)
    with sealed.getbuffer() as written, written[_HEADER.size :] as pickled:
        if written.nbytes:  # the file is empty if the data exceed the limit of the caller's `bounded` context
            _HEADER.pack_into(written, 0, _MAGIC, _VERSION, len(pickled), zlib.crc32(pickled))
    return sealed.getvalue()


def unseal(sealed: Any, what: str) -> Any:
    """Raises ValueError if the bytes are damaged, or have another version."""
    check_seal(sealed, what)
    try:
        return loads_plain(sealed[_HEADER.size :])
    except ValueError as error:
        raise ValueError(f"{what} is damaged: {error}") from None


def check_seal(sealed: Any, what: str) -> None:
    if not is_sealed(sealed):
        raise ValueError(f"{what} is damaged: its length is wrong, or it is not a snapshot")
    _, version, _, checksum = _HEADER.unpack_from(sealed)
    if version != _VERSION:
        raise ValueError(f"{what} has version {version}, but this release reads version {_VERSION}")
    if zlib.crc32(memoryview(sealed)[_HEADER.size :]) != checksum:
        raise ValueError(f"{what} is damaged: its checksum differs from the saved checksum")


def is_sealed(sealed: Any) -> bool:
    """Returns whether the bytes look like a snapshot, without computing the checksum, because computing it takes
    longer.
    """
    if not isinstance(sealed, bytes) or len(sealed) < _HEADER.size:
        return False
    magic, _, length, _ = _HEADER.unpack_from(sealed)
    return bool(magic == _MAGIC and length == len(sealed) - _HEADER.size)


def seal_of(sealed: bytes) -> bytes:
    """Returns the header, which differs between snapshots because it contains a checksum."""
    return sealed[: _HEADER.size]


def to_plain(state: Any, owner: str) -> dict[str, Any]:
    """Converts a state to plain data that shares no mutable object with the state. Raises TypeError if the state
    contains an object that cannot be pickled."""
    if type(state) is not dict or not _RESERVED.isdisjoint(state) or not {str}.issuperset(map(type, state)):
        state = {_WHOLE: state}
    if _ATOMS.issuperset(map(type, state.values())):
        return dict(state)
    plain, others = {}, {}
    for name, value in state.items():
        copied = _copied(value)
        if copied is _OTHER:
            others[name] = value
        else:
            plain[name] = copied
    if others:
        nested = dumps_plain(others)
        plain |= {PICKLED: _pickled(others, owner)} if nested is None else {NESTED: nested}
    return plain


def from_plain(plain: dict[str, Any], owner: str) -> Any:
    copies: dict[int, Any] = {}
    try:
        state = {name: _taken(value, copies) for name, value in plain.items() if name not in _RESERVED}
        if NESTED in plain:
            state |= loads_plain(plain[NESTED])
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"the state of {owner} is damaged: {error}") from error
    if PICKLED in plain:
        try:
            state |= pickle.loads(plain[PICKLED])
        except Exception as error:
            raise_if_of_handler(error)
            raise ValueError(
                f"the state of {owner} cannot be unpickled here ({type(error).__name__}: {error}); load it where the "
                "same modules can be imported as where it was saved"
            ) from error
    return state.get(_WHOLE) if _WHOLE in state else state


class UntrustedPickleError(ValueError):
    """Raised if the caller does not accept pickled values, but a valid state contains them."""


def refuse_pickled(plain: Any, owner: str) -> None:
    if isinstance(plain, dict) and PICKLED in plain:
        raise UntrustedPickleError(
            f"the state of {owner} contains values that need pickle, which allow_pickle=False does not load, "
            f"because unpickling may run any code. Load the state with allow_pickle=True if you trust its author; "
            f"or save a state of pipes that hold only plain data (numbers, texts, bytes, and containers)"
        )


def _taken(value: Any, copies: dict[int, Any]) -> Any:
    """Copies dicts and lists, which the pipe may modify, and returns other objects unchanged."""
    kind = type(value)
    if kind is list:
        return list(value)
    if kind is not dict:
        return value
    if id(value) not in copies:
        copy: dict[Any, Any] = {}
        copies[id(value)] = copy
        copy.update((name, _taken(member, copies)) for name, member in value.items())
    return copies[id(value)]


def _copied(value: Any) -> Any:
    """Returns a copy of a value, or `_OTHER` if the value can only be copied by pickling."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list or kind is tuple:
        return kind(value) if _are_immutable(value) else _OTHER
    if kind is dict and _ATOMS.issuperset(map(type, value)):
        if _ATOMS.issuperset(map(type, value.values())):
            return value.copy()
        copied = {name: _copied(member) for name, member in value.items()}
        return _OTHER if any(member is _OTHER for member in copied.values()) else copied
    return _OTHER


def _are_immutable(values: Any) -> bool:
    """Returns whether each value has a type in `_ATOMS`, or is a nested tuple of such values."""
    return _ATOMS.issuperset(map(type, values)) or all(
        type(value) in _ATOMS or (type(value) is tuple and _are_immutable(value)) for value in values
    )


def _pickled(values: dict[str, Any], owner: str) -> bytes:
    if not any(map(_holds_error, values.values())):
        with FailuresSuppressed():
            with pickle_file() as file:
                pickle.Pickler(file, protocol=5).dump(values)
            return file.getvalue()
    from torchdata._by_value import dumps  # this pickler supports errors, lambdas and local classes

    try:
        return dumps(values)
    except Exception as error:
        raise_if_of_handler(error)
        unpicklable = next((name for name, value in values.items() if not _pickles(value)), None)
        raise TypeError(
            f"the state of {owner} cannot be saved, because what it holds under {unpicklable!r} cannot be pickled "
            f"({type(error).__name__}: {error}); use items that can be pickled"
        ) from error


def _holds_error(value: Any) -> bool:
    """Returns whether a value is an exception, or a list that contains a pair with an exception as its second
    member."""
    if type(value) is list:
        return any(type(one) is tuple and len(one) == 2 and isinstance(one[1], BaseException) for one in value)
    return isinstance(value, BaseException)


def _pickles(value: Any) -> bool:
    from torchdata._by_value import dumps

    with FailuresSuppressed():
        dumps(value)
        return True
    return False


def _of_library(kind: type) -> Callable[[Any], _Made | None] | None:
    """Returns the function that `_known` would contain for a class of NumPy or PyTorch; None for other classes. Classes
    of NumPy and PyTorch are not in `_known`, because this module does not import these libraries."""
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
    """Returns writable bytes, without a copy if the pickled object was writable."""
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
