"""ParquetDataFrameLoader combines the rows of files into items with a given number of rows, or into dicts of arrays."""

import datetime
import decimal
import io
import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_checks import check_restore
from torchdata.datapipes.iter import FileLister, IterableWrapper
from torchdata.datapipes.state import load_state, save_state

LIBRARIES = ["pandas", "polars", "pyarrow", "numpy"]
each_library = pytest.mark.parametrize("library", LIBRARIES)


def parquet_bytes(table: pyarrow.Table, group: int) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file, row_group_size=group)
    return file.getvalue()


def ids_of(item: Any) -> list[int]:
    return list(np.asarray(item["id"]).tolist())


def loaded(content: bytes, **options: Any) -> Any:
    return IterableWrapper([("file", io.BytesIO(content))]).load_parquet_as_df(**options)


def one(column: Any, **options: Any) -> Any:
    options = {"library": "numpy", **options}
    [item] = loaded(parquet_bytes(pyarrow.table({"c": column}), 100), **options)
    return item["c"]


@each_library
def test_items_combine_rows_of_several_row_groups_but_not_of_several_files(library: str, tmp_path: Path) -> None:
    for name, start, stop in (("a", 0, 7), ("b", 7, 7), ("c", 7, 9)):
        table = pyarrow.table({"id": range(start, stop), "text": [str(i) for i in range(start, stop)]})
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=2)

    def build() -> Any:
        return FileLister(str(tmp_path)).load_parquet_as_df(library=library, dataframe_size=3)

    kind = {"pandas": pandas.DataFrame, "polars": polars.DataFrame, "pyarrow": pyarrow.Table, "numpy": dict}
    assert {type(item) for item in build()} == {kind[library]}
    assert check_restore(build, keep=ids_of) == [[0, 1, 2], [3, 4, 5], [6], [7, 8]]


@settings(max_examples=30)
@given(
    files=st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=9), st.integers(1, 5)), max_size=3),
    size=st.none() | st.integers(1, 10),
    library=st.sampled_from(LIBRARIES),
    data=st.data(),
)
def test_any_files_yield_all_rows_in_order_and_are_restored_anywhere(
    files: list[tuple[list[int], int]], size: int | None, library: str, data: st.DataObject
) -> None:
    contents = [
        parquet_bytes(pyarrow.table({"id": pyarrow.array(rows, pyarrow.int64())}), group) for rows, group in files
    ]
    steps = [(rows, size or group) for rows, group in files]
    expected = [rows[at : at + step] for rows, step in steps for at in range(0, len(rows), step)]

    def build() -> Any:
        pairs = [(f"file {number}", io.BytesIO(content)) for number, content in enumerate(contents)]
        return IterableWrapper(pairs).load_parquet_as_df(library=library, dataframe_size=size)

    whole = list(map(ids_of, build()))
    assert [item for item in whole if item] == expected  # some writers create an empty row group in a file without rows
    position = data.draw(st.integers(0, len(whole)), label="position")
    pipe = build()
    items = iter(pipe)
    assert list(map(ids_of, itertools.islice(items, position))) == whole[:position]
    load_state(other := build(), pickle.loads(pickle.dumps(save_state(pipe))))
    assert list(map(ids_of, other)) == list(map(ids_of, items)) == whole[position:]


