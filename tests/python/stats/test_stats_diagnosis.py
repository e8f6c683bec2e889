"""A loader's diagnosis names the cause in each slow situation that a test creates."""

import math
import os
import re
import time
import warnings
from dataclasses import replace
from statistics import fmean

import pytest

from fresh_processes import run_python
from process_checks import loader, nothing_is_left, wait_for  # noqa: F401
from torchdata._observe.stats.diagnosis import diagnose, oversubscribed, work_before_sharding
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe

pytestmark = pytest.mark.alone

HERE = os.path.basename(__file__)


def decode(x):
    """Sleeps for 18 ms, or longer on a busy machine, and returns the actual duration in seconds."""
    begun = time.perf_counter()
    time.sleep(0.018)
    return time.perf_counter() - begun


def code_location(function):
    return f"{HERE}:{function.__code__.co_firstlineno}"


def measured(pipe, workers=2, step=0.0, level="full", took=None, waits=None, **options):
    service = MultiProcessingReadingService(workers, multiprocessing_context="fork", **options) if workers else None
    with DataLoader2(pipe, reading_service=service, stats=level) as dl:
        wanted = time.perf_counter()
        for item in dl:
            begun = time.perf_counter()
            time.sleep(step)
            if waits is not None:
                waits.append(begun - wanted)
            wanted = time.perf_counter()
            if took is not None:
                took.append((item, wanted - begun))
        return dl.diagnose()


def seconds(words):
    number, unit = words.split()
    return float(number) * {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]


TIME = r"([\d.]+ (?:s|ms|µs|ns))"


def test_before_any_item_is_loaded_the_diagnosis_is_too_early():
    with DataLoader2(IterableWrapper(range(3))) as dl:
        assert dl.diagnose().kind == "too early"
        list(dl)
        assert str(dl.diagnose()) == "It is too early for a diagnosis: 3 items were loaded, 10 are needed."


def test_the_diagnosis_of_slow_loading_gives_numbers_and_a_remedy():
    took = []
    verdict = measured(IterableWrapper(range(100)).sharding_filter().map(decode), step=0.004, took=took)
    items, steps = (fmean(column) for column in zip(*took, strict=True))
    assert (verdict.kind, verdict.pipe) == ("loading", "Mapper(decode)")
    assert verdict.location.endswith(code_location(decode))
    text = str(verdict)
    assert re.match(r"Loading limits you: main waits \d+ % of the time, most of it for worker process [01];", text), (
        text
    )
    found = re.search(
        rf"worker process [01] spends (\d+) % of its work in `Mapper\(decode\)` \((.*)\), {TIME} per item", text
    )
    assert found, text
    assert int(found[1]) > 90
    assert seconds(found[3]) == pytest.approx(items, rel=0.25)
    advice = re.search(rf"With (\d+) workers, or if decode took {TIME}, the training step \({TIME}\)", text)
    assert advice, text
    assert seconds(advice[3]) == pytest.approx(steps, rel=0.25)
    assert math.ceil(0.75 * items / steps) <= int(advice[1]) <= math.ceil(1.5 * items / steps)
    assert seconds(advice[2]) == pytest.approx(2 * seconds(advice[3]), rel=0.3)


def test_loading_limits_without_workers():
    took = []
    verdict = measured(IterableWrapper(range(40)).map(decode), workers=0, step=0.006, took=took)
    items, steps = (fmean(column) for column in zip(*took, strict=True))
    assert (verdict.kind, verdict.pipe, verdict.process) == ("loading", "Mapper(decode)", "main")
    share = re.search(r"it takes (\d+) % of the time, in this process; main spends \d+ % of its work in", str(verdict))
    assert share, verdict
    assert int(share[1]) == pytest.approx(100 * items / (items + steps), abs=10)
    advice = re.search(
        rf"With MultiProcessingReadingService\((\d+)\) the training step \({TIME}\) would be the limit", str(verdict)
    )
    assert advice, verdict
    assert math.ceil(0.75 * items / steps) <= int(advice[1]) <= math.ceil(1.5 * items / steps)


def test_a_diagnosis_without_times_of_pipes_explains_how_to_measure_them():
    verdict = measured(IterableWrapper(range(90)).sharding_filter().map(decode), level="counts")
    assert (verdict.kind, verdict.pipe) == ("loading", None)
    assert "TORCHDATA_STATS=full" in str(verdict)


@pytest.mark.parametrize("level", ["counts", "full"])
def test_the_duration_of_short_epochs_is_known(level):
    for _ in range(100):  # Each attempt times only some calls, which are chosen at random.
        with DataLoader2(IterableWrapper(range(10)).map(abs), stats=level) as dl:
            list(dl)
            stats = dl.stats()
        assert 0 < stats.loading <= 1
        assert stats.step_seconds is not None


