"""A process that exits in the middle of an epoch is replaced, and all items arrive in order."""

import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from functools import partial

import pytest

from leftovers import children, descendants
from one_rank import Alone
from process_checks import has_exited, nothing_is_left, wait_for  # noqa: F401 - a fixture
from remote_pipelines import failing
from restarted import pids_of, pipeline, restarting, shared_out, undisturbed
from resuming import begun
from torchdata._engine.workers.restart import Restarts
from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from torchdata.dataloader2.error import WorkerExitedError
from torchdata.datapipes.iter import IterableWrapper

pytestmark = [pytest.mark.alone, pytest.mark.filterwarnings("ignore:.*A new process replaced it")]


def read(loader, numbers, victim):
    got = []
    for number, item in enumerate(loader):
        got.append(item)
        if number in numbers:
            os.kill(loader.worker_pids()[victim(number)], signal.SIGKILL)
    return got


def test_out_of_order_each_worker_yields_its_items_in_order_even_if_workers_are_killed():
    def by_worker(items):
        return {worker: [item for of, item in items if of == worker] for worker, _ in items}

    init = lambda pipe, info: pipe.map(lambda item: (info.worker_id, item))  # noqa: E731
    options = {"in_order": False, "worker_init_fn": init}
    with restarting(pipeline(300), **options) as loader:
        got = read(loader, (9, 40, 69, 94), lambda number: (number + 1) % 2)
    assert by_worker(got) == by_worker(undisturbed(pipeline(300), **options)[0])


def poisoned(folder, item):
    if item == 21:
        (folder / f"{os.getpid()}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_an_item_that_kills_its_process_each_time_is_named_after_three_tries(tmp_path):
    words = r"worker process 1 .*its item number 10 .*in attempt 3"
    with restarting(shared_out(40).map(partial(poisoned, tmp_path))) as loader:
        got = []
        with pytest.raises(WorkerExitedError, match=words) as caught:
            got.extend(loader)
    assert got == list(range(21))
    assert (caught.value.item, caught.value.worker, caught.value.exitcode) == (10, 1, -signal.SIGKILL)
    assert len(os.listdir(tmp_path)) == 3
    assert pickle.loads(pickle.dumps(caught.value)).item == 10


def test_a_poisoned_item_of_the_dispatching_process_is_named_too(tmp_path):
    pipe = IterableWrapper(range(40)).map(partial(poisoned, tmp_path)).sharding_round_robin_dispatch()
    with restarting(pipe) as loader:
        got = []
        with pytest.raises(WorkerExitedError, match="the dispatching process .*the item number 21") as caught:
            got.extend(loader)
    assert got == list(range(len(got)))
    assert (caught.value.item, caught.value.worker, caught.value.stage) == (21, None, "dispatching items")


def test_worker_exits_with_progress_in_between_do_not_end_the_loader():
    with restarting(shared_out(200), worker_prefetch_cnt=1, main_prefetch_cnt=1) as loader:
        assert read(loader, range(10, 200, 20), lambda _: 0) == list(range(200))
        assert loader.stats().restarts > 5


def test_each_worker_exit_is_reported_once_and_counted():
    with restarting(pipeline(600)) as loader, warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        read(loader, (50, 150), lambda _: 1)
        stats = loader.stats()
    texts = [str(one.message) for one in shown if "A new process replaced it" in str(one.message)]
    assert len(texts) == 2
    for text in texts:
        assert re.search(r"worker process 1 \(pid .* was killed by SIGKILL at its item number", text)
    assert stats.restarts == 2
    assert [process.restarts for process in stats.processes if process.role == "worker"] == [0, 2]
    assert sum(process.items for process in stats.processes if process.role == "worker") == 300


def test_a_worker_that_exits_after_its_last_item_causes_no_error_and_is_replaced_in_the_next_epoch():
    with restarting(shared_out(11), worker_prefetch_cnt=20) as loader:
        iterator = iter(loader)
        got = [next(iterator) for _ in range(10)]
        pid = pids_of(loader)[1]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: has_exited(pid))
        assert got + list(iterator) == list(range(11))
        assert list(loader) == list(range(11))
        assert loader.stats().restarts == 1


@pytest.mark.parametrize("dispatched", [False, True])
def test_workers_may_exit_before_the_first_item_and_between_epochs_and_all_at_once(dispatched):
    expected = undisturbed(pipeline(60, dispatched), 3)
    with restarting(pipeline(60, dispatched)) as loader:
        for epoch in range(3):
            iterator = iter(loader)
            for pid in pids_of(loader):
                os.kill(pid, signal.SIGKILL)
            assert list(iterator) == expected[epoch]
            for pid in pids_of(loader)[: 1 + epoch]:
                os.kill(pid, signal.SIGKILL)


def test_a_worker_that_is_stopped_for_a_moment_is_not_replaced():
    with restarting(pipeline(400)) as loader:
        iterator = iter(loader)
        got = [next(iterator) for _ in range(5)]
        pid = pids_of(loader)[0]
        os.kill(pid, signal.SIGSTOP)
        resumer = subprocess.Popen(["sh", "-c", f"sleep 0.4; kill -CONT {pid}"])
        got += list(iterator)
        resumer.wait()
        assert got == undisturbed(pipeline(400))[0]
        assert loader.stats().restarts == 0
        assert pids_of(loader)[0] == pid


