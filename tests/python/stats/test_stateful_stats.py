"""Statistics of a `StatefulDataLoader` contain counts, the responsible code, long waits, and the processes."""

import copy
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import Dataset, IterableDataset, Subset  # noqa: E402

from fresh_processes import python_path  # noqa: E402
from process_checks import no_earlier_loader, nothing_is_left, wait_for  # noqa: E402, F401
from torchdata import nodes  # noqa: E402
from torchdata._observe.outside.attaching import find  # noqa: E402
from torchdata._observe.outside.stalls import WaitWarning  # noqa: E402
from torchdata._observe.stats import recorder  # noqa: E402
from torchdata._users_code import code_location  # noqa: E402
from torchdata.dataloader2 import DataLoader2  # noqa: E402
from torchdata.datapipes.iter import IterableWrapper  # noqa: E402
from torchdata.datapipes.map import SequenceWrapper  # noqa: E402
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402

WAYS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2, "multiprocessing_context": "fork"},
    {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
    {"num_workers": 1, "multiprocessing_context": "forkserver"},
]


class Photos(Dataset[int]):
    def __init__(self, count: int = 24) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index == 777:
            raise ValueError("a broken photo")
        return index


class Lines(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(24))


def pad(samples: list[Any]) -> list[Any]:
    return samples


def rows_of(stats: Any) -> dict[str, tuple[str | None, int]]:
    return {pipe.name: (pipe.location, pipe.items_out) for pipe in stats.merged_pipes()}


@pytest.mark.parametrize("way", WAYS)
def test_the_users_own_code_is_counted_with_file_and_line(way: dict[str, Any]) -> None:
    loader = StatefulDataLoader(Photos(), batch_size=4, collate_fn=pad, stats="full", **way)
    one_board = not way.get("num_workers") or way.get("persistent_workers")
    earlier = loader.stats()
    for epoch in (1, 2):
        assert len(list(loader.progress())) == 6
        stats = loader.stats()
        epochs = epoch if one_board else 1
        assert (stats.epoch, stats.items, stats.running) == (epoch, 6 * epochs, False)
        assert loader.stats(earlier).items == 6
        earlier = stats
    found = rows_of(stats)
    assert found["Photos.__getitem__"] == (code_location(Photos.__getitem__.__code__), 24 * epochs)
    assert found["pad"] == (code_location(pad.__code__), 6 * epochs)
    assert found["StatefulDataLoader"] == (None, 6 * epochs)


@pytest.mark.parametrize("way", WAYS[:2])
@pytest.mark.parametrize(
    ("dataset", "name"),
    [(Lines(), "Lines.__iter__"), (Subset(Photos(), range(8, 20)), "Photos.__getitem__"), (list(range(9)), "list")],
)
def test_the_function_that_reads_samples_is_found_below_torch_s_dataset_wrappers(
    way: dict[str, Any], dataset: Any, name: str
) -> None:
    loader = StatefulDataLoader(dataset, stats="full", **way)
    samples = len(list(loader))
    location, items = rows_of(loader.stats())[name]
    assert items == samples
    assert (location is None) == (name == "list")


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_counts_for_itself(make: Any) -> None:
    loader = StatefulDataLoader(Photos(), batch_size=4, stats="full", wait_warning=None)
    list(loader)
    copied = make(loader)
    assert (copied.stats().items, copied.stats().full) == (0, True)
    list(copied)
    assert (copied.stats().items, loader.stats().items) == (6, 6)


def test_few_batches_are_timed_unless_all_are_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchdata._observe.stats.batches import BatchClock

    timed = {"counts": 0, "full": 0}
    note = BatchClock.note

    def counting(self: BatchClock, samples: int, reading: int, collating: int) -> int:
        timed[level] += 1
        return note(self, samples, 1000, 1000)  # the machine's speed has no effect on tiny batches

    monkeypatch.setattr(BatchClock, "note", counting)
    for level in timed:
        list(StatefulDataLoader(range(3000), batch_size=2, stats=level))  # type: ignore[arg-type]
    assert timed["full"] == 1500
    assert timed["counts"] < 150
    monkeypatch.setenv("TORCHDATA_STATS", "full")
    level = "full"
    list(StatefulDataLoader(range(30), batch_size=2))
    assert timed["full"] == 1515


def test_quantiles_describe_single_samples_and_single_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchdata._observe.stats.batches import BatchClock

    note = BatchClock.note

    def noting(self: BatchClock, samples: int, _reading: int, _collating: int) -> int:
        return note(self, samples, 40_000_000, 1_000_000)

    monkeypatch.setattr(BatchClock, "note", noting)
    loader = StatefulDataLoader(Photos(), batch_size=4, collate_fn=pad, stats="full")
    list(loader)
    rows = {pipe.name: pipe for pipe in loader.stats().merged_pipes()}
    assert rows["Photos.__getitem__"].p50 == pytest.approx(0.01, rel=0.2)
    assert rows["Photos.__getitem__"].own_seconds == pytest.approx(6 * 0.04)
    assert rows["pad"].p50 == pytest.approx(0.001, rel=0.2)


