"""Test cases for pipes that create data frames from plain items."""

from typing import Any

from hypothesis import strategies as st

from pipes_table.row import BadArgument, Row, ints
from torchdata.datapipes.iter import DataFrameMaker, ParquetDataFrameLoader


def _lists(frame: Any) -> dict[str, list[Any]]:
    return dict(frame.to_dict("list"))


def _pair(item: int) -> tuple[int, str]:
    return item, str(item)


def _frames(items: list[int], size: int) -> list[dict[str, list[Any]]]:
    chunks = [items[start : start + size] for start in range(0, len(items), size)]
    return [{"number": chunk, "text": [str(item) for item in chunk]} for chunk in chunks]


ROWS = [
    Row(
        "dataframe",
        lambda make, size: make().map(_pair).dataframe(size, columns=["number", "text"]).map(_lists),
        lambda items, size: _frames(items, size),
        {"size": (st.integers(1, 6), 3)},
    )
]


class _OfTorchArrow:
    """Imitates a dtype of torcharrow."""


_OfTorchArrow.__module__ = "torcharrow.dtypes"

BAD_ARGUMENTS: list[BadArgument] = [
    (lambda: DataFrameMaker(ints(), 0), AssertionError, "dataframe_size must be at least 1"),
    (lambda: DataFrameMaker(ints(), 1.5), TypeError, "dataframe_size must be an integer"),
    (lambda: DataFrameMaker(ints(), columns="ab"), TypeError, "a list of names"),
    (lambda: DataFrameMaker(ints(), columns=[1]), TypeError, "one is 1 of type int"),
    (lambda: DataFrameMaker(ints(), columns=["a", "a"]), ValueError, "none twice"),
    (lambda: DataFrameMaker(ints(), columns=[]), ValueError, "at least one"),
    (lambda: DataFrameMaker(ints(), device="cuda"), ValueError, "device must be '' or 'cpu'"),
    (lambda: DataFrameMaker(ints(), library="torcharrow"), ValueError, "library must be one of"),
    (lambda: DataFrameMaker(ints(), library="numpy"), ValueError, "library must be one of .*, but got 'numpy'"),
    (lambda: DataFrameMaker(ints(), dtype={"a": "int7"}), ValueError, "does not take the dtype"),
    (lambda: DataFrameMaker(ints(), dtype_generator=3), TypeError, "dtype_generator"),
    (lambda: DataFrameMaker(ints(), dtype=_OfTorchArrow()), TypeError, "no longer maintained"),
    (lambda: DataFrameMaker(ints(), dtype=_OfTorchArrow), TypeError, "of torcharrow"),
    (lambda: DataFrameMaker(3), TypeError, "source_dp must be iterable"),
    (lambda: ParquetDataFrameLoader("a.parquet"), TypeError, "wrap it"),
    (lambda: ParquetDataFrameLoader(ints(), columns={"a"}), TypeError, "a list of names"),
    (lambda: ParquetDataFrameLoader(ints(), device="cuda:0"), ValueError, "device must be"),
    (lambda: ParquetDataFrameLoader(ints(), library="dask"), ValueError, "library must be one of"),
    (
        lambda: ParquetDataFrameLoader(ints(), dataframe_size=0),
        ValueError,
        "ParquetDataFrameLoader: dataframe_size must be at least 1",
    ),
    (lambda: ParquetDataFrameLoader(ints(), dataframe_size=1.5), TypeError, "dataframe_size must be an integer"),
    (lambda: ParquetDataFrameLoader(ints(), dtype=_OfTorchArrow()), TypeError, "pyarrow.Schema"),
]
