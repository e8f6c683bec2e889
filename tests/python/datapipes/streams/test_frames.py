"""DataFrameMaker creates data frames from items, and ParquetDataFrameLoader creates them from Parquet files."""

import io
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest

from stream_checks import open_files
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import FileLister, IterableWrapper

LIBRARIES = ["pandas", "polars", "pyarrow"]
each_library = pytest.mark.parametrize("library", LIBRARIES)

ROWS = [(1, "a", 0.5), (2, "b", None), (3, "c", 1.5)]
NAMES = ["number", "letter", "share"]


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    if isinstance(frame, pyarrow.Table):
        return [tuple(row.values()) for row in frame.to_pylist()]
    if isinstance(frame, polars.DataFrame):
        return frame.rows()
    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    return rows_of(table)


def names_of(frame: Any) -> list[Any]:
    return list(frame.column_names if isinstance(frame, pyarrow.Table) else frame.columns)


def table(start: int, stop: int) -> pyarrow.Table:
    numbers = range(start, stop)
    return pyarrow.table({"id": numbers, "name": [f"n{i}" for i in numbers], "half": [i / 2 for i in numbers]})


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for name, rows in (("a", table(0, 5)), ("b", table(5, 5)), ("c", table(5, 8))):
        pyarrow.parquet.write_table(rows, tmp_path / f"{name}.parquet", row_group_size=2 if name == "a" else 10)
    return str(tmp_path)


@each_library
def test_frames_are_of_the_chosen_library_and_hold_the_rows(library: str) -> None:
    frames = list(IterableWrapper(ROWS).dataframe(2, columns=NAMES, library=library))
    kind = {"pandas": pandas.DataFrame, "polars": polars.DataFrame, "pyarrow": pyarrow.Table}[library]
    assert [type(frame) for frame in frames] == [kind, kind]
    assert [names_of(frame) for frame in frames] == [NAMES, NAMES]
    assert [row for frame in frames for row in rows_of(frame)] == ROWS


@each_library
def test_names_come_from_columns_then_dtype_then_the_rows(library: str) -> None:
    Point = namedtuple("Point", "x y")
    schema = pyarrow.schema({"p": pyarrow.int16(), "q": pyarrow.int64()})

    def names(rows: list[Any], **options: Any) -> list[Any]:
        [frame] = IterableWrapper(rows).dataframe(library=library, **options)
        return names_of(frame)

    assert names([Point(1, 2)]) == ["x", "y"]
    assert names([Point(1, 2)], columns=["u", "v"]) == ["u", "v"]
    assert names([Point(1, 2)], dtype=schema) == ["p", "q"]
    assert names([(1, 2)], dtype={"p": "int64", "q": "int64"} if library != "polars" else {"p": int, "q": int}) == [
        "p",
        "q",
    ]
    assert names([{"b": 1, "a": 2}, {"c": 3}]) == ["b", "a", "c"]
    assert names([{"b": 1, "a": 2}], columns=["a"]) == ["a"]
    assert names([7, 8], columns=["value"]) == ["value"]
    assert names([7, 8]) == [0 if library == "pandas" else "column_0"]
    [frame] = IterableWrapper(ROWS).dataframe()
    assert isinstance(frame, pandas.DataFrame), "pandas is the default"


@each_library
def test_mappings_without_named_columns_get_nulls_where_a_row_has_no_value(library: str) -> None:
    [frame] = IterableWrapper([{"a": 1.5}, {"b": "x"}]).dataframe(library=library)
    assert rows_of(frame) == [(1.5, None), (None, "x")]


@each_library
def test_a_schema_of_pyarrow_sets_the_types_in_every_library(library: str) -> None:
    schema = pyarrow.schema({"number": pyarrow.int8(), "letter": pyarrow.string(), "share": pyarrow.float32()})
    [frame] = IterableWrapper(ROWS).dataframe(dtype=schema, library=library)
    found = {
        "pandas": lambda: frame.dtypes["number"] == np.int8 and frame.dtypes["share"] == np.float32,
        "polars": lambda: frame.schema["number"] == polars.Int8 and frame.schema["share"] == polars.Float32,
        "pyarrow": lambda: frame.schema == schema,
    }
    assert found[library]()
    assert rows_of(frame) == ROWS


