"""Statistics, diagnoses and stacks include workers on simulated machines. Hanging workers are replaced."""

import dataclasses
import functools
import os
import re
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest

from hanging import Hanging, stalls_reported
from hosts import LocallyRemote, hosts_have_ended  # noqa: F401 - one is a fixture
from process_checks import nothing_is_left, shared_mappings, wait_for  # noqa: F401 - one is a fixture
from remote_pipelines import array, double, numbered, reading
from torchdata._observe.outside.attaching import attach
from torchdata._observe.outside.top import print_once
from torchdata._observe.stats.model import LoaderStats, ProcessStats
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

pytestmark = [pytest.mark.alone, pytest.mark.filterwarnings("ignore:.*A new process replaced it")]

WORKERS = 2


def locations(stats: LoaderStats, worker: int) -> tuple[str | None, str | None]:
    return stats.workers[worker].node, stats.workers[worker].actor


def all_seen(loader: DataLoader2[Any], items: int) -> LoaderStats:
    wait_for(lambda: sum(worker.items for worker in loader.stats().workers) >= items)
    return loader.stats()


def idle_stats(loader: DataLoader2[Any], worker: int, taken: int) -> ProcessStats:
    wait_for(lambda: (seen := loader.stats().workers[worker]).items == taken + seen.window)
    return loader.stats().workers[worker]


def test_counts_of_a_remote_worker_equal_those_of_a_local_one_and_name_its_node() -> None:
    def counted(service: Any) -> LoaderStats:
        with DataLoader2(numbered(301).map(double).batch(3), reading_service=service) as loader:
            loader.seed(5)
            assert len(list(loader)) == 101
            return all_seen(loader, 101)

    far, near = counted(LocallyRemote(WORKERS)), counted(MultiProcessingReadingService(WORKERS))

    def of(stats: LoaderStats) -> Any:
        return [
            (one.name, one.items, [(pipe.name, pipe.items_in, pipe.items_out) for pipe in one.pipes])
            for one in stats.processes
        ]

    assert of(far) == of(near)
    assert all(node and actor == "here" for node, actor in (locations(far, worker) for worker in range(WORKERS)))
    assert [locations(near, worker) for worker in range(WORKERS)] == [(None, None)] * WORKERS
    assert (near.network_bytes, near.main is not None and near.main.node) == (0, None)
    assert far.network_bytes >= far.bytes
    assert far.network_bytes == sum(worker.network_bytes for worker in far.workers)


def test_the_view_from_outside_has_the_node_and_the_network_s_rate() -> None:
    shown: list[str] = []
    with DataLoader2(numbered(300).map(array), reading_service=LocallyRemote(WORKERS)) as loader:
        iterator = iter(loader)
        for _ in range(200):
            next(iterator)
        node = all_seen(loader, 200).workers[1].node
        print_once(os.getpid(), True, shown.append)
        seen = [{worker.pid for worker in one.stats().workers} for one in attach(os.getpid())]
        assert {actor.host._child.pid for actor in loader.reading_service.made.actors} in seen
    text = "\n".join(shown)
    assert f"worker process 1 on node {node}" in text
    assert re.search(r"network [\d.]+ \w+/s, [\d.]+ MiB from 2 workers on 1 node", text), text
    assert "its stack is only available in the main process" in text


def test_the_counts_of_a_replacement_are_added_to_the_counts_of_the_exited_worker() -> None:
    service = LocallyRemote(WORKERS, on_worker_exit="restart")
    with DataLoader2(numbered(2000).map(reading), reading_service=service) as loader:
        loader.seed(5)
        for number, _ in enumerate(loader):
            if number == 600:
                before = idle_stats(loader, 1, 300)
                loader.reading_service.made.actors[1].cut()
        wait_for(lambda: loader.stats().workers[1].restarts == 1)
        after = all_seen(loader, 2000).workers[1]
    assert before.pid != after.pid
    assert after.items >= before.items
    assert after.network_bytes >= before.network_bytes


def test_a_worker_that_has_exited_is_noticed() -> None:
    with DataLoader2(numbered(10), reading_service=LocallyRemote(WORKERS)) as loader:
        assert len(list(loader)) == 10
        wait_for(lambda: [worker.state for worker in loader.stats().workers] == ["idle"] * WORKERS)
        loader.reading_service.made.actors[0].cut()
        wait_for(lambda: loader.stats().workers[0].state == "ended")