def test_an_exception_is_not_a_worker_exit():
    with restarting(shared_out(20).map(failing)) as loader:
        with pytest.raises(LookupError, match="nothing at 7"):
            list(loader)
        assert loader.stats().restarts == 0


def double(item):
    return 2 * item


@pytest.mark.parametrize("dispatched", [False, True])
def test_an_exit_after_a_function_was_applied_to_the_graphs_raises_an_error_that_names_the_function(dispatched):
    with restarting(shared_out(40, dispatched).map(int)) as loader:
        assert list(loader) == list(range(40))
        loader.reading_service._children.call(_doubles)
        assert list(loader) == [2 * item for item in range(40)]
        os.kill(pids_of(loader)[0], signal.SIGKILL)
        with pytest.raises(WorkerExitedError, match="applied a function to the graphs .* `worker_reset_fn`"):
            list(loader)


def _doubles(pipe):
    if hasattr(pipe, "fn"):
        pipe.fn = double


def test_states_saved_after_workers_were_replaced_equal_states_of_an_undisturbed_run(often):
    expected = undisturbed(pipeline(100, True), 2)
    with restarting(pipeline(100, True)) as loader:
        iterator = iter(loader)
        got = [next(iterator) for _ in range(9)]
        for number in (0, 2):
            os.kill(pids_of(loader)[number], signal.SIGKILL)
            got += [next(iterator) for _ in range(15)]
        states = [pickle.loads(pickle.dumps(loader.state_dict(items_ago=ago))) for ago in (0, 4)]
    for ago, state in zip((0, 4), states, strict=True):
        with DataLoader2.from_state(state, MultiProcessingReadingService(2, on_worker_exit="restart")) as other:
            iterator = iter(other)
            rest = [next(iterator)]
            os.kill(pids_of(other)[1], signal.SIGKILL)
            rest += list(iterator)
            assert got[: len(got) - ago] + rest == expected[0]
            assert list(other) == expected[1]


def test_a_rank_replaces_its_own_workers():
    def service(how):
        workers = MultiProcessingReadingService(2, on_worker_exit=how)
        return SequentialReadingService(DistributedReadingService(process_group=Alone()), workers)

    def items(how, *numbers):
        random.seed(4)
        with begun(DataLoader2(pipeline(300), reading_service=service(how))) as loader:
            return read(loader, numbers, lambda _: 0)

    assert items("restart", 30, 90) == items("error")


def test_ctrl_c_while_a_worker_is_replaced_loses_no_item(monkeypatch):
    replace = Restarts._replace

    def interrupted(self, *arguments):
        made = replace(self, *arguments)
        signal.raise_signal(signal.SIGINT)
        return made

    monkeypatch.setattr(Restarts, "_replace", interrupted)
    with restarting(pipeline(200)) as loader:
        iterator, got, pressed = iter(loader), [], 0
        os.kill(pids_of(loader)[0], signal.SIGKILL)
        while True:
            try:
                got.append(next(iterator))
            except KeyboardInterrupt:
                pressed += 1
            except StopIteration:
                break
        assert pressed == 1
        assert got == undisturbed(pipeline(200))[0]


def test_a_loader_can_be_shut_down_whenever_a_process_exits():
    rng = random.Random(3)
    for number in range(4):
        loader = restarting(pipeline(200, number % 2 == 1))
        iterator = iter(loader)
        next(iterator)
        before = pids_of(loader)
        for pid in rng.sample(before, 2):
            os.kill(pid, signal.SIGKILL)
        for _ in range(rng.randrange(4)):
            next(iterator)
        started = time.monotonic()
        loader.shutdown()
        assert time.monotonic() - started < 30
        assert all(map(has_exited, before))


MAIN = """
import os, random, signal, warnings
from restarted import pids_of, pipeline, restarting
warnings.simplefilter("ignore")
loader = restarting(pipeline(100000, {dispatched}))
for number, item in enumerate(loader):
    if number % 10 == 0:
        print(*pids_of(loader), flush=True)
        os.kill(random.choice(pids_of(loader)), signal.SIGKILL)
"""


@pytest.mark.parametrize("dispatched", [False, True])
def test_nothing_outlives_a_main_process_that_is_killed_while_workers_are_replaced(dispatched):
    program = MAIN.format(dispatched=dispatched)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment, text=True, bufsize=1
    ) as process:
        for _ in range(3):
            assert process.stdout.readline()
        time.sleep(random.Random(dispatched).uniform(0, 0.1))
        process.send_signal(signal.SIGSTOP)
        left = descendants(process.pid)
        process.kill()
    wait_for(lambda: all(map(has_exited, left)))


def test_on_worker_exit_is_copied_with_a_service_and_shown_by_a_loader():
    service = MultiProcessingReadingService(2, on_worker_exit="restart")
    assert pickle.loads(pickle.dumps(service)).on_worker_exit == "restart"
    assert "on_worker_exit='restart'" in repr(DataLoader2(IterableWrapper([1]), reading_service=service))


def test_without_restarts_no_fork_server_is_kept():
    with restarting(pipeline(20), how="error") as loader:
        next(iter(loader))
        assert set(children()) == set(pids_of(loader))
    with restarting(pipeline(20)) as loader:
        next(iter(loader))
        assert len(set(children()) - set(pids_of(loader))) == 1
