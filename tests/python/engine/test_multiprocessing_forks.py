"""If user code forks a process in the main process or in a worker, the forking process is not affected."""

import atexit
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from families import FAMILIES
from leftovers import children
from process_checks import MULTIPROCESSING, loader, nothing_is_left, wait_for  # noqa: F401
from programs import output_of
from torchdata.datapipes.iter import IterableWrapper

COUNT = 24
#: How a forked process leaves the user's function, and the resulting exit code of the process.
WAYS = {
    "returns": 0,
    "raises": 1,
    "sys.exit": 3,
    "sys.exit in words": 1,
    "os._exit": 4,
    "is killed": -signal.SIGKILL,
    "executes": 6,
    "returns late": None,
    "raises late": None,
}


class Forks:
    def __init__(self, way):
        self.way = way

    def __call__(self, x):
        if x % 3:
            return x, None
        pid = os.fork()
        if pid == 0:
            return self.leave()
        if WAYS[self.way] is None:
            return x, None
        return x, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def leave(self):
        if self.way.endswith("late"):  # The forked child leaves the function only after the worker has continued.
            time.sleep(0.05)
        if self.way.startswith("returns"):
            return "of another process"
        if self.way.startswith("raises"):
            raise ValueError("of another process")
        if self.way == "sys.exit":
            sys.exit(3)
        if self.way == "sys.exit in words":
            sys.exit("words")
        if self.way == "os._exit":
            os._exit(4)
        if self.way == "executes":
            os.execv("/bin/sh", ["sh", "-c", "exit 6"])
        os.kill(os.getpid(), signal.SIGKILL)
        return None


def expected(way):
    return [(x, None if x % 3 else WAYS[way]) for x in range(COUNT)]


# `test_random_forks_in_all_families_change_nothing` tests the remaining combinations.
@pytest.mark.parametrize(
    ("family", "way"),
    [*(("DataLoader2", way) for way in WAYS), *itertools.product(list(FAMILIES)[1:], ["returns", "raises late"])],
)
def test_a_process_that_is_forked_in_a_worker_exits_silently(family, way):
    with FAMILIES[family]("fork", Forks(way), COUNT) as items:
        assert list(items) == expected(way)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_main_process_is_recognized_under_other_start_methods(method):
    with FAMILIES["DataLoader2"](method, Forks("returns"), COUNT) as items:
        assert list(items) == expected("returns")


@pytest.mark.parametrize("where", ["the dispatching process", "a thread of a worker"])
def test_so_does_a_process_that_is_forked_elsewhere(where):
    pipe = IterableWrapper(range(COUNT))
    if where == "a thread of a worker":
        pipe = pipe.sharding_filter().threadpool_map(Forks("returns"))
    else:
        pipe = pipe.map(Forks("returns")).sharding_round_robin_dispatch(MULTIPROCESSING).map(tuple)
    with loader(pipe) as dl:
        assert list(dl) == expected("returns")


def forks_in_hook(*arguments):
    if os.fork() == 0:
        return None
    os.wait()
    return arguments[0]


def test_a_fork_in_a_hook_of_a_worker_does_no_harm():
    with loader(IterableWrapper(range(9)).sharding_filter(), worker_init_fn=forks_in_hook) as dl:
        assert list(dl) == list(range(9))


def test_a_fork_in_a_hook_or_a_state_of_a_stateful_worker_does_no_harm():
    pytest.importorskip("torch", reason="StatefulDataLoader needs PyTorch")
    from torchdata.stateful_dataloader import StatefulDataLoader

    dataset = Counts()
    items = StatefulDataLoader(dataset, batch_size=None, num_workers=1, worker_init_fn=forks_in_hook)
    iterator = iter(items)
    assert [next(iterator) for _ in range(4)] == list(range(4))
    again = StatefulDataLoader(Counts(), batch_size=None, num_workers=1)
    again.load_state_dict(items.state_dict())
    assert list(again) == list(range(4, 9))
    del iterator


class Counts:
    def __init__(self):
        self.at = 0

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return index

    def state_dict(self):
        forks_in_hook(1)
        return {}

    def load_state_dict(self, state):
        pass