@pytest.mark.parametrize(
    ("library", "dtype", "expected"),
    [
        ("pandas", {"b": "float32"}, ["int64", "float32"]),
        ("pandas", "int8", ["int8", "int8"]),
        ("pandas", np.float64, ["float64", "float64"]),
        ("polars", {"b": polars.Float32}, ["Int64", "Float32"]),
        ("polars", polars.Int8, ["Int8", "Int8"]),
        ("pyarrow", {"b": "float"}, ["int64", "float"]),
        ("pyarrow", pyarrow.int8(), ["int8", "int8"]),
        ("pyarrow", np.float64, ["double", "double"]),
    ],
)
def test_the_library_s_own_dtypes_are_taken_by_column_or_for_all(library: str, dtype: Any, expected: list[str]) -> None:
    [frame] = IterableWrapper([(1, 2)]).dataframe(dtype=dtype, columns=["a", "b"], library=library)
    types = frame.schema.types if library == "pyarrow" else frame.dtypes
    assert [str(kind) for kind in types] == expected
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"a": [1], "b": [2]}), file)
    [frame] = IterableWrapper([("x", file)]).load_parquet_as_df(dtype=dtype, library=library)
    types = frame.schema.types if library == "pyarrow" else frame.dtypes
    assert [str(kind) for kind in types] == expected


def test_large_integers_in_a_column_with_nulls_are_exact_with_a_nullable_dtype() -> None:
    large = 2**53 + 1
    [frame] = IterableWrapper([(large,), (None,)]).dataframe(dtype={"n": "Int64"})
    assert frame["n"][0] == large
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"n": [large, None]}), file)
    [frame] = IterableWrapper([("x", file)]).load_parquet_as_df(dtype={"n": "Int64"})
    assert frame["n"][0] == large
    assert frame["n"].isna().tolist() == [False, True]


