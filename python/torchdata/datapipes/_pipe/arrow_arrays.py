"""Converts the columns of an Arrow table to NumPy arrays, for the argument `library="numpy"` of pipes."""

from __future__ import annotations

from typing import Any


def arrays_of(table: Any, pipe: str, writable: bool = True) -> dict[str, Any]:
    """Converts each column to an array. pyarrow's own conversion is not used, because it turns integers with nulls into
    floats, and nulls of some types into ordinary values. The arrays are:

    - numbers and booleans: an array of the column's type; a null becomes NaN in floats, and raises an error in other
      types;
    - dates, timestamps (in UTC, if they have a zone) and durations: datetime64 and timedelta64; a null becomes NaT;
    - lists: an array of objects with one converted array per row; a null becomes None;
    - other types: an array of the objects that `to_pylist` returns (a struct is a dict); a null becomes None.

    Raises:
        ValueError: two columns have the same name, or integers or booleans contain nulls.
    """
    names = table.column_names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{pipe}: columns of a dict need different names, but there are several named {twice}")
    return {name: _array_of(column, name, pipe, writable) for name, column in zip(names, table.columns, strict=True)}


def _array_of(column: Any, name: str, pipe: str, writable: bool) -> Any:
    import pyarrow

    types, kind = pyarrow.types, column.type
    if types.is_dictionary(kind):
        return _array_of(column.cast(kind.value_type), name, pipe, writable)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _lists(column, name, pipe, writable)
    if types.is_integer(kind) or types.is_boolean(kind):
        if column.null_count:
            raise ValueError(
                f"{pipe}: column {name!r} has nulls, and an array of {kind} has no value for them; give it a dtype of "
                f"floats, where they are NaN (dtype={{{name!r}: 'float64'}}; for lists a pyarrow.Schema), or fill them "
                "in the file"
            )
        return _owned(column) if writable else _numbers(column)
    if types.is_floating(kind) or types.is_date(kind) or types.is_timestamp(kind) or types.is_duration(kind):
        return _owned(column) if writable else _numbers(column)
    return _objects(column.to_pylist())


def _numbers(column: Any) -> Any:
    one = getattr(column, "num_chunks", 0) == 1
    return column.chunk(0).to_numpy(zero_copy_only=False) if one else column.to_numpy()


def _owned(column: Any) -> Any:
    values = column.to_numpy()
    return values if values.flags.writeable else values.copy()


def _lists(column: Any, name: str, pipe: str, writable: bool) -> Any:
    import pyarrow.compute

    lengths = pyarrow.compute.list_value_length(column).to_pylist()  # the length of a null is None
    values = _array_of(pyarrow.compute.list_flatten(column), name, pipe, writable)
    rows, start = [], 0
    for length in lengths:
        rows.append(None if length is None else values[start : start + length])
        start += length or 0
    return _objects(rows)


def _objects(values: list[Any]) -> Any:
    """Returns a one-dimensional array of objects. Unlike `numpy.array`, does not convert nested sequences to further
    dimensions."""
    import numpy as np

    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        array[index] = value
    return array
