"""Pipes read parts of tables, which the library of each table format has written."""

import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
import pytest

from arrow_tables import check_exact, table, values
from resuming import with_state
from torchdata.dataloader2 import DataLoader2
from torchdata.datapipes.iter import ArrowReader, IterableWrapper
from torchdata.datapipes.map import ArrowParts
from torchdata.datapipes.state import load_state, save_state


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        pyarrow.parquet.write_table(
            table(10 * number, 10 * number + 10), tmp_path / f"{number}.parquet", row_group_size=4
        )
    pyarrow.parquet.write_table(table(0, 0), tmp_path / "empty.parquet")
    return tmp_path


def test_rows_of_all_files_are_yielded_in_order_and_frames_in_chosen_sizes(folder: Path) -> None:
    assert list(ArrowReader(folder))[11] == {"a": 11, "b": "t11", "c": 5.5}
    assert values(ArrowReader(folder)) == list(range(30))
    frames = list(ArrowReader(folder, ["c", "a"], rows=False, frame_size=3))
    assert [frame["a"].tolist() for frame in frames][:4] == [[0, 1, 2], [3], [4, 5, 6], [7]]
    assert list(frames[0]) == ["c", "a"]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_frames_of_a_library(folder: Path, library: Any) -> None:
    frames = list(ArrowReader(folder, ["a"], rows=False, frame_size=3, library=library))
    assert {type(frame).__module__.partition(".")[0] for frame in frames} == {library}
    assert [len(frame) for frame in frames][:3] == [3, 1, 3]


@pytest.mark.parametrize("kind", ["feather", "csv", "parquet"])
def test_other_formats_are_read_file_by_file(tmp_path: Path, kind: str) -> None:
    write = {
        "feather": pyarrow.feather.write_feather,
        "csv": pyarrow.csv.write_csv,
        "parquet": pyarrow.parquet.write_table,
    }[kind]
    for number in range(2):
        write(table(3 * number, 3 * number + 3), str(tmp_path / f"{number}.{kind}"))
    parts = ArrowParts([tmp_path / f"{number}.{kind}" for number in range(2)], format=kind)
    assert len(parts) == 2
    assert list(parts.to_iter_datapipe().read_arrow()) == table(0, 6).to_pylist()
    check_exact(lambda: parts.to_iter_datapipe().read_arrow())


def test_a_filter_leaves_out_row_groups_unread_and_rows_of_others(folder: Path) -> None:
    column = pyarrow.dataset.field("a")
    parts = ArrowParts(folder, (column > 5) & (column < 13))
    assert [parts.name(number)[:11] for number in range(len(parts))] == ["row group 1", "row group 2", "row group 0"]
    assert values(parts.to_iter_datapipe().read_arrow(["a"])) == list(range(6, 13))


def test_a_state_is_exact_at_every_row_and_frame_and_reads_no_part_before_it(folder: Path) -> None:
    check_exact(lambda: ArrowReader(folder))
    check_exact(lambda: ArrowReader(folder, ["a"], rows=False, frame_size=3).map(str))
    check_exact(lambda: ArrowParts(folder).shuffle().set_seed(3).read_arrow())
    pipe = ArrowReader(folder)
    iterator = iter(pipe)
    head = [next(iterator)["a"] for _ in range(17)]
    state = save_state(pipe)
    assert len(str(state)) < 3000
    later = ArrowReader(folder)
    read, original = [], later._table.read

    def noting(part: int, *arguments: Any) -> Any:
        read.append(part)
        return original(part, *arguments)

    later._table.read = noting  # type: ignore[method-assign]
    load_state(later, state)
    assert head + values(later) == list(range(30))
    assert read == [4, 5, 6, 7, 8]


def test_a_state_resumes_with_frames_of_another_size(folder: Path) -> None:
    pipe = ArrowReader(folder, ["a"], rows=False, frame_size=3)
    next(iter(pipe))
    other = with_state(ArrowReader(folder, ["a"], rows=False, frame_size=10), save_state(pipe))
    assert [frame["a"].tolist() for frame in other][:2] == [[3], [4, 5, 6, 7]]


