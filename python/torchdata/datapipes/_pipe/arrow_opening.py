"""Creates the `ArrowSource` for a table.

Role: recognizes the library that a table belongs to, and opens tables that are given by a path. A library is imported
only if one of its tables was given.
"""

from __future__ import annotations

import os
from typing import Any

from torchdata._optional import optional_import
from torchdata._redacting import shown
from torchdata.datapipes._pipe.arrow_sources import ArrowChunks, ArrowFragments, ArrowSource, IcebergFiles
from torchdata.datapipes._pipe.checks import explaining
from torchdata.datapipes._pipe.lance_rows import LanceRows, lance_dataset

_KINDS = "a pyarrow data set or table, a table of deltalake, pyiceberg or lance, a path, or a list of paths"


def _arrow(module: str) -> Any:
    return optional_import(module, extra="parquet", needed_by="ArrowParts")


def arrow_source(source: Any, filter: Any, format: str, part_rows: int | None = None) -> ArrowSource:
    library = type(source).__module__.partition(".")[0]
    if library == "lance" or (isinstance(source, (str, os.PathLike)) and format == "lance"):
        return LanceRows(lance_dataset("ArrowParts", source), filter, part_rows)
    if part_rows is not None:
        raise ValueError(
            f"ArrowParts: part_rows is for Lance datasets: {shown(source)} is read by the parts in which it was written"
        )
    if isinstance(source, (str, os.PathLike)) and format == "delta":
        source = optional_import("deltalake", extra="deltalake", needed_by="ArrowParts").DeltaTable(os.fspath(source))
    elif isinstance(source, (str, os.PathLike)) and format == "iceberg":
        tables = optional_import("pyiceberg.table", extra="iceberg", needed_by="ArrowParts")
        source = tables.StaticTable.from_metadata(os.fspath(source))
    arrow, dataset = (_arrow(module) for module in ("pyarrow", "pyarrow.dataset"))
    library = type(source).__module__.partition(".")[0]  # the source may be a table that was opened by its path
    if library == "pyiceberg":
        return IcebergFiles(source, filter)
    if library == "deltalake":
        return ArrowFragments(source.to_pyarrow_dataset(), filter, lacks=True)
    if isinstance(source, arrow.RecordBatch):
        source = arrow.Table.from_batches([source])
    elif isinstance(source, (str, os.PathLike)) or (
        isinstance(source, (list, tuple)) and source and all(isinstance(each, (str, os.PathLike)) for each in source)
    ):
        paths = os.fspath(source) if isinstance(source, (str, os.PathLike)) else [os.fspath(each) for each in source]
        with explaining("ArrowParts", "cannot open", source):
            source = dataset.dataset(paths, format=format)
    if isinstance(source, arrow.Table):
        return ArrowChunks(source, filter)
    if isinstance(source, dataset.Dataset):
        return ArrowFragments(source, filter)
    raise TypeError(f"ArrowParts: source must be {_KINDS}, but got {shown(source)} of type {type(source).__name__}")