def test_the_dtype_generator_is_asked_once_per_iteration_and_only_without_dtype() -> None:
    asked = []

    def generate() -> Any:
        asked.append(1)
        return pyarrow.schema({"n": pyarrow.int16()})

    pipe = IterableWrapper([(1,), (2,), (3,)]).dataframe(1, dtype_generator=generate, library="pyarrow")
    assert asked == []
    assert [str(frame.schema.types[0]) for frame in pipe] == ["int16"] * 3
    assert len(asked) == 1
    list(pipe)
    assert len(asked) == 2
    frames = IterableWrapper([(1,)]).dataframe(dtype="int8", dtype_generator=generate)
    assert [str(frame.dtypes[0]) for frame in frames] == ["int8"]
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("rows", "options", "error", "message"),
    [
        ([(1, 2), (3,)], {}, ValueError, r"2 values, as the first row has, but row 1 is \(3,\)"),
        ([(1, 2)], {"columns": ["a"]}, ValueError, r"name 1 columns \(\['a'\]\), but rows have 2"),
        ([()], {}, ValueError, "rows have 0 values"),
        ([{}], {}, ValueError, "no row of a frame has a column"),
        ([1, 2], {"columns": ["a", "b"]}, ValueError, "name 2 columns"),
        ([(1,), {"a": 1}], {}, TypeError, r"must be of one kind, but there are \['dict', 'tuple'\]"),
        ([{"a": 1}, {"b": 2}], {"columns": ["a"]}, ValueError, r"row 1 of a frame lacks the columns \['a'\]"),
        ([(1,)], {"columns": ["a"], "dtype": {"b": "int64"}}, ValueError, r"dtype names columns \['b'\]"),
    ],
)
@each_library
def test_rows_that_make_no_frame_are_named(
    library: str, rows: list[Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    if library == "polars" and "dtype" in options:
        options = {**options, "dtype": {"b": polars.Int64}}
    with pytest.raises(error, match=message) as caught:
        list(IterableWrapper(rows).dataframe(library=library, **options))
    assert "DataFrameMaker" in str(caught.value)


@each_library
def test_there_is_one_frame_per_row_group_of_paths_and_of_streams(library: str, folder: str) -> None:
    before = open_files()
    for files in (FileLister(folder), FileLister(folder).open_files("b"), FileLister(folder).map(Path)):
        frames = list(files.load_parquet_as_df(library=library))
        assert [len(rows_of(frame)) for frame in frames if rows_of(frame)] == [2, 2, 1, 3]
        assert [row for frame in frames for row in rows_of(frame)] == [(i, f"n{i}", i / 2) for i in range(8)]
    assert open_files() == before


@each_library
def test_columns_are_read_in_the_order_in_which_they_are_named(library: str, folder: str) -> None:
    frame = next(iter(FileLister(folder).load_parquet_as_df(columns=["half", "id"], library=library)))
    assert names_of(frame) == ["half", "id"]
    assert rows_of(frame) == [(0.0, 0), (0.5, 1)]


@each_library
def test_a_column_that_a_file_lacks_is_named_with_the_file(library: str, folder: str) -> None:
    for options in ({"columns": ["id", "size"]}, {"dtype": pyarrow.schema({"size": pyarrow.int8()})}):
        with pytest.raises(ValueError, match="size") as caught:
            list(FileLister(folder).load_parquet_as_df(library=library, **options))
        assert "ParquetDataFrameLoader" in str(caught.value)
        assert "a.parquet" in str(caught.value) + str(caught.value.__notes__)


def test_missing_files_and_items_that_are_not_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.parquet"):
        list(IterableWrapper([str(tmp_path / "gone.parquet")]).load_parquet_as_df())
    with pytest.raises(TypeError, match="expects paths, or pairs of path and stream, but got 3"):
        list(IterableWrapper([3]).load_parquet_as_df())


def test_a_stream_that_cannot_seek_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"'far'.*cannot seek.*BytesIO"):
        list(IterableWrapper([("far", io.RawIOBase())], deepcopy=False).load_parquet_as_df())


@pytest.mark.parametrize("size", [None, 30_000])
def test_memory_holds_one_row_group_and_one_item(size: int | None, tmp_path: Path) -> None:
    groups, rows = 16, 100_000
    numbers = np.random.default_rng(0).random(rows)
    schema = pyarrow.schema({"n": pyarrow.float64()})
    with pyarrow.parquet.ParquetWriter(tmp_path / "large.parquet", schema) as writer:
        for _ in range(groups):
            writer.write_table(pyarrow.table({"n": numbers}))
    before = pyarrow.total_allocated_bytes()
    sizes, count = [], 0
    files = IterableWrapper([str(tmp_path / "large.parquet")])
    for frame in files.load_parquet_as_df(library="pyarrow", dataframe_size=size):
        sizes.append(pyarrow.total_allocated_bytes() - before)
        count += len(frame)
    assert count == groups * rows
    assert max(sizes) < 6 * numbers.nbytes


def frames_of(pipe: Any, method: str) -> list[Any]:
    """Reads a pipe in workers. Only one worker is spawned, because each spawned worker imports all libraries."""
    service = MultiProcessingReadingService(1 if method == "spawn" else 2, multiprocessing_context=method)
    with DataLoader2(pipe, reading_service=service) as loader:
        assert [rows_of(frame) for frame in loader] == [rows_of(frame) for frame in loader]
        return list(loader)


# Polars uses threads, which do not exist in a forked process, so workers are spawned for Polars.
@pytest.mark.parametrize(("library", "method"), [("pandas", "fork"), ("polars", "spawn")])
def test_frames_arrive_from_workers_as_they_were_sent(library: str, method: str, folder: str) -> None:
    made = IterableWrapper(ROWS * 4).sharding_filter().dataframe(3, columns=NAMES, library=library)
    assert sorted(map(str, (row for frame in frames_of(made, method) for row in rows_of(frame)))) == sorted(
        map(str, ROWS * 4)
    )
    loaded = FileLister(folder).sharding_filter().load_parquet_as_df(library=library)
    frames = frames_of(loaded, method)
    assert sorted(row for frame in frames for row in rows_of(frame)) == [(i, f"n{i}", i / 2) for i in range(8)]


LARGE = 200_000


@pytest.mark.parametrize("make", [pandas.DataFrame, pyarrow.table])
def test_large_frames_from_workers_stay_unchanged_while_more_frames_arrive(make: Any) -> None:
    pipe = IterableWrapper(range(24)).sharding_filter().map(lambda number: make({"n": np.arange(LARGE) + number}))
    service = MultiProcessingReadingService(2, multiprocessing_context="fork", memory_budget=16 << 20)
    with DataLoader2(pipe, reading_service=service) as loader:
        frames = list(loader)
    for number, frame in enumerate(frames):
        assert (frame["n"].to_numpy() == np.arange(LARGE) + number).all()
        if make is pandas.DataFrame:
            frame.loc[0, "n"] = -1
            assert frame["n"].iloc[:2].tolist() == [-1, 1 + number]
