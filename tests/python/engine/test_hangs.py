"""With `on_timeout="restart"`, a hanging process is reported with its stack and replaced, and no item is lost."""

import itertools
import os
import re
import signal
import time
import warnings

import pytest

from hanging import WAYS, HangingAt, kill_only_hung
from process_checks import MULTIPROCESSING, ExitsAt, nothing_is_left  # noqa: F401 - a fixture
from torchdata._engine.workers.restart import Restarts
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.error import WorkerExitedError
from torchdata.datapipes.iter import IterableWrapper
from waiting import compute

pytestmark = [pytest.mark.alone, pytest.mark.filterwarnings("ignore:.*was therefore killed:RuntimeWarning")]

SOON = 0.3


def hanging(function, dispatched="", items=40, **options):
    pipe = IterableWrapper(range(items))
    pipe = pipe.map(function) if dispatched == "before" else pipe
    pipe = pipe.sharding_round_robin_dispatch(MULTIPROCESSING) if dispatched else pipe.sharding_filter()
    pipe = pipe if dispatched == "before" else pipe.map(function)
    options = {"timeout": SOON, "on_timeout": "restart", "multiprocessing_context": "fork", **options}
    return DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, **options))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    kill_only_hung(monkeypatch, tmp_path)
    return tmp_path


#: Workers start slowly with spawn and forkserver, so only some kinds of hangs are tested with these start methods.
CASES = [("loop", "fork", ""), *zip(WAYS, itertools.repeat("fork"), itertools.cycle(("", "before", "behind")))]
CASES += [
    ("stop", "spawn", ""),
    ("sleep", "spawn", "before"),
    ("loop", "forkserver", ""),
    ("fifo", "forkserver", "before"),
]


@pytest.mark.parametrize(("way", "method", "dispatched"), CASES)
def test_a_hanging_process_is_reported_and_nothing_is_lost_even_after_a_load(folder, way, method, dispatched):
    options = {"multiprocessing_context": method}
    (folder / "resumed").mkdir()
    with (
        hanging(HangingAt(way, 13, folder), dispatched, **options) as loader,
        hanging(HangingAt(way, 13, folder / "resumed"), dispatched, **options) as other,
        warnings.catch_warnings(record=True) as shown,
    ):
        warnings.simplefilter("always")
        iterator = iter(loader)
        head = [next(iterator) for _ in range(5)]
        state = loader.state_dict()
        assert head + list(iterator) == list(range(40))
        assert list(loader) == list(range(40))
        reports = ["\n".join(str(one.message) for one in shown)]
        shown.clear()
        other.load_state_dict(state)
        assert list(other) == list(range(5, 40))
        reports.append("\n".join(str(one.message) for one in shown))
    for words in reports:
        assert "yielded nothing for" in words
        assert "Mapper(HangingAt)" in words
        assert "in __call__" in words, "the stack"
        assert ("the dispatching process" if dispatched == "before" else "worker process 1") in words


@pytest.mark.parametrize("dispatched", ["", "before"])
def test_an_item_at_which_each_process_hangs_is_named_after_three_tries(folder, dispatched, monkeypatch):
    waited, judge = [], Restarts._how_it_exited

    def noted(self, process):
        waited.append(self.hangs.of(process).how)
        return judge(self, process)

    monkeypatch.setattr(Restarts, "_how_it_exited", noted)
    with hanging(HangingAt("sleep", 13, folder, 9), dispatched) as loader:
        got = []
        with pytest.raises(WorkerExitedError, match=r"in attempt 3 to compute it.*leave the item out") as caught:
            for item in loader:
                got.append(item)
    assert got == list(range(len(got)))
    assert caught.value.item == (13 if dispatched else 6)
    assert caught.value.worker == (None if dispatched else 1)
    assert "Mapper(HangingAt)" in str(caught.value)
    assert "in sleep" in str(caught.value), "the stack"
    if not dispatched:
        times = (re.search(r"for ([\d.]+) (m?s)", how).groups() for how in waited)
        seconds = [float(number) * (1 if unit == "s" else 0.001) for number, unit in times]
        assert all(least <= spent for least, spent in zip((0.3, 0.6, 1.2), seconds, strict=True))