def test_exceptions_of_a_forked_child_are_printed_and_its_output_is_not_lost(capfd):
    with FAMILIES["DataLoader2"]("fork", Forks("raises"), 1) as items:
        list(items)
    printed = capfd.readouterr().err
    assert "ValueError: of another process" in printed
    assert "in leave" in printed


def starts_programs(x):
    with subprocess.Popen([sys.executable, "-c", f"print({x})"], stdout=-1, preexec_fn=os.getpid) as program:
        text = program.stdout.read()
    with os.popen(f"echo {x}") as shell:
        return int(text), int(shell.read())


def test_programs_that_a_worker_starts_do_no_harm():
    pytest.importorskip("torch", reason="StatefulDataLoader needs PyTorch")
    with FAMILIES["StatefulDataLoader"]("fork", starts_programs, 4) as items:
        assert list(items) == [(x, x) for x in range(4)]


def forks_by_multiprocessing(x):
    multiprocessing.current_process()._config["daemon"] = False
    process = multiprocessing.get_context("fork").Process(target=sys.exit, args=(x,))
    process.start()
    process.join()
    return process.exitcode


def test_processes_of_multiprocessing_in_a_worker_do_no_harm():
    with FAMILIES["DataLoader2"]("fork", forks_by_multiprocessing, 6) as items:
        assert list(items) == list(range(6))


def ended_in_order(how):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            try:
                how()
            except SystemExit as error:
                code = error.code
            atexit._run_exitfuncs()  # like the interpreter's exit, including multiprocessing's handlers
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(("method", "families"), [("fork", FAMILIES), ("forkserver", ["DataLoader2"])])
def test_a_child_of_the_main_process_that_exits_normally_neither_ends_workers_nor_waits_for_them(method, families):
    opened = {name: FAMILIES[name](method, count=60) for name in families}
    items = {name: one.__enter__() for name, one in opened.items()}
    got = {name: [next(iterator) for _ in range(3)] for name, iterator in items.items()}
    started = set(children())
    assert ended_in_order(lambda: sys.exit(7)) == 7
    assert set(children()) == started
    for name, iterator in items.items():
        assert got[name] + list(iterator) == list(range(60)), name
        opened[name].__exit__()


def test_a_child_of_the_main_process_keeps_its_own_children_in_multiprocessing_s_list():
    with loader(IterableWrapper(range(20)).sharding_filter()) as dl:
        next(iter(dl))
        own = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,), daemon=True)
        own.start()
        pid = os.fork()
        if pid == 0:
            os._exit(len(multiprocessing.process._children))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        assert multiprocessing.active_children() == [own]
        own.kill()
        own.join()


def test_threads_that_start_loaders_fork_one_after_another():  # filelock 4.3 raises an error if forks overlap
    output = output_of(
        """
        import os, threading, time
        from process_checks import loader
        from torchdata.datapipes.iter import IterableWrapper

        forking, most = [], 0

        def begin():
            global most
            forking.append(1)
            most = max(most, len(forking))
            time.sleep(0.02)

        def load():
            with loader(IterableWrapper(range(20)).sharding_filter()) as dl:
                assert sorted(dl) == list(range(20))

        os.register_at_fork(before=begin, after_in_parent=forking.pop)
        threads = [threading.Thread(target=load) for _ in range(3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print(most)
        """
    )
    assert output == "1\n"


def test_random_forks_in_all_families_change_nothing():
    rng = random.Random(1)
    for family in FAMILIES:
        ways = [rng.choice(list(WAYS)) for _ in range(COUNT)]
        sizes = [rng.choice([0, 10, 10_000, 2_000_000]) for _ in range(COUNT)]

        def function(x, ways=ways, sizes=sizes):
            code = Forks(ways[x])(x)
            return (*code, bytes(sizes[x])) if isinstance(code, tuple) else code

        with FAMILIES[family]("fork", function, COUNT) as items:
            assert list(items) == [(x, None if x % 3 else WAYS[ways[x]], bytes(sizes[x])) for x in range(COUNT)]
