"""Ray Datasets can be used as pipes. Rows and frames keep their order, and blocks are divided among workers before
reading.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ray_cluster import cluster, needs_ray, of_ray

pyarrow = pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
pytest.importorskip("pandas", reason="Ray Data needs pandas, of the parquet extra")

from torchdata.dataloader2 import (  # noqa: E402
    DataLoader2,
    MultiProcessingReadingService,
    RayReadingService,
)
from torchdata.datapipes.iter import IterableWrapper  # noqa: E402
from torchdata.datapipes.map import ArrowParts, from_ray_data  # noqa: E402

pytestmark = [needs_ray, *of_ray]

ROWS, BLOCKS = 60, 7


@pytest.fixture(autouse=True, scope="module")
def ray() -> Iterator[Any]:
    with cluster(TESTS_HIDDEN="") as found:
        import ray.data

        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        yield found


def made(rows: int = ROWS, blocks: int = BLOCKS) -> Any:
    import ray.data

    return ray.data.range(rows, override_num_blocks=blocks)


@pytest.fixture(scope="module")
def numbers(ray: Any) -> Any:
    return made().materialize()


@pytest.fixture(scope="module")
def tensors(ray: Any) -> Any:
    return made(12, 3).map(lambda row: {"id": row["id"], "x": np.full((2, 3), row["id"])}).materialize()


def ids(items: Any) -> list[int]:
    return [item["id"] for item in items]


def test_rows_come_in_the_order_of_the_data_set(numbers: Any) -> None:
    assert list(from_ray_data(numbers)) == [{"id": number} for number in range(ROWS)]


def test_a_data_set_may_be_read_part_by_part_like_any_table(numbers: Any) -> None:
    assert len(ArrowParts(numbers)) == numbers.num_blocks()
    few = ArrowParts(numbers, filter=pyarrow.compute.field("id") > 50)
    assert ids(few.to_iter_datapipe().read_arrow()) == list(range(51, ROWS))


@pytest.mark.parametrize("library", ["numpy", "pandas", "pyarrow", "polars"])
def test_frames_have_the_rows_of_a_block_at_most(library: Any, numbers: Any) -> None:
    if library == "polars":
        pytest.importorskip("polars", reason="the polars extra is not installed")
    frames = list(from_ray_data(numbers, rows=False, frame_size=4, library=library))
    assert [int(number) for frame in frames for number in np.asarray(frame["id"])] == list(range(ROWS))
    assert max(len(frame["id"]) for frame in frames) == 4


@pytest.mark.parametrize("size", [None, 3])
def test_tensors_are_arrays_and_in_frames_one_array(size: int | None, tensors: Any) -> None:
    rows = list(from_ray_data(tensors))
    assert [(row["x"].shape, int(row["x"][1, 2])) for row in rows] == [((2, 3), number) for number in range(12)]
    frames = list(from_ray_data(tensors, ["x"], rows=False, frame_size=size))
    whole = np.concatenate([frame["x"] for frame in frames])
    assert whole.dtype == np.int64
    assert (whole == np.arange(12)[:, None, None].repeat(2, 1).repeat(3, 2)).all()


def test_a_saved_state_goes_on_at_the_row_and_fetches_no_earlier_block(
    numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchdata.datapipes._pipe.ray_blocks import RayBlocks

    fetched: list[int] = []
    original = RayBlocks._block
    monkeypatch.setattr(RayBlocks, "_block", lambda self, part: fetched.append(part) or original(self, part))
    dice = random.Random(3)
    for position in [0, ROWS, *(dice.randrange(ROWS) for _ in range(12))]:
        pipe = from_ray_data(numbers, shuffle=True)
        with DataLoader2(pipe) as loader:
            loader.seed(position)
            whole = ids(loader)
            items, got = iter(loader), []
            got = [next(items)["id"] for _ in range(position)]
            state = pickle.dumps(loader.state_dict())
        fetched.clear()
        with DataLoader2(from_ray_data(numbers, shuffle=True)) as loader:
            loader.load_state_dict(pickle.loads(state))
            rest = ids(loader)
        assert sorted(whole) == sorted(got + rest) == list(range(ROWS))
        assert len(fetched) <= numbers.num_blocks() - position // (-(-ROWS // BLOCKS)) + 1


def test_a_state_resumes_with_a_rebuilt_dataset_but_not_with_another_one(numbers: Any) -> None:
    with DataLoader2(from_ray_data(numbers)) as loader:
        items = iter(loader)
        got = ids(next(items) for _ in range(20))
        state = loader.state_dict()
    with DataLoader2(from_ray_data(made().materialize())) as loader:
        loader.load_state_dict(state)
        assert got + ids(loader) == list(range(ROWS))
    # The blocks have equal or different numbers of rows.
    other = made().map(lambda row: {"id": row["id"] + 1}).materialize()
    with DataLoader2(from_ray_data(other)) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ValueError, match="was saved in block 2 of"):
            list(loader)


@pytest.mark.parametrize(
    "service",
    [
        lambda: MultiProcessingReadingService(2, "spawn"),
        lambda: RayReadingService(2, ray_remote_args={"num_cpus": 0}),
    ],
    ids=["spawned workers", "workers on Ray"],
)
def test_workers_share_the_blocks_out_and_go_on_from_a_state(service: Any, numbers: Any) -> None:
    shares = [[number for part in list(range(7))[worker::2] for number in _block(numbers, part)] for worker in range(2)]
    with DataLoader2(from_ray_data(numbers), reading_service=service()) as loader:
        items = iter(loader)
        got = [next(items)["id"] for _ in range(25)]
        state = loader.state_dict()
        rest = ids(items)
    with DataLoader2(from_ray_data(numbers), reading_service=service()) as loader:
        loader.load_state_dict(state)
        assert ids(loader) == rest
    whole = got + rest
    assert sorted(whole) == list(range(ROWS))
    assert [[number for number in whole if number in share] for share in map(set, shares)] == shares


def _block(numbers: Any, part: int) -> list[int]:
    import ray

    found: list[int] = ray.get(numbers.to_arrow_refs()[part])["id"].to_pylist()
    return found


def test_a_forked_worker_is_refused_with_what_to_do(numbers: Any) -> None:
    service = MultiProcessingReadingService(1, "fork")
    with (
        DataLoader2(from_ray_data(numbers), reading_service=service) as loader,
        pytest.raises(RuntimeError, match="multiprocessing_context='spawn'"),
    ):
        list(loader)


def test_lazy_ray_datasets_and_other_objects_are_refused(numbers: Any) -> None:
    with pytest.raises(TypeError, match=r"give\s+dataset.materialize\(\), not Dataset"):
        from_ray_data(made())
    with pytest.raises(TypeError, match="must be a Ray Data set that is materialized, but got IterableWrapper"):
        from_ray_data(IterableWrapper([1]))
    with pytest.raises(ValueError, match="no column 'other'"):
        from_ray_data(numbers, ["other"])


def test_a_data_set_without_rows_is_a_pipe_without_items(ray: Any) -> None:
    assert list(from_ray_data(made().filter(expr="id < 0").materialize())) == []


def test_rows_that_fail_are_skipped_like_those_of_any_pipe(numbers: Any) -> None:
    def seven(row: dict[str, int]) -> int:
        return 1 // (row["id"] - 7) + row["id"]

    with pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
        assert len(list(from_ray_data(numbers).map(seven).on_error("skip"))) == ROWS - 1
