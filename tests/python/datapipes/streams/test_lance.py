"""Pipes over Lance datasets read rows by index and in ranges, filter and shard the rows, and resume."""

import pickle
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow
import pyarrow.compute
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arrow_tables import check_exact, table, values
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import ArrowReader, IterableWrapper, LanceReader
from torchdata.datapipes.map import ArrowParts
from torchdata.datapipes.state import load_state, save_state


@pytest.fixture
def dataset(tmp_path: Path) -> Any:
    return lance.write_dataset(table(0, 30), tmp_path / "rows.lance", max_rows_per_file=10)


def test_rows_are_read_by_index_with_the_results_of_lance_s_own_take(dataset: Any) -> None:
    indices = [29, 3, 3, 0, 17]
    assert list(LanceReader(indices, dataset)) == dataset.take(indices).to_pylist()
    assert list(IterableWrapper(indices).read_lance(dataset.uri, ["c", "a"])) == [
        {"c": index / 2, "a": index} for index in indices
    ]
    assert values(LanceReader(np.array(indices), dataset)) == indices


def test_lists_of_indices_are_read_at_once(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, take = [], lance.LanceDataset.take

    def noting(self: Any, indices: Any, columns: Any) -> Any:
        asked.append(list(indices))
        return take(self, indices, columns)

    monkeypatch.setattr(lance.LanceDataset, "take", noting)
    pipe = IterableWrapper([29, 3, 17, 0, 8]).batch(2)
    assert values(pipe.read_lance(dataset)) == [29, 3, 17, 0, 8]
    assert asked == [[29, 3], [17, 0], [8]]
    frames = list(pipe.read_lance(dataset, ["a"], rows=False))
    assert [frame["a"].tolist() for frame in frames] == [[29, 3], [17, 0], [8]]
    frames = list(pipe.read_lance(dataset, ["a"], rows=False, frame_size=1, library="pyarrow"))
    assert [frame["a"].to_pylist() for frame in frames] == [[29], [3], [17], [0], [8]]


def test_ranges_of_rows_are_parts_across_fragments_of_a_chosen_size(dataset: Any) -> None:
    parts = ArrowParts(dataset, part_rows=7)
    assert (len(parts), parts.name(4)) == (5, f"rows 28 to 29 of version 1 of {dataset.uri!r}")
    assert values(parts.to_iter_datapipe().read_arrow()) == list(range(30))
    assert values(ArrowReader(dataset)) == list(range(30))
    assert values(ArrowParts(dataset.uri, format="lance").to_iter_datapipe().read_arrow()) == list(range(30))
    assert values(parts.to_iter_datapipe().batch(2).read_arrow()) == list(range(30))


@pytest.mark.parametrize(
    "filter", ["a > 5 AND a < 22", (pyarrow.compute.field("a") > 5) & (pyarrow.compute.field("a") < 22)]
)
def test_a_filter_groups_the_remaining_rows_into_parts(dataset: Any, filter: Any) -> None:
    parts = ArrowParts(dataset, filter, part_rows=5)
    assert len(parts) == 4
    assert values(parts.to_iter_datapipe().read_arrow(["b"]), "b") == [f"t{number}" for number in range(6, 22)]
    check_exact(lambda: ArrowParts(dataset, filter, part_rows=5).shuffle().set_seed(2).read_arrow(["a"]))
    assert list(ArrowParts(dataset, "a > 99").to_iter_datapipe().read_arrow()) == []


def test_states_are_exact_at_every_row_and_frame(dataset: Any) -> None:
    check_exact(lambda: LanceReader([29, 3, 17, 0], dataset))
    check_exact(lambda: IterableWrapper(range(30)).shuffle().set_seed(4).batch(4).read_lance(dataset, ["a"]))
    check_exact(lambda: ArrowParts(dataset, part_rows=7).shuffle().set_seed(3).read_arrow())
    check_exact(lambda: ArrowReader(dataset, ["a"], rows=False, frame_size=4).map(str))


def test_a_pipe_reads_the_version_of_its_dataset_and_refuses_states_of_others(dataset: Any) -> None:
    pipe = ArrowParts(dataset, part_rows=7).to_iter_datapipe().read_arrow()
    copied = pickle.loads(pickle.dumps(pipe))
    lance.write_dataset(table(30, 34), dataset.uri, mode="append")
    assert values(pipe) == values(copied) == list(range(30))
    iterator = iter(pipe)
    next(iterator)
    state = save_state(pipe)
    grown = ArrowParts(dataset.uri, format="lance", part_rows=7).to_iter_datapipe().read_arrow()
    assert values(grown) == list(range(34))
    load_state(grown, state)
    with pytest.raises(ValueError, match="was saved in rows 0 to 6 of version 1 of .*, but this table has changed"):
        list(grown)
    load_state(
        old := ArrowParts(lance.dataset(dataset.uri, version=1), part_rows=7).to_iter_datapipe().read_arrow(), state
    )
    assert values(old) == list(range(1, 30))


def test_workers_share_ranges_before_they_are_read_and_resume_exactly(dataset: Any) -> None:
    assert values(LanceReader([3], dataset)) == [3]  # the main process has used lance before its workers do

    def loader() -> DataLoader2[Any]:
        pipe = ArrowParts(dataset, part_rows=4).shuffle().sharding_filter().read_arrow(["a"])
        # The workers are not forked, because Lance may crash in a forked process.
        run = DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, "forkserver"))
        run.seed(5)
        return run

    with loader() as run:
        iterator = iter(run)
        head = values(next(iterator) for _ in range(11))
        state = run.state_dict()
        rest = values(iterator)
    assert sorted(head + rest) == list(range(30)) != head + rest
    with loader() as run:
        run.load_state_dict(state)
        assert values(run) == rest