def odd_is_slow(x):
    time.sleep(0.012 if x % 2 else 0.002)
    return x


def counted(pipe):
    with loader(pipe) as dl:
        list(dl)
        return dl.stats()


def replaced(stats, whole, **each):
    processes = [replace(one, **each) if one.role == "worker" else one for one in stats.processes]
    return replace(stats, processes=tuple(processes), **whole)


def test_one_slow_worker_is_found_although_the_main_process_waits_for_others_too():
    stats = counted(IterableWrapper(range(60)).sharding_filter().map(odd_is_slow))
    for room, kind in ((0.6, "slow worker"), (0.1, "loading")):
        worker = {0: {"busy_seconds": 0.1, "room": room}, 1: {"busy_seconds": 1.0, "room": 0.1}}
        processes = [replace(one, items=30, seconds=1.0, **worker.get(one.worker, {})) for one in stats.processes]
        waited_for = {"worker process 0": 0.5, "worker process 1": 0.5}
        seen = replace(stats, processes=tuple(processes), waiting_seconds=1.0, waited_for=waited_for, loading=0.9)
        assert diagnose(seen).kind == kind


def test_a_dispatching_process_that_does_not_keep_up():
    pipe = IterableWrapper(range(50)).map(decode).sharding_round_robin_dispatch().map(abs)
    verdict = measured(pipe)
    assert (verdict.kind, verdict.process) == ("dispatching", "the dispatching process")
    assert (verdict.pipe, verdict.location.endswith(code_location(decode))) == ("Mapper(decode)", True)
    assert "Move work after" in str(verdict)


def test_waits_for_a_core_because_of_another_program_do_not_count_as_too_many_workers():
    """A worker that mostly sleeps may wait for a core when it wakes up, which is not a sign of too many workers."""
    stats = counted(IterableWrapper(range(30)).sharding_filter().map(decode))
    for ran, fight in ((0.05, False), (0.4, True)):
        seen = replaced(stats, {"cores": 1}, cpu_seconds=ran / 2, waits_for_cpu_seconds=1.0, running_seconds=1.0)
        assert (oversubscribed(seen) is not None) == fight
    # Workers also work before their first item, so `cpu_seconds` may exceed `seconds`, the time since the first item.
    each = {"cpu_seconds": 90.0, "waits_for_cpu_seconds": 94.0, "running_seconds": 190.0}
    verdict = oversubscribed(replaced(stats, {"cores": 1, "seconds": 1.0}, **each))
    assert verdict is not None
    assert "2 threads of 2 processes share 1 cores" in str(verdict)
    assert "use 1 to 1 workers" in str(verdict)


def opened(x):
    if x == 0:
        time.sleep(1.0)
    return x


@pytest.mark.parametrize("workers", [0, 2])
def test_a_slow_first_item(workers):
    verdict = measured(IterableWrapper(range(40)).map(opened).sharding_filter(), workers)
    assert verdict.kind == "first item"
    found = re.match(rf"The first item limits you: it takes {TIME}, (\d+) % of the time; all later items", str(verdict))
    assert found, verdict
    assert 0.5 <= seconds(found[1]) < 30, "main may wait a little less than its worker sleeps"
    assert int(found[2]) >= 50


def slept(x):
    time.sleep(0.004)
    return x


def none(x):
    return False


@pytest.mark.parametrize("level", ["counts", "full"])
def test_work_before_the_filter_is_done_by_each_worker(level):
    pipe = IterableWrapper(range(80)).shuffle().map(slept).sharding_filter()
    verdict = measured(pipe, level=level)
    assert (verdict.kind, verdict.pipe) == ("work before sharding", "Mapper(slept)")
    assert verdict.location.endswith(code_location(slept))
    assert "Each of 2 workers runs `Mapper(slept)`" in str(verdict)
    assert "for all 80 items, but keeps only 40" in str(verdict)
    assert str(verdict).endswith("move `.sharding_filter()` before .map(slept).")
    pipe = IterableWrapper(range(80)).shuffle().map(abs).sharding_filter().map(slept)
    assert measured(pipe, level=level).kind == "loading"