@functools.cache
def statistics() -> LoaderStats:
    with DataLoader2(numbered(300).map(reading), reading_service=LocallyRemote(WORKERS), stats="full") as loader:
        list(loader)
        all_seen(loader, 300)
        wait_for(lambda: all(worker.pipes[-1].own_seconds for worker in loader.stats().workers))
        return loader.stats()


def measured(**worker: Any) -> LoaderStats:
    stats = statistics()
    far = {"network_bytes": 1 << 30, "room": 0.8, "busy": 0.1, "node": "10.0.0.7"}
    processes = [
        dataclasses.replace(stats.workers[0], name=process.name, **{**far, **worker})
        if process.role == "worker"
        else process
        for process in stats.processes
    ]
    return dataclasses.replace(
        stats, processes=tuple(processes), waiting=0.9, loading=0.95, first_item_seconds=0.1, seconds=2.0,
        network_bytes=2 << 30, network_bytes_per_second=float(1 << 30), fragments=0, copied_bytes=0,
    )  # fmt: skip


def test_the_network_is_the_limit_if_both_ends_wait() -> None:
    from torchdata._observe.stats.diagnosis import diagnose

    full = diagnose(measured())
    assert full.kind == "network"
    assert str(full).startswith("The network limits you: 1.0 GiB/s arrive from 2 workers; main waits 90 %")
    assert "worker_prefetch_cnt" in str(full)
    assert diagnose(measured(room=0.1)).kind != "network"  # the cause is slow workers
    assert diagnose(measured(node=None)).kind != "network"  # no worker is on another machine


def test_the_time_of_a_remote_worker_is_shown_with_its_node() -> None:
    from torchdata._observe.stats.diagnosis import diagnose

    text = str(diagnose(measured(room=0.0, busy=0.9)))
    assert re.search(r"worker process \d on node 10.0.0.7 spends \d+ % of its work in `Mapper\(reading\)`", text), text


def hanging_at(item: int, hang: Hanging) -> Any:
    def function(x: int) -> int:
        if x == item:
            hang()
        return x

    return function


def test_a_hanging_remote_worker_causes_a_warning_with_its_node_and_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(x: int) -> int:
        if x == 31:
            wait_for((tmp_path / "reported").exists)
        return x

    pipe = IterableWrapper(range(100)).sharding_filter().map(waits)
    with (
        stalls_reported(tmp_path / "reported", monkeypatch, "main waits for worker process 1", "in waits") as shown,
        DataLoader2(pipe, reading_service=LocallyRemote(WORKERS), stall_warning=0.5) as loader,
    ):
        assert list(loader) == list(range(100))
        node = loader.stats().workers[1].node
    assert f"main waits for worker process 1 on node {node}" in shown[0]


@pytest.mark.parametrize(("way", "exits_too"), [("stop", False), ("loop", False), ("lock", True)])
def test_a_hanging_process_is_replaced_and_nothing_is_lost(way: str, exits_too: bool, tmp_path: Path) -> None:
    pipe = numbered(200).map(hanging_at(77, Hanging(way, tmp_path)))
    options = {"timeout": 1.5, "on_timeout": "restart", "on_worker_exit": "restart" if exits_too else "error"}
    with (
        warnings.catch_warnings(record=True) as shown,
        DataLoader2(pipe, reading_service=LocallyRemote(WORKERS, **options)) as loader,
    ):
        warnings.simplefilter("always")
        loader.seed(5)
        got = []
        for item in loader:
            got.append(item)
            if exits_too and len(got) == 20:
                os.kill(loader.reading_service.made.actors[0].host._child.pid, signal.SIGKILL)
    with DataLoader2(numbered(200), reading_service=MultiProcessingReadingService(WORKERS)) as loader:
        loader.seed(5)
        assert got == list(loader)
    words = "\n".join(str(one.message) for one in shown)
    assert re.search(r"worker process \d \(pid \d+ on .*, Ray actor here\) yielded nothing for", words), words
    assert "and was therefore killed (`timeout`)" in words
    assert "File " in words