def test_a_column_that_some_fragments_lack_is_null_there(dataset: Any) -> None:
    dataset.add_columns(pyarrow.schema({"d": "int64"}))
    dataset = lance.write_dataset(table(30, 32).append_column("d", [[7, 8]]), dataset.uri, mode="append")
    assert values(LanceReader([0, 30, 31], dataset, ["d"]), "d") == [None, 7, 8]


def test_wrong_arguments_are_named(dataset: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no column 'z'; there are \['a', 'b', 'c'\]"):
        LanceReader([0], dataset, ["z"])
    with pytest.raises(IndexError, match="LanceReader reads parts 0 to 29, but got part 30"):
        list(LanceReader([30], dataset))
    with pytest.raises(TypeError, match="LanceReader expects numbers of parts"):
        list(LanceReader([[1, "x"]], dataset))
    with pytest.raises(TypeError, match="LanceReader: dataset must be a lance.LanceDataset, or the path"):
        LanceReader([0], table(0, 3))
    with pytest.raises(ValueError, match="part_rows works only with Lance datasets"):
        ArrowParts(table(0, 3), part_rows=4)
    with pytest.raises((OSError, ValueError), match="nowhere") as caught:
        LanceReader([0], tmp_path / "nowhere.lance")
    assert any("LanceReader cannot open" in note for note in caught.value.__notes__)


def test_a_damaged_file_is_named(dataset: Any) -> None:
    pipe = LanceReader([[12]], dataset, ["a"])
    for path in (Path(dataset.uri) / "data").iterdir():
        path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises((OSError, ValueError), match=r"LanceReader cannot read row 12 of version 1 of .*rows\.lance"):
        list(pipe)


@pytest.mark.filterwarnings("ignore:on_error has skipped:RuntimeWarning")
def test_missing_rows_are_skipped_by_on_error_and_states_resume(dataset: Any) -> None:
    def build() -> Any:
        return LanceReader([3, 30, 4, "x", [5, 99], 6], dataset, ["a"]).on_error("skip")

    assert values(build()) == [3, 4, 6]
    check_exact(build)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    deleted=st.sets(st.integers(0, 40), max_size=10),
    least=st.one_of(st.none(), st.integers(0, 40)),
    part_rows=st.integers(1, 15),
    batch=st.integers(0, 3),
    seed=st.integers(0, 5),
    cuts=st.lists(st.integers(0, 9), max_size=4),
)
def test_any_dataset_yields_each_row_once_and_is_resumed_any_number_of_times(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    deleted: set[int],
    least: int | None,
    part_rows: int,
    batch: int,
    seed: int,
    cuts: list[int],
) -> None:
    path, start = tmp_path_factory.mktemp("lance") / "any.lance", 0
    for size in sizes:
        dataset = lance.write_dataset(table(start, start + size), path, mode="append" if start else "create")
        start += size
    if deleted:
        dataset.delete(f"a IN ({', '.join(map(str, deleted))})")
    expected = [row for row in range(start) if row not in deleted and (least is None or row >= least)]

    def build() -> Any:
        parts = ArrowParts(dataset, None if least is None else f"a >= {least}", part_rows=part_rows)
        numbers = parts.shuffle().set_seed(seed)
        return (numbers.batch(batch) if batch else numbers).read_arrow(["a"])

    order = values(build())
    assert sorted(order) == expected
    found: list[int] = []
    pipe = build()
    for cut in cuts:
        iterator = iter(pipe)
        found += [next(iterator)["a"] for _ in range(min(cut, len(order) - len(found)))]
        state = pickle.loads(pickle.dumps(save_state(pipe)))
        load_state(pipe := build(), state)
    assert found + values(pipe) == order