def test_items_that_take_longer_to_send_than_to_make_limit_by_sending_even_if_workers_wait_for_a_core():
    stats = counted(IterableWrapper(range(2000)).shuffle().sharding_filter())
    for busy, kind in ((0.1, "sending"), (0.9, "loading")):
        made = {"busy": busy, "busy_seconds": busy, "input": 0.0, "room": 1 - busy, "waits_for_cpu_seconds": 0.0}
        whole = {"seconds": 1.0, "waiting": 0.9, "loading": 0.9, "held_up": 1 - busy, "first_item_seconds": 0.0}
        verdict = diagnose(replaced(stats, whole, **made))
        assert verdict.kind == kind, verdict
        assert ("Use num_workers=0" in str(verdict)) == (kind == "sending")
    for in_line, kind in ((0.899, "sending"), (0.5, "loading")):
        made = {"busy": 0.9, "busy_seconds": 0.9, "input": 0.0, "room": 0.1, "waits_for_cpu_seconds": in_line}
        whole = {"seconds": 1.0, "waiting": 0.3, "loading": 0.9, "held_up": 0.1, "first_item_seconds": 0.0}
        assert diagnose(replaced(stats, whole, cpu_seconds=10.0, **made)).kind == kind
    made = {"busy": 0.9, "busy_seconds": 0.9, "input": 0.0, "room": 0.1, "waits_for_cpu_seconds": 0.0}
    for own, kind in ((1e-4, "sending"), (1e-2, "loading")):  # time that belongs to no pipe is attributed to sending
        timed = tuple(replace(pipe, own_seconds=own, waits=False) for pipe in stats.workers[0].pipes)
        assert diagnose(replaced(stats, whole, pipes=timed, **made)).kind == kind
    assert diagnose(replaced(stats, whole, **made)).kind == "loading", "without times of pipes, the worker may be slow"


class Reading(IterDataPipe):
    def __iter__(self):
        return map(slept, range(60))


def test_a_slow_source_is_read_by_each_worker():
    verdict = measured(Reading().map(abs).sharding_filter())
    assert (verdict.kind, verdict.pipe) == ("slow source", "Reading")
    assert "each of 2 workers reads all 60 items of `Reading`" in str(verdict)
    assert "to divide its input" in str(verdict)


def test_without_times_no_function_is_blamed_if_a_pipe_may_take_the_time():
    assert measured(Reading().map(abs).sharding_filter(), level="counts").pipe is None
    pipe = IterableWrapper([__file__] * 20).map(str).sharding_filter().open_files("rb").readlines()
    with loader(pipe) as dl:
        list(dl)
        assert work_before_sharding(dl.stats()) is None, "reading files may take the time"


@pytest.mark.parametrize("many", [1, 5])
def test_blocks_that_are_too_large_leave_workers_without_items(many):
    pipe = IterableWrapper(range(6)).sharding_filter().map(slept).map(lambda x: [x] * many).unbatch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Another test checks the warning about the idle worker.
        with DataLoader2(pipe, ShardingPolicy(block=8), num_workers=2) as dl:
            list(dl)
            verdict = dl.diagnose()
    assert (verdict.kind, verdict.process) == ("idle workers", "worker process 1")
    assert "1 of 2 workers received no items: `ShardingFilter` divides 6 items" in str(verdict)
    assert "ShardingPolicy(block=1)" in str(verdict)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_empty_pipeline_names_its_source_or_the_pipe_that_passes_nothing_on(workers):
    def verdict_of(pipe):
        with DataLoader2(pipe, num_workers=workers) as dl:
            assert dl.diagnose().kind == "too early"
            assert list(dl) == []
            return dl.diagnose()

    verdict = verdict_of(IterableWrapper([]).map(slept).sharding_filter())
    assert (verdict.kind, verdict.pipe) == ("empty", "IterableWrapper")
    assert str(verdict).endswith("without any item; its source, `IterableWrapper`, yielded nothing.")
    verdict = verdict_of(IterableWrapper(range(9)).filter(none).sharding_filter())
    assert (verdict.kind, verdict.pipe) == ("empty", "Filter(none)")
    assert str(verdict).endswith("received 9 items and yielded none.")


@pytest.mark.parametrize(("kind", "is_copied"), [("list", True), ("pyarrow.array", False)])
def test_a_forked_worker_that_copies_inherited_objects_is_reported(kind, is_copied):
    program = f"""if True:
        import pyarrow
        from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
        from torchdata.datapipes.iter import IterableWrapper
        texts = {kind}([f"{{i:08d}}" * 12 for i in range(300_000)])
        pipe = IterableWrapper(range(20)).sharding_filter().map(lambda n: sum(len(str(t)) for t in texts[n::20]))
        service = MultiProcessingReadingService(2, multiprocessing_context="fork")
        with DataLoader2(pipe, reading_service=service, stats="full") as loader:
            print(sum(loader), loader.diagnose())"""
    done = run_python("-c", program)
    assert done.stdout.startswith("28800000 "), done.stderr
    assert ("A worker has copied" in done.stdout) is is_copied