def test_an_epoch_without_items_is_diagnosed_as_empty() -> None:
    nothing: Any = IterableWrapper([])
    several = StatefulDataLoader(nothing, num_workers=2)
    for loader in (StatefulDataLoader(nothing), several, nodes.Loader(nodes.IterableWrapper([]))):
        assert not list(loader)
        assert loader.diagnose().kind == "empty"


def test_workers_in_a_daemonic_process_are_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="start this process with daemon=False, or use num_workers=0"):
        list(StatefulDataLoader(range(3), num_workers=2))


def test_arguments_without_effect_are_refused() -> None:
    with pytest.raises(ValueError, match='stats must be "counts" or "full"'):
        StatefulDataLoader(range(3), stats="all")  # type: ignore[arg-type]
    for share in (0, 1.5, True):
        with pytest.raises(ValueError, match="wait_warning must be a share from 0 to 1 or None"):
            StatefulDataLoader(range(3), wait_warning=share)


def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "LEAST", 0.0)
    monkeypatch.delenv("TORCHDATA_WAIT_WARNING")


LOADERS: dict[str, Any] = {
    "StatefulDataLoader": lambda **more: StatefulDataLoader(Photos(400), batch_size=4, **more),
    "DataLoader2": lambda **more: DataLoader2.from_dataset(Photos(400), batch_size=4, **more),
    "nodes.Loader": lambda num_workers=0, **more: nodes.Loader(
        nodes.Batcher(nodes.MapStyleWrapper(Photos(400), range(400), num_workers=num_workers), 4), **more
    ),
}