def test_a_filter_that_passes_nothing_on_is_slow_and_does_not_hang():
    def slow(item):
        time.sleep(SOON / 20)
        return item

    pipe = IterableWrapper(range(60)).sharding_filter().map(slow).filter(lambda item: item > 56)
    service = MultiProcessingReadingService(1, timeout=SOON, on_timeout="restart", multiprocessing_context="fork")
    with DataLoader2(pipe, reading_service=service) as loader:
        assert list(loader) == [57, 58, 59]


@pytest.mark.parametrize("way", ["loop", "lock", "stop"])
def test_a_working_process_has_the_patience_and_any_other_process_the_timeout(folder, way):
    patience = 4 * SOON if way == "loop" else 1e6
    with hanging(HangingAt(way, 13, folder), patience=patience) as loader, pytest.warns(RuntimeWarning) as shown:
        assert list(loader) == list(range(40))
    words = "\n".join(str(one.message) for one in shown)
    if way == "loop":
        (seconds,) = re.findall(r"worked, but yielded nothing for ([\d.]+) s,.*therefore killed \(`patience`\)", words)
        assert float(seconds) >= patience
        assert "raise `patience` if the process was slow" in words
    else:
        assert re.search(r"process 1 .* yielded nothing for.*was therefore killed \(`timeout`\)", words)
        assert "(`patience`)" not in words


@pytest.mark.parametrize(("dispatched", "in_order"), [("", True), ("before", False)])
def test_an_item_that_computes_long_does_not_hang_within_the_patience(dispatched, in_order):
    def slow(item):
        compute(3 * SOON if item == 13 else 0)
        return item

    with hanging(slow, dispatched, patience=1e6, in_order=in_order) as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sorted(loader) == list(range(40))
        assert loader.stats().restarts == 0


def test_a_process_that_worked_and_now_sleeps_has_the_timeout(folder):
    class Tires(HangingAt):
        def __call__(self, item):
            compute(2 * SOON if item == self.at else 0)
            return super().__call__(item)

    with hanging(Tires("sleep", 13, folder), patience=1e6) as loader, pytest.warns(RuntimeWarning, match="`timeout`"):
        assert list(loader) == list(range(40))


def test_out_of_order_every_item_is_yielded_once(folder):
    with hanging(HangingAt("sleep", 13, folder), in_order=False) as loader:
        assert sorted(loader) == list(range(40))
        assert loader.stats().restarts > 0


def test_an_exit_of_another_kind_stays_an_error():
    with hanging(ExitsAt(13)) as loader, pytest.raises(WorkerExitedError, match="exited with code 7"):
        list(loader)


@pytest.mark.parametrize("patience", [None, 1e6])
def test_a_process_that_is_stopped_during_a_pause_is_replaced(patience):
    with hanging(abs, on_worker_exit="restart", patience=patience) as loader:
        iterator = iter(loader)
        got = [next(iterator) for _ in range(4)]
        loader.reading_service._pause()
        os.kill(loader.reading_service._children.pids[1], signal.SIGSTOP)
        loader.reading_service._resume()
        assert got + list(iterator) == list(range(40))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_timeout": "again"}, "on_timeout must be 'error' or 'restart', but got 'again'"),
        ({"on_timeout": "restart"}, "on_timeout='restart' needs a timeout"),
        ({"timeout": 1, "patience": 2}, "patience needs on_timeout='restart'"),
        ({"timeout": 3, "on_timeout": "restart", "patience": 2}, "patience must be .* at least timeout=3, but got 2"),
        ({"timeout": 3, "on_timeout": "restart", "patience": "5"}, "patience must be .* but got '5'"),
    ],
)
def test_contradictory_arguments_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        MultiProcessingReadingService(2, **options)
