"""A diagnosis recommends at most one worker per core, unless workers wait most of the time."""

import time
from dataclasses import replace

import pytest

from torchdata._observe.stats.diagnosis import diagnose, loading
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

pytestmark = pytest.mark.alone


def computing(seconds):
    """Computes until the thread has used `seconds` of processor time, which other programs do not affect."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return True


def computes(x):
    return computing(0.01) and x


def sleeps(x):
    time.sleep(0.004)
    return x


@pytest.fixture(scope="module")
def counted():
    def of(function):
        pipe = IterableWrapper(range(60)).sharding_filter().map(function)
        service = MultiProcessingReadingService(2, multiprocessing_context="fork")
        with DataLoader2(pipe, reading_service=service, stats="full") as dl:
            list(dl)
            return dl.stats()

    return {"waits": of(sleeps), "computes": of(computes)}


def seen(stats, cores, workers=2, each=0.01, ran=None, startup=0.0, step=0.0004):
    share = {"items": 30, "seconds": 0.3, "busy_seconds": 30 * each, "busy": 1.0, "node": None}
    lived = {"cpu_seconds": startup + (30 * each if ran is None else ran), "running_seconds": 0.3 + startup}
    worker = next(one for one in stats.processes if one.role == "worker")
    pipes = tuple(
        replace(pipe, own_seconds=30 * each, seconds_per_item=each) if "Mapper" in pipe.name else pipe
        for pipe in worker.pipes
    )
    worker = replace(worker, waits_for_cpu_seconds=0.0, pipes=pipes, **share, **lived)
    main = replace(stats.main, cpu_seconds=0.0, busy=0.0)
    names = [f"worker process {number}" for number in range(workers)]
    others = [replace(worker, name=name, pipes=tuple(replace(p, process=name) for p in pipes)) for name in names]
    more = {"waiting": 0.9, "loading": 0.9, "held_up": 0.0, "seconds": 0.3, "waiting_seconds": 0.27}
    return replace(
        stats,
        cores=cores,
        processes=(main, *others),
        waited_for={names[0]: 0.2},
        step_seconds=step,
        first_item_seconds=startup / (stats.epochs + 1),
        **more,
    )


def test_no_more_workers_are_advised_than_keep_the_cores_busy(counted):
    """The training loop needs 25 workers (0.4 ms per step, 10 ms to compute an item), but there are only two cores."""
    words = str(diagnose(seen(counted["computes"], cores=2)))
    assert words.endswith(
        "The 2 cores are busy with 2 workers: more would not be faster. Make computes cheaper, or use more cores."
    )
    words = str(diagnose(seen(counted["computes"], cores=8)))
    assert "Use 8 workers, which keep the 8 cores busy: more would not be faster." in words
    words = str(diagnose(seen(counted["computes"], cores=8, step=0.0015)))
    assert "With 7 workers, or if computes took 3 ms, the training step (1.5 ms) would be the limit." in words
    words = str(diagnose(seen(counted["computes"], cores=2, step=0.0015)))
    assert words.endswith("If computes took 3 ms, the training step (1.5 ms) would be the limit.")
    words = str(diagnose(seen(counted["computes"], cores=1, workers=2)))
    assert "The only core is busy with 2 workers" in words
    stats = seen(counted["computes"], cores=2)
    far = tuple(replace(one, node="far") if one.role == "worker" else one for one in stats.processes)
    words = str(diagnose(replace(stats, processes=far)))
    assert "With 25 workers the training step" in words, "the workers of other machines have other cores"


def test_the_advice_is_more_workers_than_cores_if_the_work_waits(counted):
    words = str(diagnose(seen(counted["waits"], cores=2, ran=0.005)))
    assert words.endswith("With 25 workers the training step (400 µs) would be the limit.")
    half = str(diagnose(seen(counted["waits"], cores=2, ran=0.15)))
    assert "Use 4 workers, which keep the 2 cores busy" in half
    no_step = str(diagnose(seen(counted["waits"], cores=2, ran=0.005, step=1e-6)))
    assert no_step.endswith("Make sleeps cheaper, or use more workers if they do not wait for the same disk or lock.")


def test_computing_during_the_start_does_not_count_as_work(counted):
    words = str(diagnose(seen(counted["waits"], cores=2, ran=0.0, startup=0.6)))
    assert words.endswith(
        "With 25 workers the training step (400 µs) would be the limit if workers mostly wait; if they compute, "
        "2 workers keep the 2 cores busy."
    )


def test_the_diagnosis_detects_whether_real_workers_compute(counted):
    """If starting the workers takes much processor time, the diagnosis may leave open whether workers compute."""
    for kind, stats in counted.items():
        if kind == "waits":  # the waits for a core while the workers start are not part of their items
            stats = replace(stats, processes=tuple(replace(one, waits_for_cpu_seconds=0.0) for one in stats.processes))
        step = sum(one.busy_seconds for one in stats.workers) / stats.items / 50  # on a busy machine, items take longer
        words = str(loading(replace(stats, cores=2, step_seconds=step, loading=0.9, waiting=0.9, held_up=0.0)))
        if kind == "waits":
            assert "are busy with" not in words
        else:
            assert "more would not be faster" in words or "if they compute" in words


def test_no_workers_are_advised_if_they_would_slow_items_down():
    with DataLoader2(IterableWrapper(range(5000)).map(abs)) as seen:
        list(seen)
        stats = replace(seen.stats(), loading=0.5, seconds=5000 * 1e-6, step_seconds=5.1e-7)
    assert diagnose(stats).text.startswith("Loading limits you: it takes 50 % of the time")
    assert diagnose(stats).text.endswith("An item takes 500 ns, so workers would make the loader slower.")
    assert "MultiProcessingReadingService(20)" in diagnose(replace(stats, seconds=5000 * 2e-5)).text