def test_each_worker_reads_only_its_share(folder: Path) -> None:
    pipe = ArrowParts(folder).to_iter_datapipe().sharding_filter()
    pipe.apply_sharding(2, 1)
    reader = pipe.read_arrow(["a"])
    read, original = [], reader._table.read
    reader._table.read = lambda part, *rest: read.append(part) or original(part, *rest)  # type: ignore[method-assign]
    assert values(reader) == [*range(4, 8), *range(10, 14), *range(18, 20), *range(24, 28)]
    assert read == [1, 3, 5, 7]


def test_arrays_share_arrow_s_memory_unless_they_must_be_writable() -> None:
    source = pyarrow.table({"a": [1, 2, 3], "x": [0.5, None, 1.5]})
    (frame,) = ArrowReader(source, rows=False)
    memory = np.frombuffer(source["a"].chunk(0).buffers()[1], np.int64)
    assert np.shares_memory(frame["a"], memory)
    assert not frame["a"].flags.writeable
    assert np.isnan(frame["x"][1])
    (frame,) = ArrowReader(source, rows=False, writable=True)
    assert not np.shares_memory(frame["a"], memory)
    assert frame["a"].flags.writeable


def test_arrays_of_files_and_of_pieces_of_a_part_are_not_copied(folder: Path) -> None:
    for source in (folder, ArrowParts(folder).to_iter_datapipe()):
        frames = list(ArrowReader(source, ["a", "c"], rows=False, frame_size=3))
        arrays = [array for frame in frames for array in frame.values()]
        assert not any(array.flags.owndata or array.flags.writeable for array in arrays)
    first, second = list(ArrowReader(folder, ["a"], rows=False, frame_size=2))[:2]
    step = second["a"].__array_interface__["data"][0] - first["a"].__array_interface__["data"][0]
    assert step == 2 * first["a"].itemsize, "both columns are views of their row group"


def test_row_groups_without_rows_yield_nothing_and_states_pass_over_them(tmp_path: Path) -> None:
    with pyarrow.parquet.ParquetWriter(tmp_path / "a.parquet", table(0, 0).schema) as writer:
        for start, end in ((0, 0), (0, 3), (3, 3), (3, 3), (3, 5), (5, 5)):
            writer.write_table(table(start, end))
    groups = pyarrow.parquet.ParquetFile(tmp_path / "a.parquet").metadata
    assert [groups.row_group(number).num_rows for number in range(groups.num_row_groups)].count(0) >= 2
    assert values(ArrowReader(tmp_path / "a.parquet")) == list(range(5))
    frames = list(ArrowReader(tmp_path / "a.parquet", ["a"], rows=False))
    assert [frame["a"].tolist() for frame in frames] == [[0, 1, 2], [3, 4]]
    check_exact(lambda: ArrowReader(tmp_path / "a.parquet"))
    check_exact(lambda: ArrowReader(tmp_path / "a.parquet", ["a"], rows=False, frame_size=2).map(str))


