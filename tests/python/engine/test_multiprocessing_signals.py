"""If a signal reaches all processes of a program, the program's handlers run only in the main process."""

import contextlib
import faulthandler
import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from types import SimpleNamespace

import pytest

from families import FAMILIES, TORCH, Mapped, identity
from handlers import handling
from leftovers import children, has_exited
from process_checks import METHODS, MULTIPROCESSING, loader, nothing_is_left, wait_for  # noqa: F401
from programs import run
from torchdata._engine.processes.interrupts import InterruptsDeferred, _is_in_finaliser
from torchdata._engine.processes.process import wait_for_all
from torchdata._engine.processes.shutdown import Shutdown
from torchdata._engine.remote.worker import RemoteWorker
from torchdata._ranks.opening import _own_addresses
from torchdata.dataloader2 import DataLoader2, SequentialReadingService
from torchdata.dataloader2.error import WorkerExitedError
from torchdata.dataloader2.graph.serialization import why_not
from torchdata.dataloader2.services.length import length_of_epoch
from torchdata.dataloader2.services.program import GraphProgram
from torchdata.datapipes._pipe.retrying import retried
from torchdata.datapipes.iter import HttpReader, IterableWrapper
from torchdata.datapipes.iter.stores.s3_client import explaining_s3
from torchdata.images._pillow import orientation

#: Signals that end a process by default.
HANDLED = [signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM, signal.SIGRTMIN + 3]