@pytest.mark.parametrize("name", LOADERS)
def test_the_first_epoch_that_waits_for_long_warns_once_with_file_and_line(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_waits(monkeypatch)
    loader = LOADERS[name](wait_warning=1e-6, stats="full")
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always", WaitWarning)
        for _ in range(20):  # other programs may distort the times of an epoch
            list(loader)
            if shown:
                break
    message = str(shown[0].message)
    assert re.match(rf"{name}: in epoch \d+, the program waited \d+ % of ", message)
    assert "\n" not in message
    assert f"({code_location(Photos.__getitem__.__code__)})" in message or "in `" in message
    with warnings.catch_warnings():
        warnings.simplefilter("error", WaitWarning)
        list(loader)


@pytest.mark.parametrize("name", LOADERS)
def test_an_argument_and_the_environment_turn_the_warning_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    long_waits(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error", WaitWarning)
        list(LOADERS[name](wait_warning=None))
        monkeypatch.setenv("TORCHDATA_WAIT_WARNING", "0")
        list(LOADERS[name](wait_warning=1e-6))


@pytest.mark.skipif(
    not hasattr(os, "memfd_create") or os.environ.get("TORCHDATA_PORTABLE") == "1",
    reason="loaders are found through memory files in Linux's /proc",
)
@pytest.mark.parametrize(("name", "workers"), [*((name, 1) for name in LOADERS), ("StatefulDataLoader", 0)])
def test_every_loader_is_seen_from_outside_with_its_slow_function_and_its_own_arguments(
    name: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHDATA_STATS", "full")
    loader = LOADERS[name](num_workers=workers)
    iterator = iter(loader)
    for _ in range(20):
        next(iterator)
    command = [sys.executable, "-m", "torchdata", "stats", str(os.getpid())]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert f"Photos.__getitem__ ({code_location(Photos.__getitem__.__code__)})" in done.stdout
    foreign = "num_workers=" if name == "DataLoader2" else "MultiProcessingReadingService"
    assert foreign not in done.stdout
    del iterator
    if name != "StatefulDataLoader":
        loader.shutdown()


def name_of(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()


def renames(worker: int) -> None:
    with open("/proc/self/comm", "w") as file:
        file.write(f"mine_{worker}")


@pytest.mark.parametrize("kind", ["StatefulDataLoader", "own names", "DataLoader2", "dispatching"])
def test_processes_have_names_and_the_loader_reports_their_ids(kind: str) -> None:
    rename = renames if kind == "own names" else None
    loader: Any = StatefulDataLoader(Photos(), num_workers=2, worker_init_fn=rename, multiprocessing_context="fork")
    if kind == "DataLoader2":
        loader = DataLoader2.from_dataset(Photos(), num_workers=2)
    if kind == "dispatching":
        loader = DataLoader2(IterableWrapper(range(8)).sharding_round_robin_dispatch(), num_workers=2)
    assert loader.worker_pids() == []
    iterator = iter(loader)
    next(iterator)
    wanted = ["td_worker_0", "td_worker_1", *(["td_dispatch"] if kind == "dispatching" else [])]
    wanted = ["mine_0", "mine_1"] if kind == "own names" else wanted
    wait_for(lambda: list(map(name_of, loader.worker_pids())) == wanted)
    list(iterator)
    if isinstance(loader, DataLoader2):
        loader.shutdown()
    assert loader.worker_pids() == []


def test_the_process_that_forks_workers_has_a_name() -> None:
    loader = StatefulDataLoader(Photos(), num_workers=1, multiprocessing_context="forkserver")
    iterator = iter(loader)
    next(iterator)
    with open(f"/proc/{loader.worker_pids()[0]}/status") as file:
        parent = next(line.split()[1] for line in file if line.startswith("PPid:"))
    assert name_of(int(parent)) == "td_fork"
    list(iterator)


def test_the_processes_of_all_nodes_belong_to_one_loader() -> None:
    source = nodes.IterableWrapper(range(8))
    first = nodes.ParallelMapper(source, abs, num_workers=2, method="process")
    loader = nodes.Loader(nodes.ParallelMapper(first, abs, num_workers=1, method="process"))
    assert loader.worker_pids() == []
    for _ in range(2):  # a shutdown ends the processes, and the next epoch starts new ones
        items = iter(loader)
        next(items)
        wait_for(lambda: "".join(map(name_of, loader.worker_pids())) == "td_worker_0td_worker_1td_worker_2")
        (seen,) = find(os.getpid())
        main, *workers = seen.stats().processes
        assert (main.pid, main.items > 0) == (os.getpid(), True)
        assert [(worker.worker, worker.pid) for worker in workers] == list(enumerate(loader.worker_pids()))
        assert len(seen.stacks()) == 4
        loader.shutdown()
        assert loader.worker_pids() == []
        assert find(os.getpid()) == []


def bad(index: int) -> int:
    if index == 5:
        raise ValueError("a broken function")
    return index


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: SequenceWrapper(Photos(778)).to_iter_datapipe().sharding_filter(), Photos.__getitem__),
        (lambda: SequenceWrapper(Photos(778)).shuffle().sharding_filter(), Photos.__getitem__),
        (lambda: SequenceWrapper(Subset(Photos(778), range(770, 778))).shuffle().sharding_filter(), Photos.__getitem__),
        (lambda: SequenceWrapper(Photos(99)).map(bad).to_iter_datapipe().sharding_filter(), bad),
    ],
)
def test_the_note_of_an_exception_names_the_code_that_has_raised(workers: int, make: Any, code: Any) -> None:
    with DataLoader2(make(), num_workers=workers) as loader, pytest.raises(ValueError, match="broken") as caught:
        list(loader)
    notes = "\n".join(caught.value.__notes__)
    name = code.__qualname__
    assert f"was raised while {name} ({code_location(code.__code__)})" in notes
    assert ", of index " in notes


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("level", ["counts", "full"])
def test_counts_and_logs_of_skipped_items_name_the_code_that_has_raised(
    workers: int, level: Any, tmp_path: Any
) -> None:
    log = tmp_path / "log"
    pipe = SequenceWrapper(Photos(778)).shuffle().on_error("skip", log=log).sharding_filter()
    with DataLoader2(pipe, num_workers=workers, stats=level) as loader:
        with pytest.warns(RuntimeWarning, match=r"ValueError in Photos\.__getitem__"):
            list(loader)
        assert "ValueError in Photos.__getitem__" in str(loader.diagnose())
    assert f'"pipe": "Photos.__getitem__ ({code_location(Photos.__getitem__.__code__)})"' in log.read_text()


@pytest.mark.parametrize("workers", [0, 2])
def test_items_of_a_map_style_dataset_are_counted_separately_from_the_pipes_that_read_them(workers: int) -> None:
    pipe = SequenceWrapper(Photos(40)).map(abs).to_iter_datapipe().map(abs).sharding_filter()
    with DataLoader2(pipe, num_workers=workers, stats="full") as loader:
        assert len(list(loader)) == 40
        stats = loader.stats()
    assert rows_of(stats)["Photos.__getitem__"] == (code_location(Photos.__getitem__.__code__), 40)
    put_off = {pipe.name for pipe in stats.pipes if pipe.put_off}
    assert {"Photos.__getitem__", "MapToIterConverter"} <= put_off
    assert "ShardingFilter" not in put_off


def test_from_dataset_takes_the_arguments_of_statistics() -> None:
    loader = DataLoader2.from_dataset(range(9), stats="full", stall_warning=None, wait_warning=None)
    list(loader)
    assert loader.stats().full
