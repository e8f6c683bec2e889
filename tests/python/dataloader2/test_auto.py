"""With `num_workers="auto"`, a loader chooses its number of workers once, when it starts or resumes."""

import logging
from typing import Any

import pytest

from process_checks import nothing_is_left  # noqa: F401
from programs import run
from resuming import begun, continued, resumed
from torchdata._engine import snapshots
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.graph.settings import apply_sharding
from torchdata.dataloader2.services.choosing import WorkerChoice, choose_workers
from torchdata.datapipes.iter import SHARDING_PRIORITIES, FullSync, IterableWrapper


def auto(pipe: Any, **options: Any) -> DataLoader2[Any]:
    return DataLoader2(pipe, reading_service=MultiProcessingReadingService("auto", "fork", **options))


def batches() -> Any:
    return IterableWrapper(range(90)).shuffle().sharding_filter().shuffle().batch(4)


def test_the_number_of_workers_follows_from_the_cores_and_is_logged(machine_of, caplog) -> None:
    for cores, workers, reason in (
        (2, 2, "2 cores, and at least 2 workers are started"),
        (64, 16, "64 cores, and at most 16 workers are started"),
        (5, 4, "5 cores, and one core is left for the main process"),
    ):
        machine_of(cores)
        line = f'num_workers="auto": {workers} workers: this process may use {reason}'
        assert choose_workers() == WorkerChoice(workers, line)
    caplog.set_level(logging.INFO, "torchdata")
    with auto(IterableWrapper(range(40)).sharding_filter()) as loader:
        assert len(loader) == 40
        assert loader.stats().choices == ()
        for _ in range(3):
            assert list(loader) == list(range(40))
            assert loader.reading_service.num_workers == workers
        assert loader.stats().choices == (line,)
        assert f"chosen: {line}" in str(loader.stats())
        assert "num_workers='auto'" in repr(loader)
    assert [record.getMessage() for record in caplog.records] == [line]


def test_without_logging_configured_the_line_is_printed() -> None:
    program = "from torchdata.dataloader2.services.choosing import log; log('2 workers: it is so')"
    done = run(program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "torchdata: 2 workers: it is so\n")


@pytest.mark.parametrize(("saved_by", "cores", "workers"), [("auto", 3, 2), (3, 4, 3), ("auto", 6, 5)])
def test_the_shards_of_a_state_run_in_the_workers_that_are_chosen(machine_of, saved_by, cores, workers) -> None:
    machine_of(4)
    loader = DataLoader2(batches(), reading_service=MultiProcessingReadingService(saved_by, "fork"))
    _, state, rest = continued(begun(loader), 7)
    assert len(state["iteration_state"]["shards"]) == 3
    loader = DataLoader2(batches(), reading_service=MultiProcessingReadingService(workers, "fork"))
    expected = resumed(loader, state, 3)
    assert expected[0] == rest
    machine_of(cores)
    with auto(batches()) as other:
        other.load_state_dict(state)
        items = iter(other)
        read = [next(items)]
        running = min(workers, 3)  # each worker runs at least one shard
        assert other.reading_service.engine_processes().num_workers == running
        assert [[*read, *items], list(other)] == expected[:2]
        assert other.reading_service.engine_processes().num_workers == workers
        assert list(other) == expected[2]
        assert other.reading_service.num_workers == workers
        (choice,) = other.stats().choices
        assert choice.startswith(f'num_workers="auto": {workers} workers: ')


def test_functions_of_each_worker_and_free_order_are_allowed(machine_of) -> None:
    machine_of(4)
    options = {"in_order": False, "worker_init_fn": lambda pipe, info: pipe}
    with auto(IterableWrapper(range(30)).sharding_filter(), **options) as loader:
        assert sorted(loader) == list(range(30))
        assert loader.reading_service.num_workers == 3


def test_ranks_are_refused_because_all_need_the_same_number() -> None:
    shared = IterableWrapper(range(30)).sharding_filter()
    apply_sharding(shared, 2, 0, SHARDING_PRIORITIES.DISTRIBUTED)
    for pipe in (shared, FullSync(IterableWrapper(range(30)).sharding_filter())):
        with pytest.raises(ValueError, match="all ranks of a distributed job need the same number of workers"):
            MultiProcessingReadingService("auto", "fork").initialize(pipe)


def test_a_state_that_is_loaded_into_a_running_loader_is_counted_in_its_own_workers() -> None:
    with auto(IterableWrapper(range(40)).sharding_filter()) as loader:
        iter(loader)
        loader.load_state_dict(loader.state_dict())
        assert list(loader) == list(range(40))
        assert [worker.items for worker in loader.stats().workers] == [20, 20]
        assert loader.diagnose().kind != "idle workers"


def test_all_processes_together_spend_at_most_one_percent_of_the_cores_on_snapshots(machine_of) -> None:
    for cores, processes in ((2, 2), (2, 4), (2, 5), (2, 256), (16, 16), (16, 33), (16, 256)):
        machine_of(cores)
        assert processes / snapshots.cadence(processes)[1] <= 0.01 * cores