SCRIPT = """
import gc, json, os, signal, sys
import families
from families import FAMILIES
COUNT = 200
families.WORKERS = 1
def with_process(x):
    return x, os.getpid()
def say(**what):
    os.write(1, (json.dumps(what) + "\\n").encode())
def handler(number, frame):
    say(handled=number, process=os.getpid())
def last_will(number, frame):
    handler(number, frame)
    sys.exit(5)
def main(method, handled, names):
    for number in handled:
        signal.signal(number, handler)
    say(starting=os.getpid())
    opened = {name: family(method, with_process, COUNT) for name, family in FAMILIES.items() if name in names}
    gc.freeze()  # the interpreter then exits faster
    items = {name: one.__enter__() for name, one in opened.items()}
    got = {name: [next(iterator) for _ in range(8)] for name, iterator in items.items()}
    say(workers=sorted({process for some in got.values() for _, process in some}))
    sys.stdin.readline()
    for name, iterator in items.items():
        got[name] += iterator
        numbers, processes = zip(*got[name])
        say(family=name, whole=numbers == tuple(range(COUNT)), processes=sorted(set(processes)))
    for number in handled:
        signal.signal(number, last_will)
    say(waiting=True)
    sys.stdin.readline()
if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:])
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    started = []

    def start(method, handled, names):
        command = [sys.executable, str(path), method, json.dumps(list(map(int, handled))), *names]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def answer_of(process, what):
    handled = []
    for line in process.stdout:
        shown = json.loads(line)
        if what in shown:
            return shown, handled
        if "handled" in shown:
            handled.append((shown["handled"], shown["process"]))
    raise AssertionError(f"the program has ended with {process.wait()}; it had handled {handled}")


#: Workers start slowly with spawn and forkserver, so only one class of loaders is tested with these start methods.
BY_METHOD = {"fork": list(FAMILIES), "spawn": ["DataLoader2"], "forkserver": ["DataLoader2"]}


@pytest.mark.parametrize("method", METHODS)
def test_only_the_main_process_handles_signals_to_the_group_and_workers_continue_until_it_ends(program, method):
    names = BY_METHOD[method]
    main = program(method, HANDLED, names)
    answer_of(main, "starting")
    started = threading.Event()

    def bombard():  # sends signals while workers start and import modules
        while not started.wait(0.02):
            os.killpg(main.pid, signal.SIGUSR1)

    os.killpg(main.pid, signal.SIGUSR1)
    assert json.loads(main.stdout.readline()) == {"handled": signal.SIGUSR1, "process": main.pid}
    bombing = threading.Thread(target=bombard)
    bombing.start()
    shown, handled = answer_of(main, "workers")
    started.set()
    bombing.join()
    workers = shown["workers"]
    assert len(workers) == len(names)
    assert set(handled) <= {(signal.SIGUSR1, main.pid)}
    for number in HANDLED:
        os.killpg(main.pid, number)
    for worker in workers:  # the default actions would kill the workers
        for number in (signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            os.kill(worker, number)
    main.stdin.write("go on\n")
    main.stdin.flush()
    seen, processes = set(), set()
    for _ in names:
        shown, handled = answer_of(main, "family")
        assert shown["whole"], shown
        seen |= set(handled)
        processes |= set(shown["processes"])
    assert processes == set(workers)
    assert seen == {(number, main.pid) for number in HANDLED}
    answer_of(main, "waiting")
    os.killpg(main.pid, signal.SIGTERM)
    assert json.loads(main.stdout.readline()) == {"handled": signal.SIGTERM, "process": main.pid}
    assert main.wait(120) == 5
    wait_for(lambda: all(map(has_exited, workers)))


def test_main_without_a_handler_ends_by_sigterm_and_its_workers_with_it(program):
    main = program("fork", [], FAMILIES)
    workers = answer_of(main, "workers")[0]["workers"]
    os.killpg(main.pid, signal.SIGTERM)
    assert main.wait(120) == -signal.SIGTERM
    wait_for(lambda: all(map(has_exited, workers)))


def how_it_takes_signals(_):
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    child = os.fork()
    if child == 0:
        os._exit(sum(signal.getsignal(number) == signal.SIG_DFL for number in handlers))
    # If a worker starts another program, signals terminate that program as usual.
    with subprocess.Popen(["sleep", "1000"]) as program:
        program.terminate()
        ended = program.wait(120)
    return (
        {getattr(handler, "__name__", handler) for handler in handlers.values()},
        sorted(blocked),
        os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]),
        ended,
    )


@pytest.mark.parametrize("method", METHODS)
def test_programs_that_a_worker_starts_handle_signals_normally(method):
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN + 4})
    with handling(lambda *_: None, signal.SIGUSR1, signal.SIGCHLD):
        with loader(IterableWrapper([0]).map(how_it_takes_signals), 1, multiprocessing_context=method) as dl:
            assert list(dl) == [({"_ignore_signal", signal.SIG_DFL}, [signal.SIGRTMIN + 4], 3, -signal.SIGTERM)]
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_forked_workers_keep_ignored_signals_and_handlers_of_c_libraries(tmp_path):
    def asks(_):
        os.kill(os.getpid(), signal.SIGUSR2)
        return signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, "in asks" in (tmp_path / "stacks").read_text()

    with handling(signal.SIG_IGN, signal.SIGHUP), open(tmp_path / "stacks", "w") as file:
        faulthandler.register(signal.SIGUSR2, file=file)
        with loader(IterableWrapper([0]).map(asks), 1) as dl:
            assert list(dl) == [(True, True)]
        faulthandler.unregister(signal.SIGUSR2)


def test_a_handler_that_a_worker_sets_itself_runs_there():
    def alarmed(_):
        def ring(*_):
            raise TimeoutError("the worker's own")

        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        time.sleep(60)

    with (
        handling(lambda *_: None, signal.SIGALRM),
        loader(IterableWrapper([0]).map(alarmed), 1) as dl,
        pytest.raises(TimeoutError, match="the worker's own"),
    ):
        list(dl)


class Rang(Exception):
    """The exception that the signal handler raises."""


class Timer:
    NUMBERS = (signal.SIGALRM, signal.SIGUSR1, signal.SIGTERM)

    def __init__(self):
        self.rung, self.where = 0, ""

    def wind(self, seconds):
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def ring(self, number, frame):
        if _is_in_finaliser(frame):  # Python itself loses each exception that is raised here
            self.wind(1e-4)
            return
        if number == signal.SIGALRM and random.random() < 0.5:  # half of the alarms send another signal
            os.kill(os.getpid(), random.choice(self.NUMBERS[1:]))
            return
        self.rung += 1
        self.where = "".join(traceback.format_stack(frame))
        raise Rang

    def await_ring(self):
        with contextlib.suppress(AssertionError):
            wait_for(lambda: self.rung, 100)
        raise AssertionError(f"the handler has raised, and the exception is lost:\n{self.where}")


def is_rang(error):
    while error is not None and not isinstance(error, Rang):
        error = error.__cause__ or error.__context__
    return error is not None


# The filter ignores the KeyError that CPython 3.11 prints if a handler raises during `Thread.start`.
@pytest.mark.filterwarnings("ignore:Exception ignored in thread started by:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("family", FAMILIES)
def test_an_exception_of_a_handler_while_workers_start_is_raised_and_leaves_nothing(family):
    opened = FAMILIES[family]
    for _ in range(2):  # the first loader imports modules
        begun = time.monotonic()
        with opened("fork") as items:
            next(items)
    took = time.monotonic() - begun
    for _ in range(8):
        items, timer = None, Timer()  # frees the last loader's threads, whose weak references would lose an exception
        with handling(timer.ring, *Timer.NUMBERS):
            caught = 0
            try:
                timer.wind(max(1e-6, 1.2 * random.random() * took))
                with opened("fork") as items:
                    next(items)
                    timer.await_ring()
            except Exception as error:
                if not is_rang(error):
                    raise
                caught += 1
            assert (timer.rung, caught) == (1, 1), f"the handler raised {timer.rung} times, {caught} arrived"
        gc.collect()
        wait_for(lambda: not children(), 20)  # A thread may delete the loader later.


class Raises:
    def __init__(self):
        self.numbers = []

    def __call__(self, number, _frame):
        self.numbers.append(number)
        raise ValueError(number)


class Rings:
    def __call__(self, x):
        return x

    def __getstate__(self):
        os.kill(os.getpid(), signal.SIGUSR1)
        return {}


def raises(number, _frame):
    raise ValueError(number)


@pytest.mark.parametrize(
    ("handler", "method", "use"),
    [
        (raises, "fork", DataLoader2.state_dict),
        *((handler, "spawn", iter) for handler in (raises, Raises(), Raises().__call__)),
    ],
    ids=["state", "function", "object", "method"],
)
def test_an_exception_of_a_handler_while_a_pipeline_is_pickled_is_raised(handler, method, use):
    with (
        handling(handler, signal.SIGUSR1),
        loader(IterableWrapper(range(3)).sharding_filter().map(Rings()), multiprocessing_context=method) as dl,
        pytest.raises(ValueError, match=str(int(signal.SIGUSR1))),
    ):
        use(dl)


def rings(*_arguments, **_named):
    if getattr(signal.getsignal(signal.SIGUSR1), "__name__", None) == "raise_once":
        os.kill(os.getpid(), signal.SIGUSR1)


def ends_a_context_after_an_error():
    with DataLoader2(IterableWrapper(range(3))) as dl:
        dl.shutdown = rings
        raise KeyError


def reads_a_batch(function, index):
    from torchdata.stateful_dataloader import StatefulDataLoader

    list(StatefulDataLoader(Mapped(function, 1), sampler=[index], num_workers=1, collate_fn=identity))


def waits_for_a_batch():
    main = os.getpid()
    reads_a_batch(lambda _: os.kill(main, signal.SIGUSR1), 0)


def sends_a_command():
    with loader(IterableWrapper(range(3)).sharding_filter(), multiprocessing_context="fork") as dl:
        list(dl)


def explains_an_error_of_s3():
    with explaining_s3(None, "open", "s3://bucket/key"):
        rings()


class Ringing:
    __len__ = __repr__ = threads_paused = current_frame = finalize = getexif = epoch = set_epoch = rings


FAILING = SimpleNamespace(initialize={}.popitem, finalize={}.popitem)
CALLS = [
    lambda: retried(rings, 1, "opening"),
    explains_an_error_of_s3,
    ends_a_context_after_an_error,
    lambda: GraphProgram.leave(SimpleNamespace(_reading_ahead=[Ringing()], _held=contextlib.ExitStack())),
    lambda: RemoteWorker.current_frame(SimpleNamespace(_actor=Ringing(), about=0), None),
    SequentialReadingService(SimpleNamespace(initialize=rings, finalize=rings), FAILING).finalize,
    lambda: Shutdown.run(SimpleNamespace(_owner_pid=os.getpid(), beforehand=rings)),
    lambda: why_not(FAILING, "copied", rings, KeyError()),
    lambda: why_not(SimpleNamespace(a=Ringing()), "copied", {}.__getitem__, KeyError()),
    lambda: orientation(Ringing()),
    lambda: pytest.importorskip("torchdata.nodes.adapters").IteratingNode.__len__(
        SimpleNamespace(ITERABLE="a", a=Ringing())
    ),
    *((waits_for_a_batch, lambda: reads_a_batch(type, Rings())) if TORCH else ()),
]


@pytest.mark.parametrize(
    ("replaced", "wait"),
    [
        *((None, wait) for wait in CALLS),
        ("dataloader2.services.length._RankEpoch", lambda: length_of_epoch(IterableWrapper([]), None)),
        ("datapipes.iter.threads.synchronizing.FullSync._part", IterableWrapper([]).fullsync().shutdown),
        ("_ranks.opening.socket.getaddrinfo", lambda: _own_addresses(None)),
        ("datapipes.iter.web.online.open_url", lambda: list(HttpReader(["http://host/file"], skip_on_error=True))),
        ("_engine.processes.process.sentinels", lambda: wait_for_all([SimpleNamespace(ended=False)], 1.0)),
        ("_engine.workers.members.Members.send", sends_a_command),
    ],
)
def test_a_time_out_of_a_handler_is_not_taken_for_another_error(replaced, wait, monkeypatch):
    def raise_once(number, frame):
        if calls.append(number) or len(calls) == 1:
            raise type("OfTheProgram", (TimeoutError, RuntimeError), {})("of the program")

    calls = []
    if replaced is not None:
        monkeypatch.setattr(f"torchdata.{replaced}", rings)
    shown = r"^of the program(\n.* while HttpReader .*)?$"
    with handling(raise_once, signal.SIGUSR1), pytest.raises(TimeoutError, match=shown):
        wait()


@pytest.fixture
def raising():
    with handling(Raises(), signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM) as handler:
        yield handler


def test_all_held_signals_are_delivered_in_order_although_the_first_raises(raising):
    with pytest.raises(ValueError, match=str(int(signal.SIGALRM))) as caught, InterruptsDeferred():
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM):
            signal.raise_signal(number)
        assert raising.numbers == []
    assert raising.numbers == [signal.SIGUSR1, signal.SIGTERM, signal.SIGALRM]
    assert caught.value.__context__.args == (signal.SIGTERM,)
    assert signal.getsignal(signal.SIGTERM) is raising


def test_a_handler_that_the_program_puts_back_later_works(raising):
    with InterruptsDeferred():
        found = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, found)
    with pytest.raises(ValueError, match=str(int(signal.SIGTERM))):
        signal.raise_signal(signal.SIGTERM)


def in_a_thread():
    thread = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM))
    thread.start()
    thread.join()
    time.sleep(1000)


WAYS = {
    "raise_signal": lambda: signal.raise_signal(signal.SIGTERM),
    "kill": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "pthread_kill": lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM),
    "another thread": in_a_thread,
}


class RaisesSigterm:
    def __init__(self, at, way):
        self.at, self.way = at, way

    def __call__(self, x):
        if x == self.at:
            WAYS[self.way]()
        return x


@pytest.mark.parametrize(
    ("family", "method", "way"),
    [
        *(("DataLoader2", "fork", way) for way in WAYS),
        *((family, "fork", "kill") for family in list(FAMILIES)[1:]),
        *((family, method, "kill") for method in METHODS[1:] for family in BY_METHOD[method]),
    ],
)
def test_a_worker_that_raises_sigterm_itself_is_reported_as_killed(family, method, way):
    got = []
    with (
        FAMILIES[family](method, RaisesSigterm(7, way)) as items,
        pytest.raises(WorkerExitedError, match="was killed by SIGTERM; code in this process has sent the signal") as it,
    ):
        got.extend(items)
    assert got == list(range(len(got)))  # the number of items may differ from run to run
    assert 7 not in got
    assert ("with start method 'fork' the usual cause is" in str(it.value)) == (method == "fork")


def test_a_worker_ignores_sigterm_of_other_processes_after_it_removed_a_handler():
    def puts_back(x):
        signal.signal(signal.SIGTERM, signal.signal(signal.SIGTERM, raises))
        subprocess.run(["sh", "-c", f"kill {os.getpid()}; kill {os.getpid()}"], check=True)
        return x

    with loader(IterableWrapper(range(3)).map(puts_back), 1) as dl:
        assert list(dl) == [0, 1, 2]


ENDS_WHERE_IT_IS_IMPORTED = """
import os, signal
if __name__ != "__main__":
    os.kill(os.getpid(), signal.SIGTERM)
from process_checks import loader
from torchdata.datapipes.iter import IterableWrapper
if __name__ == "__main__":
    try:
        list(loader(IterableWrapper(range(3)), 1, multiprocessing_context="{method}"))
    except (RuntimeError, ConnectionError) as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("method", "answer_of"),
    [("spawn", "was killed by SIGTERM"), ("forkserver", "the program's main module has failed")],
)
def test_a_program_that_raises_sigterm_where_it_is_imported_starts_no_worker(method, answer_of, tmp_path):
    done = run(ENDS_WHERE_IT_IS_IMPORTED.format(method=method), file=tmp_path / "program.py")
    assert answer_of in done.stdout, done.stderr
