"""Traces: valid for Perfetto and complete, with items as flows across processes and threads, whatever happens."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

import torchdata
from torchdata import _tracing
from torchdata._observe.trace import chrome
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.error import WorkerExitedError
from torchdata.datapipes.iter import IterableWrapper
from trace_checks import read_trace

pytestmark = pytest.mark.alone
METHODS = ("fork", "spawn", "forkserver")


def work(item: int) -> int:
    time.sleep(0.001)
    return item + 1


def die_at_20(item: int) -> int:
    if item == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def fail_at_7(item: int) -> int:
    if item == 7:
        raise ValueError("seven")
    return item


def descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("method", METHODS)
def test_items_flow_from_pipe_to_pipe_across_processes(method: str, tmp_path: Path) -> None:
    path = tmp_path / "epoch.json.gz"
    pipe = IterableWrapper(range(30)).sharding_round_robin_dispatch().map(work)
    service = MultiProcessingReadingService(2, method)
    with DataLoader2(pipe, reading_service=service) as loader, torchdata.trace(path) as traced:
        assert sorted(loader) == list(range(1, 31))
    found = read_trace(path)
    workers = ["worker process 0", "worker process 1"]
    assert found.processes() == {"main", *workers, "the dispatching process"}
    dealt = {
        ("the dispatching process: ShardingRoundRobinDispatcher", f"the dispatching process: send to {worker}",
         f"{worker}: receive from the dispatching process")
        for worker in workers
    }  # fmt: skip
    sent = {
        (f"{worker}: Mapper(work)", f"{worker}: send to main", f"main: receive from {worker}") for worker in workers
    }
    assert found.ways() == dealt | sent
    assert len(found.flows) == 60, "each item crosses twice"
    items = [one.args["item"] for one in found.named("Mapper(work)", workers[0]) if "item" in one.args]
    assert items == list(range(15))
    assert all(one.end - one.begin >= 1_000_000 for one in found.named("Mapper(work)") if "item" in one.args)
    assert traced.events > 0
    assert traced.left_out == 0


def test_items_flow_between_threads_of_a_process(tmp_path: Path) -> None:
    path = tmp_path / "threads.json"
    with torchdata.trace(path):
        assert list(IterableWrapper(range(20)).map(work).prefetch(4).map(str)) == [str(n + 1) for n in range(20)]
    found = read_trace(path)
    assert found.ways() == {("main: Mapper(work)", "main: receive from thread of Prefetcher")}
    assert len(found.flows) == 20
    assert {one.thread for one in found.named("Mapper(work)")} == {"thread of Prefetcher"}
    assert {one.thread for one in found.named("Prefetcher")} == {"main thread"}


def two_are_late(item: int) -> int:
    time.sleep(0.1 if item in (20, 31) else 0)
    return item


def test_waits_and_who_is_waited_for_are_slices(tmp_path: Path) -> None:
    path = tmp_path / "waits.json"
    pipe = IterableWrapper(range(60)).sharding_filter().map(two_are_late)
    service = MultiProcessingReadingService(2, "fork", worker_prefetch_cnt=1, main_prefetch_cnt=1)
    with DataLoader2(pipe, reading_service=service) as loader, torchdata.trace(path):
        for number, _ in enumerate(loader):
            if number == 40:
                time.sleep(0.2)  # now the workers wait for room
    found = read_trace(path)
    waits = {one.name for one in found.slices if one.name.startswith("wait")}
    assert {"wait for worker process 0", "wait for worker process 1", "wait for room (main)"} <= waits
    longest = max(found.named("wait for room (main)"), key=lambda one: one.end - one.begin)
    assert longest.end - longest.begin > 20_000_000


def test_only_epochs_that_begin_within_are_traced(tmp_path: Path) -> None:
    pipe = IterableWrapper(range(10)).sharding_filter().map(work)
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(1, "fork")) as loader:
        list(loader)
        before = descriptors()
        begun = iter(loader)
        next(begun)
        with torchdata.trace(tmp_path / "first.json"):
            list(begun)
            list(loader)
            open_end = iter(loader)
            next(open_end)
        rest = list(open_end)
        list(loader)
        assert descriptors() == before, "nothing is left open"
    assert len(rest) == 9
    found = read_trace(tmp_path / "first.json")
    items = [one.args["item"] for one in found.named("the worker processes") if "item" in one.args]
    assert items == [*range(10), 0], "the whole epoch, and what was seen of the next"
    assert _tracing.current is None


def test_what_a_killed_worker_has_written_is_there(tmp_path: Path) -> None:
    pipe = IterableWrapper(range(100)).sharding_filter().map(die_at_20)
    loader = DataLoader2(pipe, reading_service=MultiProcessingReadingService(1, "fork"))
    with loader, pytest.raises(WorkerExitedError), torchdata.trace(tmp_path / "killed.json.gz"):
        list(loader)
    found = read_trace(tmp_path / "killed.json.gz")
    items = [one.args["item"] for one in found.named("IterableWrapper", "worker process 0")]
    assert items == list(range(21)), "the last item was made before the death"


def test_an_error_within_leaves_a_trace_of_what_came_before(tmp_path: Path) -> None:
    pipe = IterableWrapper(range(10)).sharding_filter().map(fail_at_7)
    loader = DataLoader2(pipe, reading_service=MultiProcessingReadingService(1, "spawn"))
    with loader, pytest.raises(ValueError, match="seven"), torchdata.trace(tmp_path / "failed.json"):
        list(loader)
    found = read_trace(tmp_path / "failed.json")
    assert len([one for one in found.named("Mapper(fail_at_7)") if "item" in one.args]) == 7
    assert [one for one in found.named("Mapper(fail_at_7)") if "ended" in one.args]


def test_a_full_log_warns_of_what_it_left_out_and_stays_valid(tmp_path: Path) -> None:
    pipe = IterableWrapper(range(1000)).map(str)
    traced = torchdata.trace(tmp_path / "full.json", events=100)
    with pytest.warns(RuntimeWarning, match=r"lacks the last \d+ events.*events=…") as warned, traced:
        list(pipe)
    assert warned[0].filename == __file__
    found = read_trace(tmp_path / "full.json")
    assert 0 < len(found.slices) <= 100
    assert traced.left_out > 1800
    assert found.other == {"left out": {"main": traced.left_out}}


def test_a_second_trace_and_a_place_that_cannot_be_written_are_refused_at_once(tmp_path: Path) -> None:
    second = torchdata.trace(tmp_path / "two.json")
    with (
        torchdata.trace(tmp_path / "one.json"),
        pytest.raises(RuntimeError, match="is being written already"),
    ):
        second.__enter__()
    with (
        pytest.raises(FileNotFoundError, match="there is no folder"),
        torchdata.trace(tmp_path / "no" / "x.json"),
    ):
        pass
    with pytest.raises(IsADirectoryError, match="give the name of a file"), torchdata.trace(tmp_path):
        pass
    with pytest.raises(ValueError, match="events must be from 1"):
        torchdata.trace(tmp_path / "x.json", events=0)
    with pytest.raises(TypeError, match="events must be an integer"):
        torchdata.trace(tmp_path / "x.json", events=1.5)  # type: ignore[arg-type]
    assert [file.name for file in tmp_path.iterdir()] == ["one.json"]
    assert _tracing.current is None


def test_a_trace_that_cannot_be_written_is_no_reason_to_hide_the_error_within(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torchdata._observe.trace.trace.write_trace", full)
    with pytest.raises(KeyError) as caught, torchdata.trace(tmp_path / "x.json"):
        raise KeyError("of the program")
    assert "writing the trace" in caught.value.__notes__[0]
    with pytest.raises(OSError, match="No space left"), torchdata.trace(tmp_path / "x.json"):
        pass
    assert _tracing.current is None
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_writes_nothing_of_its_parents_trace(tmp_path: Path) -> None:
    path = tmp_path / "forked.json"
    pipe = IterableWrapper(range(3))
    with torchdata.trace(path):
        list(pipe)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of other tests
            child = os.fork()
        if child == 0:
            os._exit(0 if list(pipe) == [0, 1, 2] and _tracing.current is None else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert len([one for one in read_trace(path).named("IterableWrapper") if "item" in one.args]) == 3


def test_pipes_are_ranges_of_torchs_profiler() -> None:
    torch = pytest.importorskip("torch", reason="it is optional")
    with (
        torchdata.trace(),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled,
    ):
        list(IterableWrapper(range(5)).map(work))
    counts = {event.key: event.count for event in profiled.key_averages()}
    assert counts["torchdata: Mapper(work)"] == 6, "five items and the end"
    assert counts["torchdata: IterableWrapper"] == 6


def test_ranges_of_nvtx_are_pushed_and_popped_where_cuda_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    record = SimpleNamespace(__enter__=lambda: None, __exit__=lambda *_: None)
    nvtx = SimpleNamespace(range_push=calls.append, range_pop=lambda: calls.append("pop"))
    profiler = SimpleNamespace(record_function=lambda name: record)
    torch = SimpleNamespace(
        autograd=SimpleNamespace(profiler=profiler),
        cuda=SimpleNamespace(is_initialized=lambda: True, nvtx=nvtx),
    )
    pipe = IterableWrapper(range(1)).map(work)
    monkeypatch.setitem(sys.modules, "torch", torch)
    with torchdata.trace():
        list(pipe)
    outer, inner = "torchdata: Mapper(work)", "torchdata: IterableWrapper"
    assert calls == [outer, inner, "pop", "pop"] * 2


def test_slices_that_the_clock_made_overlap_are_nested() -> None:
    rng = random.Random(4)
    for _ in range(300):
        spans = [(begin := rng.randrange(30), begin + rng.randrange(12)) for _ in range(12)]
        slices = chrome.nested([chrome.Slice(*span, 1, 0, 0, 0, 0) for span in spans])
        assert len(slices) == len(spans)
        for one in slices:
            assert one.begin < one.end
            for other in slices:
                apart = one.end <= other.begin or other.end <= one.begin
                within = one.begin >= other.begin and one.end <= other.end
                around = other.begin >= one.begin and other.end <= one.end
                assert apart or within or around


def a_random_history(rng: random.Random, path: Path) -> None:
    """A random loader, epochs that are read, left and begun anew within and around a trace."""
    pipe = IterableWrapper(range(rng.randrange(1, 60)))
    if rng.random() < 0.3:
        pipe = pipe.sharding_round_robin_dispatch()
    elif rng.random() < 0.8:
        pipe = pipe.shuffle(buffer_size=rng.randrange(1, 20)).sharding_filter()
    if rng.random() < 0.4:
        pipe = pipe.prefetch(rng.randrange(1, 5))
    pipe = pipe.map(abs)
    if rng.random() < 0.4:
        pipe = pipe.batch(rng.randrange(1, 5))
    workers = rng.randrange(1, 4)
    service = MultiProcessingReadingService(workers, "fork", in_order=rng.random() < 0.7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of copies, where nothing divides the items
        with DataLoader2(pipe, reading_service=service) as loader:
            for _ in range(rng.randrange(2)):
                list(loader)
            expected = 0
            with torchdata.trace(path, events=rng.choice((50, 100_000))) as traced:
                for _ in range(rng.randrange(1, 4)):
                    wanted = rng.choice((0, 1, 5, 1000))
                    left_early = False
                    for number, _ in enumerate(loader, 1):
                        expected += 1
                        if number > wanted:
                            left_early = True
                            break
            list(loader)
    found = read_trace(path)
    seen = [one for one in found.named("the worker processes") if "item" in one.args]
    if not traced.left_out:
        assert len(seen) == expected
        arrived = [flow for flow in found.flows if flow[-1].name.startswith("receive from worker")]
        # Where the trace ends in the middle, a worker may be stopped between sending an item and writing that down.
        assert expected - (workers if left_early else 0) <= len(arrived) <= expected
        assert all(flow[0].process.startswith("worker") for flow in arrived)


@pytest.mark.parametrize("seed", [*range(5), 1084])
def test_random_histories_leave_valid_traces(seed: int, tmp_path: Path) -> None:
    a_random_history(random.Random(seed), tmp_path / "random.json.gz")


def test_the_checks_notice_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "good.json"
    pipe = IterableWrapper(range(5)).map(work).prefetch(2)
    with torchdata.trace(path):
        list(pipe)
    good = json.loads(path.read_text())

    def spoilt(change) -> Path:  # type: ignore[no-untyped-def]
        document = json.loads(json.dumps(good))
        change(document["traceEvents"])
        spoilt = tmp_path / "spoilt.json"
        spoilt.write_text(json.dumps(document))
        return spoilt

    def first(events: list[dict], phase: str) -> dict:  # type: ignore[type-arg]
        return next(event for event in events if event["ph"] == phase)

    def ends_within_the_next(events: list[dict]) -> None:  # type: ignore[type-arg]
        one, inner = [event for event in events if event["ph"] == "X"][:2]
        one["dur"] = inner["ts"] + inner["dur"] / 2 - one["ts"]

    changes = [
        lambda events: first(events, "X").update(dur=0),
        ends_within_the_next,
        lambda events: events.remove(first(events, "s")),
        lambda events: events.remove(first(events, "f")),
        lambda events: first(events, "f").update(ts=0),
        lambda events: first(events, "s").update(ts=1e9),
        lambda events: first(events, "X").pop("ts"),
        lambda events: first(events, "M").update(pid=1),
    ]
    read_trace(path)
    for change in changes:
        with pytest.raises((AssertionError, KeyError)):
            read_trace(spoilt(change))
