"""Converts a batch of items to one item with arrays, or with tensors if PyTorch is imported.

Stacked arrays are allocated by `torchdata.empty`, in memory that a worker can send without a copy.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any, Literal

from torchdata._reporting import add_note

__all__ = [
    "arrays_as_tensor",
    "collate_columns",
    "default_collate",
    "is_stackable",
    "note_remedy",
    "rebuilt",
    "stacked_tensors",
]

_TENSOR_KINDS = "biufc"


def default_collate(batch: Any, to: Literal["numpy", "torch"] | None = None) -> Any:
    """Converts a batch of items to one item, with arrays that contain the values of all items.

    Arrays are stacked along a new first dimension. Numbers become a one-dimensional array (of float64 for Python
    floats, and int64 for integers). Strings and bytes are collected in a list. Strings and bytes that are members of
    tuples or lists are collected in tuples. Dicts, named tuples, tuples and lists are collated member by member, and
    tuples become lists. If PyTorch is imported, the results are tensors, as from `torch.utils.data.default_collate`;
    otherwise, they are NumPy arrays. Pass `to="numpy"` or `to="torch"` if a library such as `datasets` may import
    PyTorch.

    Args:
        batch: a non-empty sequence of items that have equal structure, such as dicts with equal keys.
        to: the kind of results: "numpy" for arrays, "torch" for tensors; None (the default) for tensors only if PyTorch
            is imported.

    Raises:
        TypeError: the items have a type that cannot be collated.
        ValueError: the batch is empty, or arrays have different shapes.
        RuntimeError: sequences have different lengths.

    Example:
        >>> from torchdata.datapipes.utils.collate import default_collate
        >>> default_collate([{"x": 1, "name": "a"}, {"x": 2, "name": "b"}])
        {'x': array([1, 2]), 'name': ['a', 'b']}
    """
    try:
        return _collated(batch, to)
    except Exception as error:
        note_remedy(error, batch)
        raise


def note_remedy(error: Exception, batch: Any) -> None:
    """Adds a note with a remedy to the error if items of the batch have different keys or contain None."""
    remedy = _remedy(batch)
    if remedy is not None:
        add_note(error, remedy)


def _remedy(batch: Any) -> str | None:
    if not isinstance(batch, Sequence):
        return f"collate() joins the items of a batch, but got {type(batch).__name__}: write .batch(n) before it."
    if any(isinstance(item, Mapping) for item in batch):
        keys = [set(item) if isinstance(item, Mapping) else None for item in batch]
        odd = next((index for index, found in enumerate(keys) if found != keys[0]), None)
        if odd is not None:
            return (
                f"All items of a batch need the same keys, but item 0 {_keys(batch[0])} and item {odd} "
                f"{_keys(batch[odd])}: give each item the same keys, or pass collate_fn."
            )
    found = next((where for index, item in enumerate(batch) for where in _find_nones(item, f"item {index}")), None)
    if found is None:
        return None
    return f"None cannot be collated, and {found} of the batch is None: filter such items out, or pass collate_fn."


def _keys(item: Any) -> str:
    if not isinstance(item, Mapping):
        return f"is of type {type(item).__name__}"
    return f"has {', '.join(map(repr, item)) or 'none'}"


def _find_nones(item: Any, where: str) -> Iterator[str]:
    if item is None:
        yield where
    elif isinstance(item, Mapping):
        for key, value in item.items():
            yield from _find_nones(value, f"{key!r} in {where}")
    elif isinstance(item, (tuple, list)):
        for index, value in enumerate(item):
            yield from _find_nones(value, f"member {index} of {where}")


def _collated(batch: Any, to: Literal["numpy", "torch"] | None) -> Any:
    if len(batch) == 0:
        raise ValueError("default_collate: cannot collate an empty batch")
    first = batch[0]
    if isinstance(first, (str, bytes)):
        return batch  # a list, or a tuple for a column of tuples or lists, as in torch
    torch = _torch_for(to)
    if isinstance(first, (bool, int, float)) and not hasattr(first, "dtype"):
        return _numbers(torch, batch, first)
    if isinstance(first, Mapping):
        return rebuilt(first, {key: _collated([item[key] for item in batch], to) for key in first})
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*[_collated(column, to) for column in _columns(batch)])
    if isinstance(first, tuple):
        return [_collated(column, to) for column in _columns(batch)]
    if isinstance(first, Sequence):
        return rebuilt(first, [_collated(column, to) for column in _columns(batch)])
    loaded = sys.modules.get("torch")
    if loaded is not None and isinstance(first, loaded.Tensor):
        if to == "numpy":
            return _collated([item.numpy(force=True) for item in batch], to)
        return _stacked_tensors(loaded, batch)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(first, (numpy.ndarray, numpy.generic)):
        return _stacked_arrays(torch, numpy, batch)
    if torch is not None:  # users can extend torch's map of collate functions
        return torch.utils.data.default_collate(batch)
    raise TypeError(
        "default_collate: a batch must contain arrays, numbers, strings, bytes, dicts, tuples or lists, but found "
        f"{type(first).__name__}; pass collate_fn, or convert the items first"
    )


def _torch_for(to: str | None) -> Any:
    if to is None:
        return sys.modules.get("torch")
    return None if to == "numpy" else importlib.import_module("torch")


def _numbers(torch: Any, batch: Any, first: Any) -> Any:
    if torch is not None:
        return torch.tensor(list(batch), dtype=torch.float64) if isinstance(first, float) else torch.tensor(list(batch))
    import numpy as np

    if isinstance(first, float):
        return np.array(batch, dtype=np.float64)
    numbers = np.array(batch)
    if numbers.ndim == 1 and numbers.dtype.kind in "bif":
        return numbers
    # Because of `dtype`, NumPy raises an error for numbers that are too large and for values that are not numbers.
    return np.array(batch, dtype=np.int64)


def _stacked_arrays(torch: Any, numpy: Any, batch: Any) -> Any:
    from torchdata import empty

    first = batch[0]
    if first.dtype.kind not in _TENSOR_KINDS and (torch is not None or first.dtype.kind in "OV"):
        raise TypeError(
            f"default_collate: arrays of type {first.dtype} cannot be collated; convert them to numbers or "
            f"pass collate_fn"
        )
    arrays = [numpy.asarray(item) for item in batch]
    shape, dtype = arrays[0].shape, numpy.result_type(*{array.dtype for array in arrays})
    odd = next((array for array in arrays if array.shape != shape), None)
    if odd is not None:
        raise (ValueError if torch is None else RuntimeError)(
            f"default_collate: stack expects each array to be of equal size, but got {shape} and {odd.shape}; resize "
            "or pad the arrays before, or pass collate_fn"
        )
    if not dtype.isnative:
        dtype = dtype.newbyteorder("=")
    if torch is None:
        return numpy.stack(arrays, out=empty((len(arrays), *shape), dtype))
    stacked = empty((len(arrays), *shape), torch.from_numpy(numpy.empty(0, dtype)).dtype)
    numpy.stack(arrays, out=stacked.numpy())
    return stacked


def _stacked_tensors(torch: Any, batch: Any) -> Any:
    if is_stackable(torch, batch):
        with contextlib.suppress(RuntimeError):  # torch's own function raises a better error below
            return stacked_tensors(torch, batch)
    return torch.utils.data.default_collate(batch)


def is_stackable(torch: Any, batch: Any) -> bool:
    """Returns whether a batch consists of tensors of one kind, possibly with different shapes."""
    first = batch[0]
    if type(first) is not torch.Tensor or first.layout is not torch.strided or first.is_quantized or first.is_nested:
        return False
    return first.is_cpu and len(set(map(type, batch))) == 1 and len({item.dtype for item in batch}) == 1


def stacked_tensors(torch: Any, batch: Any) -> Any:
    """Stacks tensors in memory that a worker can send without a copy."""
    from torchdata import empty

    return torch.stack(tuple(batch), out=empty((len(batch), *batch[0].shape), batch[0].dtype))


def arrays_as_tensor(torch: Any, batch: Any) -> Any:
    """Stacks arrays to a tensor in memory that a worker can send without a copy.

    Returns None if the members are not arrays, have different shapes, or have a type that torch does not support.
    """
    import numpy as np

    from torchdata import empty

    if set(map(type, batch)) != {np.ndarray}:
        return None
    shape, kind = batch[0].shape, batch[0].dtype
    if not kind.isnative or kind.kind not in _TENSOR_KINDS or not shape or 0 in shape:
        return None
    if any(array.shape != shape for array in batch) or {array.dtype for array in batch} != {kind}:
        return None
    steps = {step for array in batch for step in array.strides}
    if any(step < 0 or step % kind.itemsize for step in steps):
        return None
    locked = next((array for array in batch if not array.flags.writeable), batch[0])
    looked_at = torch.as_tensor(locked)  # torch warns once about read-only arrays
    if not looked_at.is_cpu:
        return None
    stacked = empty((len(batch), *shape), looked_at.dtype)
    np.concatenate(batch, out=stacked.numpy().reshape(-1, *shape[1:]))
    return stacked


def _columns(batch: Any) -> list[tuple[Any, ...]]:
    width = len(batch[0])
    if any(len(item) != width for item in batch):
        raise RuntimeError(
            "default_collate: each element in list of batch should be of equal size, but the lengths are "
            f"{[len(item) for item in batch]}; pad them before, or pass collate_fn"
        )
    return list(zip(*batch, strict=True))


def rebuilt(first: Any, collated: Any) -> Any:
    """Converts `collated`, a dict or a list, to the class of `first` if possible."""
    if type(first) is type(collated):
        return collated
    try:
        # `first` is copied if possible, because it may contain further data, such as the default factory of a
        # `defaultdict`.
        if not isinstance(first, (MutableMapping, MutableSequence)):
            return type(first)(collated)
        clone: Any = copy.copy(first)
        if isinstance(first, MutableMapping):
            clone.update(collated)
            return clone
        for index, member in enumerate(collated):
            clone[index] = member
        return clone
    except (TypeError, AttributeError):
        return collated


def collate_columns(conversion: Mapping[Any, Callable[..., Any]] | Sequence[Callable[..., Any]], batch: Any) -> Any:
    """Collates each column of a batch by its function in `conversion`.

    Columns without a function are collated by `default_collate`.

    Args:
        conversion: functions by column name, for a batch of mappings or of one data frame; or functions by
            position, for a batch of tuples or lists.
        batch: the batch. The result is a named tuple of columns for a data frame, a dict for mappings, and a list for
            sequences.

    Raises:
        RuntimeError: a column of `conversion` is missing, or the batch contains several data frames.
        TypeError: `batch` is not a batch of mappings, tuples, lists or one data frame.
    """
    if isinstance(batch, Mapping) or not hasattr(batch, "__getitem__"):
        raise TypeError(f"collate: conversions need batches, but got {type(batch).__name__}; put `.batch` before it")
    first = batch[0]
    functions: Mapping[Any, Any] = conversion if isinstance(conversion, Mapping) else dict(enumerate(conversion))
    if not isinstance(conversion, Mapping):
        columns: Any = dict(enumerate(_columns(batch)))
        _require(functions, columns)
        return [functions.get(name, default_collate)(list(values)) for name, values in columns.items()]
    if isinstance(first, Mapping):
        _require(functions, first)
        return {name: functions.get(name, default_collate)([item[name] for item in batch]) for name in first}
    if not hasattr(first, "columns"):
        raise TypeError(
            "collate: a dict of conversions needs batches of dicts or of one data frame, but the batch holds "
            f"{type(first).__name__}"
        )
    if len(batch) > 1:
        raise RuntimeError(f"collate: only one data frame per batch is supported, but the batch holds {len(batch)}")
    names = list(first.columns)
    _require(functions, names)
    values = [functions.get(name, _whole_column)(first[name]) for name in names]
    result: Callable[..., Any] = namedtuple("CollateResult", map(str, names))  # type: ignore[misc]
    return result(*values)


def _whole_column(column: Any) -> Any:
    import numpy as np

    return default_collate(list(np.asarray(column)))


def _require(conversion: Mapping[Any, Any], columns: Any) -> None:
    missing = [name for name in conversion if name not in columns]
    if missing:
        raise RuntimeError(f"collate: Conversion keys mismatch: no column {missing} in {list(columns)}")