def test_only_the_columns_that_are_asked_for_are_read(folder: Path) -> None:
    path = folder / "1.parquet"
    chunk = pyarrow.parquet.ParquetFile(path).metadata.row_group(0).column(1)
    assert chunk.path_in_schema == "b"
    begin = chunk.dictionary_page_offset
    content = bytearray(path.read_bytes())
    content[begin : begin + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(content)
    assert list(ArrowReader(folder, ["c", "a"]))[12] == {"c": 6.0, "a": 12}
    with pytest.raises((OSError, ValueError), match=r"cannot read row group 0 of .*1.parquet"):
        list(ArrowReader(folder, ["b"]))


def test_row_groups_of_all_files_are_read_in_an_order_that_depends_on_the_seed(folder: Path) -> None:
    orders = [values(ArrowParts(folder).shuffle().set_seed(seed).read_arrow()) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(30)) != orders[0]
    starts = {number: number - number % 10 % 4 for number in range(30)}
    assert all(orders[0][orders[0].index(starts[number]) + number - starts[number]] == number for number in range(30))


def test_lists_of_parts_are_read_at_once_and_resumed(folder: Path) -> None:
    parts = ArrowParts(folder)
    frames = list(parts.to_iter_datapipe().batch(2).read_arrow(["a"], rows=False))
    assert [frame["a"].tolist() for frame in frames] == [
        [*range(8)],
        [8, 9, *range(10, 14)],
        [14, 15, 16, 17, 18, 19],
        [*range(20, 28)],
        [28, 29],
    ]
    assert list(IterableWrapper([[]]).read_arrow(parts=parts)) == []
    check_exact(lambda: parts.shuffle().set_seed(3).batch(2).read_arrow())
    check_exact(lambda: parts.to_iter_datapipe().batch(3).read_arrow(["a"], rows=False, frame_size=5).map(str))


def test_a_part_that_the_table_lacks_raises_an_error(folder: Path) -> None:
    for item in (9, -1, [0, 9]):
        with pytest.raises(IndexError, match=r"ArrowReader reads parts 0 to 8, but got part (9|-1)"):
            list(IterableWrapper([item]).read_arrow(parts=ArrowParts(folder)))


def test_a_loader_does_not_copy_a_table_in_memory() -> None:
    source = pyarrow.table({"a": np.arange(1_000_000)})
    before = pyarrow.total_allocated_bytes()
    with DataLoader2(ArrowParts(source).shuffle().read_arrow(rows=False)) as run:
        [frame] = run
        assert len(frame["a"]) == 1_000_000
        assert pyarrow.total_allocated_bytes() - before < source.nbytes


def test_a_record_batch_is_a_table_of_one_part() -> None:
    [batch] = table(0, 4).to_batches()
    assert values(ArrowReader(batch)) == [0, 1, 2, 3]


def test_an_error_names_the_part_with_a_null_in_integers_and_the_remedy() -> None:
    source = pyarrow.table({"a": [1, None]})
    with pytest.raises(ValueError, match=r"cannot read chunk 0: ArrowReader: column 'a' has nulls.*dtype="):
        list(ArrowReader(source, rows=False))
    assert list(ArrowReader(source)) == [{"a": 1}, {"a": None}]
    (frame,) = ArrowReader(source, rows=False, dtype={"a": "float64"})
    assert np.isnan(frame["a"][1])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"b": ["x"], "c": [0.5]}, r"row group 0 of .*z.parquet: the file has no column 'a'; it has \['b', 'c'\]"),
        ({"a": ["1"], "b": ["x"], "c": [0.5]}, "column 'a' is of type string in the file, and of int64 in the table"),
    ],
)
def test_a_file_with_another_schema_is_named(folder: Path, other: dict[str, Any], message: str) -> None:
    pyarrow.parquet.write_table(pyarrow.table(other), folder / "z.parquet")
    with pytest.raises(ValueError, match=message):
        list(ArrowReader(folder, ["a"]))
    assert len(values(ArrowReader(folder, ["c"]), "c")) == 31  # Only some columns of the file were overwritten.


def test_integers_of_another_width_are_read_in_the_width_of_the_table(folder: Path) -> None:
    narrow = pyarrow.table({"a": pyarrow.array([30], "int16"), "b": ["x"], "c": [0.5]})
    pyarrow.parquet.write_table(narrow, folder / "z.parquet")
    assert values(ArrowReader(folder)) == list(range(31))


def test_a_damaged_file_is_named(folder: Path) -> None:
    path = folder / "1.parquet"
    pipe = ArrowReader(folder, ["a"])
    data = path.read_bytes()
    path.write_bytes(data[:4] + b"\xff" * 200 + data[204:])
    with pytest.raises((OSError, ValueError), match=r"ArrowReader cannot read row group 0 of .*1.parquet"):
        list(pipe)


def test_a_state_of_a_table_that_has_changed_is_refused(folder: Path) -> None:
    pipe = ArrowReader(folder)
    iterator = iter(pipe)
    for _ in range(12):
        next(iterator)
    state = save_state(pipe)
    (folder / "0.parquet").rename(folder / "3.parquet")
    other = with_state(ArrowReader(folder), state)
    with pytest.raises(ValueError, match=r"was saved in row group 0 of .*1.parquet, but this table has changed"):
        list(other)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere") as caught:
        ArrowParts(tmp_path / "nowhere.parquet")
    assert any("ArrowParts cannot open" in note for note in caught.value.__notes__)


