"""Creates data frames of pandas, polars and pyarrow, and dicts of NumPy arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from torchdata._optional import optional_import
from torchdata.datapipes._pipe.arrow_arrays import arrays_of
from torchdata.datapipes._pipe.checks import check_callable

#: The supported libraries, each with the extra of this package to install. "numpy" means dicts of arrays, which require
#: pyarrow.
LIBRARIES = {"pandas": "parquet", "polars": "polars", "pyarrow": "parquet", "numpy": "parquet"}


def check_column_names(pipe: str, columns: Any) -> list[str] | None:
    if columns is None:
        return None
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise TypeError(f"{pipe}: columns must be a list of names or None, but got {columns!r}")
    for name in columns:
        if not isinstance(name, str):
            raise TypeError(f"{pipe}: columns must be names, but one is {name!r} of type {type(name).__name__}")
    if not columns or len(set(columns)) < len(columns):
        raise ValueError(f"{pipe}: columns must name at least one column, and none twice, but got {columns!r}")
    return list(columns)


def check_device(pipe: str, device: Any) -> None:
    if device not in ("", "cpu"):
        raise ValueError(
            f"{pipe}: device must be '' or 'cpu', but got {device!r}; frames are in main memory: move the tensors that "
            "are made from them"
        )


class FrameFormat:
    """The settings for creating frames.

    Args:
        library: the library of the frames: `"pandas"`, `"polars"`, `"pyarrow"`, or `"numpy"` if `arrays` is True.
        dtype: the types of the columns: a `pyarrow.Schema`, a mapping from column to dtype, or one dtype for all
            columns; None if the user has not given the types.
        dtype_generator: a function that returns the dtype, used if `dtype` is None.
        arrays: whether the library may be `"numpy"`, which creates dicts from column name to array (see `arrays_of`).
    """

    def __init__(
        self,
        pipe: str,
        library: str,
        dtype: Any,
        dtype_generator: Callable[[], Any] | None = None,
        *,
        arrays: bool = False,
        writable: bool = True,
    ) -> None:
        libraries = [name for name in LIBRARIES if arrays or name != "numpy"]
        if not isinstance(library, str) or library not in libraries:
            raise ValueError(f"{pipe}: library must be one of {libraries}, but got {library!r}")
        self.pipe = pipe
        self.library = library
        self.writable = writable
        self.dtype = dtype
        check_callable(pipe, "dtype_generator", dtype_generator, optional=True)
        self.dtype_generator = dtype_generator if dtype is None else None
        self.module()
        self._check_dtype()

    def module(self) -> Any:
        return optional_import(self.library, extra=LIBRARIES[self.library], needed_by=self.pipe)

    def _arrow(self) -> Any:
        return optional_import("pyarrow", extra="parquet", needed_by=self.pipe)

    def generated(self) -> FrameFormat:
        if self.dtype_generator is None:
            return self
        return FrameFormat(self.pipe, self.library, self.dtype_generator())

    def _check_dtype(self) -> None:
        kind = self.dtype if isinstance(self.dtype, type) else type(self.dtype)
        if kind.__module__.partition(".")[0] == "torcharrow":
            raise TypeError(
                f"{self.pipe}: dtype is {self.dtype!r} of torcharrow, which is no longer maintained; pass a "
                f"pyarrow.Schema, or a mapping from column to a dtype of {self.library}"
            )
        if self.dtype is None:
            return
        names = self._names() or ["column"]
        try:
            self._of_columns(dict.fromkeys(names, ()))
        except Exception as error:
            raise ValueError(
                f"{self.pipe}: {self.library} does not take the dtype {self.dtype!r} ({error}); pass a pyarrow.Schema, "
                "a mapping from column to dtype, or one dtype for all columns"
            ) from error

    # -- dtypes ------------------------------------------------------------------------------------

    def _has_schema(self) -> bool:
        arrow = sys.modules.get("pyarrow")  # a dtype can only be a schema if pyarrow is loaded
        return arrow is not None and isinstance(self.dtype, arrow.Schema)

    def _names(self) -> list[str] | None:
        if self._has_schema():
            return list(self.dtype.names)
        return list(self.dtype) if isinstance(self.dtype, Mapping) else None

    def _by_column(self, columns: Sequence[Any]) -> dict[Any, Any]:
        if self.dtype is None:
            return {}
        names = self._names()
        if names is None:
            return dict.fromkeys(columns, self.dtype)
        unknown = [name for name in names if name not in columns]
        if unknown:
            raise ValueError(f"{self.pipe}: dtype names columns {unknown}, but the frame has {[*columns]}")
        if self._has_schema():
            return {field.name: field.type for field in self.dtype}
        return dict(self.dtype)

    def _arrow_type(self, dtype: Any) -> Any:
        arrow = self._arrow()
        if dtype is None or isinstance(dtype, arrow.DataType):
            return dtype
        if self.library == "numpy":
            return arrow.from_numpy_dtype(self.module().dtype(dtype))
        if isinstance(dtype, str):
            return arrow.type_for_alias(dtype)
        return arrow.from_numpy_dtype(dtype)

    # -- frames of rows ----------------------------------------------------------------------------

    def of_rows(self, rows: list[Any], columns: list[str] | None) -> Any:
        return self._of_columns(self._columns_of(rows, columns))

    def _columns_of(self, rows: list[Any], columns: list[str] | None) -> dict[Any, Sequence[Any]]:
        names = columns if columns is not None or not self._has_schema() else self._names()
        kinds = set(map(type, rows))
        if all(issubclass(kind, Mapping) for kind in kinds):
            return self._columns_of_mappings(rows, names)
        if all(issubclass(kind, (tuple, list)) for kind in kinds):
            widths = list(map(len, rows))
        elif not any(issubclass(kind, (tuple, list, Mapping)) for kind in kinds):
            widths = [1]
            rows = [(row,) for row in rows]
        else:
            raise TypeError(
                f"{self.pipe}: the rows of a frame must be of one kind, but there are "
                f"{sorted(kind.__name__ for kind in kinds)}"
            )
        if len(set(widths)) > 1:
            odd = next(index for index, width in enumerate(widths) if width != widths[0])
            raise ValueError(
                f"{self.pipe}: all rows of a frame must have {widths[0]} values, as the first row has, but row {odd} "
                f"is {rows[odd]!r}"
            )
        if names is None:
            names = getattr(rows[0], "_fields", None) or self._names() or self._default_names(widths[0])
        if not widths[0] or len(names) != widths[0]:
            raise ValueError(
                f"{self.pipe}: columns or dtype name {len(names)} columns ({[*names]}), but rows have {widths[0]} "
                f"values, such as {rows[0]!r}"
            )
        return dict(zip(names, zip(*rows, strict=True), strict=True))

    def _columns_of_mappings(self, rows: list[Any], names: list[str] | None) -> dict[Any, Sequence[Any]]:
        if names is None:
            found = dict.fromkeys(chain.from_iterable(rows))  # all columns that occur in at least one row
            if not found:
                raise ValueError(f"{self.pipe}: no row of a frame has a column: all are {rows[0]!r}")
            return {name: [row.get(name) for row in rows] for name in found}
        for index, row in enumerate(rows):
            missing = [name for name in names if name not in row]
            if missing:
                raise ValueError(
                    f"{self.pipe}: row {index} of a frame lacks the columns {missing}: {row!r}; use None for missing "
                    "values, or pass no column names"
                )
        return {name: [row[name] for row in rows] for name in names}

    def _default_names(self, count: int) -> list[Any]:
        return list(range(count)) if self.library == "pandas" else [f"column_{i}" for i in range(count)]

    def _of_columns(self, columns: dict[Any, Sequence[Any]]) -> Any:
        module, types = self.module(), self._by_column([*columns])
        if self.library in ("pyarrow", "numpy") or self._has_schema():
            arrow = self._arrow()
            arrays = [arrow.array(values, type=self._arrow_type(types.get(name))) for name, values in columns.items()]
            return self._converted(arrow.table(arrays, names=list(map(str, columns))))
        lists = {name: list(values) for name, values in columns.items()}
        if self.library == "polars":
            return module.DataFrame(lists, schema_overrides=types)
        for name, dtype in types.items():
            lists[name] = module.Series(lists[name], dtype=dtype)
        return module.DataFrame(lists)

    # -- frames of Arrow tables --------------------------------------------------------------------

    def of_table(self, table: Any) -> Any:
        types = self._by_column(table.column_names)
        if self.library in ("pyarrow", "numpy") or self._has_schema():
            fields = [field.with_type(self._arrow_type(types.get(field.name)) or field.type) for field in table.schema]
            wanted = self._arrow().schema(fields, metadata=table.schema.metadata)
            return self._converted(table if wanted == table.schema else table.cast(wanted))
        frame = self._converted(table)
        if self.library == "polars":
            return frame.cast(types) if types else frame
        for name, dtype in types.items():
            dtype = self.module().api.types.pandas_dtype(dtype)
            if hasattr(dtype, "__from_arrow__"):  # this conversion is exact, whereas a conversion through floats is not
                frame[name] = self.module().Series(dtype.__from_arrow__(table[name]), index=frame.index)
            else:
                frame[name] = frame[name].astype(dtype)
        return frame

    def _converted(self, table: Any) -> Any:
        if self.library == "numpy":
            return arrays_of(table, self.pipe, self.writable)
        if self.library == "polars":
            return self.module().from_arrow(table)
        return table.to_pandas(use_threads=False) if self.library == "pandas" else table