@pytest.mark.parametrize(("size", "taken", "first"), [(None, 3, 30), (4, 9, 30)])
def test_a_restored_pipe_reads_no_row_group_before_the_one_at_which_it_resumes(
    size: int | None, taken: int, first: int, tmp_path: Path
) -> None:
    path = tmp_path / "file.parquet"
    table = pyarrow.table({"id": range(50)})
    pyarrow.parquet.write_table(table, path, row_group_size=10, use_dictionary=False, compression="zstd")

    def build() -> Any:
        return IterableWrapper([str(path)]).load_parquet_as_df(library="numpy", dataframe_size=size)

    items = iter(pipe := build())
    seen = [row for _ in range(taken) for row in ids_of(next(items))]
    state = pickle.dumps(save_state(pipe))
    del items
    content = bytearray(path.read_bytes())
    begin = pyarrow.parquet.ParquetFile(path).metadata.row_group(first // 10).column(0).data_page_offset
    content[4:begin] = b"\xff" * (begin - 4)
    path.write_bytes(content)
    load_state(other := build(), pickle.loads(state))
    assert seen + [row for item in other for row in ids_of(item)] == list(range(50))
    with pytest.raises((ValueError, OSError), match=r"cannot read the Parquet file .*file\.parquet"):
        list(build())


def test_a_state_resumes_at_its_row_if_items_have_another_size() -> None:
    content = parquet_bytes(pyarrow.table({"id": range(9)}), 4)
    items = iter(pipe := loaded(content, library="numpy", dataframe_size=2))
    assert [ids_of(next(items)) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    state = save_state(pipe)
    load_state(by_group := loaded(content, library="numpy"), state)
    assert [ids_of(item) for item in by_group] == [[6, 7], [8]]
    load_state(longer := loaded(content, library="polars", dataframe_size=5), state)
    assert [ids_of(item) for item in longer] == [[6, 7, 8]]


@each_library
def test_an_item_is_pickled_without_the_rest_of_its_row_group(library: str) -> None:
    content = parquet_bytes(pyarrow.table({"id": range(100_000), "text": ["some text"] * 100_000}), 100_000)
    item = next(iter(loaded(content, library=library, dataframe_size=10)))
    assert len(pickle.dumps(item)) < 10_000
    assert ids_of(pickle.loads(pickle.dumps(item))) == list(range(10))


DAY = datetime.date(2024, 2, 29)
NOON = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize("type_", ["int8", "uint16", "int64", "float16", "float32", "float64", "bool"])
def test_numbers_and_booleans_are_arrays_of_their_dtype(type_: str) -> None:
    values = np.array([1, 0, 1], dtype=type_)
    array = one(values)
    assert array.dtype == values.dtype
    assert (array == values).all()


@pytest.mark.parametrize("type_", [pyarrow.float16(), pyarrow.float32(), pyarrow.float64()])
def test_a_null_in_floats_becomes_nan(type_: pyarrow.DataType) -> None:
    array = one(pyarrow.array([np.float16(1.5), None], type_))
    assert array.dtype == type_.to_pandas_dtype()
    assert np.array_equal(array, [1.5, np.nan], equal_nan=True)


@pytest.mark.parametrize(
    "column",
    [[1, None], [True, None], [[1, None], [2]], [[[1], None, [None]]], pyarrow.array([1, None]).dictionary_encode()],
    ids=["int", "bool", "list", "list of lists", "dictionary"],
)
def test_an_error_names_column_file_and_remedy_for_a_null_in_integers_or_booleans(column: Any) -> None:
    with pytest.raises(ValueError, match=r"ParquetDataFrameLoader: column 'c' has nulls.*dtype=\{'c'") as caught:
        one(column)
    assert "'file'" in "".join(caught.value.__notes__)


def test_nulls_among_integers_and_booleans_are_nan_with_a_dtype_of_floats() -> None:
    for column in ([1, 0, None], [True, False, None]):
        array = one(column, dtype={"c": "float64"})
        assert array.dtype == np.float64
        assert np.array_equal(array, [1, 0, np.nan], equal_nan=True)
    schema = pyarrow.schema({"c": pyarrow.list_(pyarrow.float64())})
    [row] = one([[1, None]], dtype=schema)
    assert np.array_equal(row, [1, np.nan], equal_nan=True)


def test_dtypes_are_the_dtypes_of_numpy() -> None:
    for dtype in (np.float32, "float32", np.dtype("<f4"), {"c": "f4"}):
        assert one([1, 2], dtype=dtype).dtype == np.float32
    assert one([1, 2], dtype="float").dtype == np.float64
    with pytest.raises(ValueError, match="numpy does not take the dtype"):
        one([1], dtype={"c": "int7"})
    with pytest.raises(ValueError, match="cannot read the Parquet file 'file'"):
        one([2**53 + 1, None], dtype="float64")  # a float cannot represent this integer


@pytest.mark.parametrize(
    ("column", "dtype", "value"),
    [
        (pyarrow.array([DAY, None]), "datetime64[D]", DAY),
        (pyarrow.array([NOON, None], pyarrow.timestamp("ms")), "datetime64[ms]", NOON.replace(tzinfo=None)),
        (
            pyarrow.array([NOON, None], pyarrow.timestamp("us", "Asia/Tokyo")),
            "datetime64[us]",
            NOON.replace(tzinfo=None),
        ),
        (pyarrow.array([datetime.timedelta(1), None]), "timedelta64[us]", datetime.timedelta(1)),
    ],
    ids=["date", "timestamp", "timestamp in a zone", "duration"],
)
def test_dates_and_times_are_numpy_s_and_a_null_is_nat(column: Any, dtype: str, value: Any) -> None:
    array = one(column)
    assert array.dtype == dtype
    assert array[0].item() == value
    assert np.isnat(array).tolist() == [False, True]


@pytest.mark.parametrize(
    "column",
    [
        ["a", None, "ü"],
        [b"a", None],
        [decimal.Decimal("1.5"), None],
        [datetime.time(1, 2), None],
        [{"x": 1, "y": None}, None, {"x": 2**60 + 1, "y": [1, None]}],
        pyarrow.array([[("a", 1)], None], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
        pyarrow.array(["a", None, "b"]).dictionary_encode(),
        pyarrow.nulls(2),
    ],
    ids=["str", "bytes", "decimal", "time", "struct", "map", "dictionary", "null"],
)
def test_all_else_is_an_array_of_python_s_objects(column: Any) -> None:
    array = one(column)
    assert array.dtype == object
    assert array.tolist() == pyarrow.array(column).to_pylist()


@pytest.mark.parametrize(
    "type_",
    [pyarrow.list_(pyarrow.int32()), pyarrow.large_list(pyarrow.int32()), pyarrow.list_(pyarrow.int32(), 2)],
    ids=["list", "large list", "list of two"],
)
def test_lists_are_one_array_per_row(type_: pyarrow.DataType) -> None:
    rows = [[1, 2], None, [3, 4], [5, 6]]
    for size in (None, 3):
        content = parquet_bytes(pyarrow.table({"c": pyarrow.array(rows, type_)}), 2)
        items = list(loaded(content, library="numpy", dataframe_size=size))
        assert {item["c"].dtype for item in items} == {np.dtype(object)}
        found = [row for item in items for row in item["c"]]
        assert [None if row is None else row.tolist() for row in found] == rows
        assert {row.dtype for row in found if row is not None} == {np.dtype("int32")}


def test_lists_of_lists_and_of_strings_follow_the_rules_of_their_members() -> None:
    [first, second] = one([[[1], [2, 3]], []])
    assert [row.tolist() for row in first] == [[1], [2, 3]]
    assert len(second) == 0
    [texts] = one([["a", None]])
    assert (texts.dtype, texts.tolist()) == (object, ["a", None])


@pytest.mark.parametrize("size", [None, 2])
def test_arrays_can_be_written_to(size: int | None) -> None:
    content = parquet_bytes(pyarrow.table({"id": range(4), "list": [[1, 2]] * 4}), 2)
    for _ in range(2):  # Changing the items of the first pass must not affect the second pass.
        items = list(loaded(content, library="numpy", dataframe_size=size))
        assert [ids_of(item) for item in items] == [[0, 1], [2, 3]]
        for item in items:
            item["id"][0] = item["list"][0][0] = 9
            assert (item["id"][0], item["list"][0].tolist()) == (9, [9, 2])


def test_columns_are_chosen_in_the_given_order() -> None:
    content = parquet_bytes(pyarrow.table({"a": [1], "b": [2], "p": [{"x": 3, "y": 4}]}), 1)
    [item] = loaded(content, columns=["p.y", "a"], library="numpy")
    assert list(item) == ["p", "a"]
    assert item["p"].tolist() == [{"y": 4}]
    with pytest.raises(ValueError, match=r"'file' of ParquetDataFrameLoader has no column 'z'; .*'a', 'b', 'p'"):
        list(loaded(content, columns=["a", "z"], library="numpy", dataframe_size=1))


def test_columns_of_one_name_are_refused() -> None:
    twice = pyarrow.Table.from_arrays([pyarrow.array([1]), pyarrow.array([2])], names=["a", "a"])
    with pytest.raises(ValueError, match=r"ParquetDataFrameLoader.*several named \['a'\]"):
        list(loaded(parquet_bytes(twice, 1), library="numpy"))