def test_a_data_set_on_another_file_system_with_columns_by_folder(folder: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for year in (2019, 2020):
        with memory.open(f"/arrow/year={year}/x.parquet", "wb") as file:
            pyarrow.parquet.write_table(table(0, 3), file)
    source = pyarrow.dataset.dataset("/arrow", filesystem=memory, partitioning="hive")
    assert values(ArrowReader(source, ["year", "a"]), "year") == [2019] * 3 + [2020] * 3
    parts = ArrowParts(source, pyarrow.dataset.field("year") == 2020)
    assert len(parts) == 1
    memory.rm("/arrow", recursive=True)


def test_a_delta_table_is_read_file_by_file(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    path = str(tmp_path / "delta")
    deltalake.write_deltalake(path, table(0, 5))
    deltalake.write_deltalake(path, table(5, 8), mode="append")
    wider = table(8, 9).append_column("d", [[1]])
    deltalake.write_deltalake(path, wider, mode="append", schema_mode="merge")
    deltalake.DeltaTable(path).delete("a = 3")
    delta = deltalake.DeltaTable(path)
    assert sorted(values(ArrowReader(delta))) == [0, 1, 2, 4, 5, 6, 7, 8]
    assert sorted(values(ArrowReader(delta, ["d"]), "d"), key=str) == [1] + [None] * 7
    parts = ArrowParts(delta, pyarrow.dataset.field("a") > 5)
    assert sorted(values(parts.shuffle().set_seed(1).read_arrow())) == [6, 7, 8]
    check_exact(lambda: ArrowParts(delta).shuffle().set_seed(1).read_arrow())
    assert values(pickle.loads(pickle.dumps(ArrowReader(delta)))) == values(ArrowReader(delta))
    assert values(ArrowParts(path, format="delta").to_iter_datapipe().read_arrow()) == values(ArrowReader(delta))
    early = deltalake.DeltaTable(path, version=0)
    assert values(ArrowReader(early)) == [0, 1, 2, 3, 4]


def test_an_iceberg_table_is_read_as_its_library_plans_to(tmp_path: Path) -> None:
    catalogs = pytest.importorskip("pyiceberg.catalog")
    pytest.importorskip("sqlalchemy")
    with closing(catalogs.load_catalog("test", type="in-memory", warehouse=str(tmp_path / "iceberg"))) as catalog:
        catalog.create_namespace("n")
        iceberg = catalog.create_table("n.t", schema=table(0, 0).schema)
        iceberg.append(table(0, 5))
        iceberg.append(table(5, 9))
        iceberg.delete("a == 3")
        assert sorted(values(ArrowReader(iceberg))) == [0, 1, 2, 4, 5, 6, 7, 8]
        assert len(ArrowParts(iceberg)) == 2
        parts = ArrowParts(iceberg, "a > 1 and a < 7")
        assert sorted(values(parts.to_iter_datapipe().read_arrow(["a"]))) == [2, 4, 5, 6]
        assert len(ArrowParts(iceberg, "a > 6")) == 1  # The statistics of the second file show that no row matches.
        with iceberg.update_schema() as update:
            update.rename_column("c", "half")
        assert sorted(values(ArrowReader(iceberg, ["half"]), "half")) == [0.0, 0.5, 1.0, 2.0, 2.5, 3.0, 3.5, 4.0]
        with pytest.raises(ValueError, match="there is no column 'c'"):
            ArrowReader(iceberg, ["c"])
        static = ArrowParts(iceberg.metadata_location, "a < 3", format="iceberg")
        assert sorted(values(static.to_iter_datapipe().read_arrow())) == [0, 1, 2]
        check_exact(lambda: ArrowParts(iceberg).shuffle().set_seed(2).read_arrow())
        assert values(pickle.loads(pickle.dumps(ArrowReader(iceberg)))) == values(ArrowReader(iceberg))
