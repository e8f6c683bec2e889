"""The pipe that reads TFRecord files: TFRecordLoader.

The position in a stream is the offset and the number of the next record.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from math import prod
from operator import index
from typing import Any, TypeAlias

from torchdata import _native
from torchdata._redacting import shown
from torchdata.datapipes._pipe.checks import check_int
from torchdata.datapipes._pipe.declared_length import DeclaredLength
from torchdata.datapipes._pipe.state.declared import checked_state, state
from torchdata.datapipes.iter.streams.pairs import HoldsStream, position_of, source_pipe
from torchdata.datapipes.utils._streams import detached

__all__ = ["TFRecordExample", "TFRecordExampleSpec", "TFRecordLoader"]

#: An item of a `TFRecordLoader`: a dict from the name of a feature to an array, a tensor or a list.
TFRecordExample: TypeAlias = dict[str, Any]
#: The argument `spec` of `TFRecordLoader`: a dict from the name of a feature to a pair of shape and dtype.
TFRecordExampleSpec: TypeAlias = Mapping[str, tuple[tuple[int, ...] | None, Any] | None]

#: The default size limit of a record in bytes.
MAX_LENGTH = 128 << 20

_LONGEST = (1 << 31) - 1

#: The kinds of NumPy dtypes (`dtype.kind`) that `spec` may contain.
_NUMBERS = "biufc"


class TFRecordLoader(DeclaredLength, HoldsStream[dict[str, Any]]):
    """Reads TFRecord files of `tf.train.Example` and `tf.train.SequenceExample`: yields a dict per record.

    A feature of floats becomes an array of float32, a feature of integers an array of int64, and a feature of bytes a
    list of bytes. If PyTorch is imported, the result contains tensors instead of arrays. A feature list of a
    SequenceExample becomes a list with one array or list of bytes per step. The pipe works without TensorFlow and
    protobuf.

    Args:
        datapipe: yields pairs of path and binary stream. Each stream is closed after it was read. Compressed streams
            must be decompressed by an earlier pipe.
        spec: a dict from the name of each feature to read to a pair of shape and dtype. The shape is a tuple (one
            length may be -1, which is then inferred), or None to keep the shape in the record. The dtype is a dtype of
            NumPy or torch, or None for the type in the record; a feature of bytes requires None, and becomes a nested
            list. If a dtype is given, the steps of a feature list are stacked into one array. If `spec` contains None
            instead of a pair for a feature, the feature stays unchanged. If a SequenceExample contains a name both in
            its context and among its feature lists, the name refers to the context. If `spec` is None (the default),
            all features are read unchanged.
        length: the number of records that `len` returns; with -1 (the default), `len` raises TypeError.
        verify_checksums: whether records with wrong checksums (CRC-32C) cause an error; True by default.
        max_length: maximum size of a record in bytes, 128 MiB by default; None for 2 GiB, the limit of protocol
            buffers. A record over `max_length` raises an error before it is read. As Python objects, the values of a
            record may need sixty times as much memory as the record in the file.

    Raises:
        TypeError: `spec` is not a dict of pairs, or `length` or `max_length` is not an integer; or, while iterating, a
            stream contains text.
        ValueError: a shape or dtype in `spec` is invalid, or `max_length` is less than 1.
        RuntimeError: while iterating, a record is damaged or too long, lacks a feature of `spec` or does not fit it;
            the message names path, record (from 0) and byte.

    Example:
        >>> from torchdata.datapipes.iter import FileLister
        >>> files = FileLister("records", "*.tfrecord").open_files(mode="b")
        >>> examples = files.load_from_tfrecord({"image": ((), None), "label": ((), "int64")})
    """

    datapipe: Any
    _point: Any = checked_state(({"offset": int, "record": int, "unread": bytes}, None))
    _open: tuple[Any, _native.TFRecordReader] | None = state(saved=False)
    _has_offset: bool = state(False, saved=False)

    def __init__(
        self,
        datapipe: Iterable[tuple[str, Any]],
        spec: TFRecordExampleSpec | None = None,
        length: int = -1,
        verify_checksums: bool = True,
        *,
        max_length: int | None = MAX_LENGTH,
    ) -> None:
        self.datapipe = source_pipe(datapipe, self)
        self._set_length(length)
        self.spec = None if spec is None else _checked(spec)
        self.verify_checksums = verify_checksums
        longest = _LONGEST if max_length is None else check_int("TFRecordLoader", "max_length", max_length, least=1)
        self.max_length = min(longest, _LONGEST)

    def _read(self, path: str, stream: Any, point: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
        self._open = None
        if not hasattr(stream, "read"):
            raise TypeError(
                f"TFRecordLoader expects pairs of path and binary stream, but got {shown(stream)} for {shown(path)}"
            )
        offset = position_of(stream)
        self._has_offset = offset is not None
        if point is None:
            point = {"offset": offset or 0, "record": 0, "unread": b""}
        torch = sys.modules.get("torch")
        reader = _native.TFRecordReader(
            stream.read,
            f"TFRecordLoader: {shown(path)}",
            wanted=None if self.spec is None else set(self.spec),
            convert=None if torch is None else torch.from_numpy,
            finish=None if self.spec is None else partial(_applied, _appliers(self.spec, torch)),
            verify=self.verify_checksums,
            longest=self.max_length,
            **point,
        )
        self._open = (stream, reader)
        return reader

    def _bookmark(self, path: str, stream: Any) -> tuple[Any, Any]:
        if self._open is None:  # the stream was refused
            return detached(stream), self._point
        reader = self._open[1]
        placeholder = detached(stream, reader.offset if self._has_offset else None)
        # If the stream cannot be reopened, the state must contain the bytes that were read after the last yielded
        # record.
        unread = reader.unread if placeholder is stream else b""
        return placeholder, {"offset": reader.offset, "record": reader.record, "unread": unread}

    def _release(self, stream: Any) -> None:
        if self._open is not None and self._open[0] is stream:
            self._open = None
        super()._release(stream)


def _checked(spec: Any) -> dict[str, tuple[Any, Any]]:
    if not isinstance(spec, Mapping):
        raise TypeError(f"TFRecordLoader: spec must be a dict from name to (shape, dtype), but got {spec!r}")
    return {name: _checked_entry(name, entry) for name, entry in spec.items()}


def _checked_entry(name: Any, entry: Any) -> tuple[Any, Any]:
    entry = (None, None) if entry is None else entry
    if not isinstance(name, str) or not isinstance(entry, (tuple, list)) or len(entry) != 2:
        raise TypeError(
            f"TFRecordLoader: spec must map names to pairs (shape, dtype) or None, but got {entry!r} for {name!r}"
        )
    shape, dtype = entry
    if shape is not None:
        try:
            shape = tuple(map(index, shape))
        except TypeError:
            raise ValueError(
                f"TFRecordLoader: spec[{name!r}] has the shape {shape!r}, but must have a tuple of integers or None"
            ) from None
        if min(shape, default=0) < -1 or shape.count(-1) > 1:
            raise ValueError(
                f"TFRecordLoader: spec[{name!r}] has the shape {shape!r}, but at most one length may be -1, and no "
                "length may be less"
            )
    _dtype_for(name, dtype, sys.modules.get("torch"))
    return shape, dtype


def _dtype_for(name: str, dtype: Any, torch: Any) -> Any:
    """Converts `dtype` to a dtype of torch or, if torch is not loaded, of NumPy. Returns None for None and for
    `bytes`."""
    if dtype is None or dtype is bytes or (torch is not None and isinstance(dtype, torch.dtype)):
        return None if dtype is bytes else dtype
    import numpy as np

    try:
        converted = np.dtype(dtype)
        if converted.kind not in _NUMBERS:
            raise TypeError("it is not a numeric type")
        return converted if torch is None else torch.from_numpy(np.empty(0, converted)).dtype
    except TypeError as error:
        raise ValueError(
            f"TFRecordLoader: spec[{name!r}] has the dtype {dtype!r}, but must have one of NumPy's or torch's "
            f"types of numbers, or None ({error})"
        ) from error


def _appliers(spec: dict[str, tuple[Any, Any]], torch: Any) -> dict[str, Callable[[Any], Any]]:
    return {
        name: partial(_as_specified, name, shape, _dtype_for(name, dtype, torch), torch)
        for name, (shape, dtype) in spec.items()
    }


def _applied(appliers: dict[str, Callable[[Any], Any]], example: dict[str, Any]) -> dict[str, Any]:
    if len(example) != len(appliers):
        missing = sorted(appliers.keys() - example.keys())
        raise RuntimeError(f"Example is missing some required keys: {missing}; remove optional keys from spec")
    for name, value in example.items():
        example[name] = appliers[name](value)
    return example


def _as_specified(name: str, shape: tuple[int, ...] | None, dtype: Any, torch: Any, value: Any) -> Any:
    if isinstance(value, list):  # a list of bytes, or the steps of a feature list
        numbers = all(hasattr(step, "shape") for step in value)
        if dtype is not None:
            if not numbers:
                raise RuntimeError(
                    f"feature {name!r} holds bytes, but its spec has the dtype {dtype}; bytes need the dtype None"
                )
            value = _stacked(name, torch, value)
        elif shape is None:
            return value
        elif not (numbers and value):
            return _nested(name, value, shape)
        else:
            value = (torch or import_module("numpy")).concatenate(value)  # the steps become one array
    if shape is not None:
        value = _reshaped(name, value, shape)
    if dtype is None:
        return value
    return value.astype(dtype, copy=False) if torch is None else value.to(dtype)


def _reshaped(name: str, value: Any, shape: tuple[int, ...]) -> Any:
    try:
        return value.reshape(shape)
    except (ValueError, RuntimeError):
        raise _misfit(name, prod(value.shape), shape) from None


def _misfit(name: str, count: int, shape: tuple[int, ...]) -> RuntimeError:
    return RuntimeError(f"Cannot reshape {count} values of feature {name!r} into shape {shape}")


def _stacked(name: str, torch: Any, steps: list[Any]) -> Any:
    lengths = sorted({len(step) for step in steps})
    if len(lengths) != 1:
        found = f"steps of the lengths {lengths}" if lengths else "no steps"
        raise RuntimeError(
            f"feature {name!r} has {found}, which cannot be stacked; with the spec (None, None) it is a list of steps"
        )
    return (torch or import_module("numpy")).stack(steps)


def _nested(name: str, value: list[Any], shape: tuple[int, ...]) -> Any:
    flat: list[Any] = []
    for member in value:
        if isinstance(member, bytes):
            flat.append(member)
        else:
            flat.extend(member)
    known = prod(length for length in shape if length != -1)
    whole = tuple(len(flat) // max(known, 1) if length == -1 else length for length in shape)
    if prod(whole) != len(flat):
        raise _misfit(name, len(flat), shape)
    for depth in range(len(whole) - 1, 0, -1):
        length = whole[depth]
        flat = [flat[i * length : (i + 1) * length] for i in range(prod(whole[:depth]))]
    return flat if whole else flat[0]
