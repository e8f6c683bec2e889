"""Defines the events that can happen to a loader."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pressing import alarm, press
from process_checks import kill_fork_server
from random_loaders.epochs import read_epoch
from random_loaders.pipelines import ENDS, Differs

if TYPE_CHECKING:
    from random_loaders.run import Run

Event = Callable[["Run"], None]
EVENTS: list[tuple[Event, int, Callable[[Run], bool]]] = []
SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGXCPU, signal.SIGSTOP]


def event(weight: int = 1, may_come: Callable[[Run], bool] = lambda run: True) -> Callable[[Event], Event]:
    def note(function: Event) -> Event:
        EVENTS.append((function, weight, may_come))
        return function

    return note


def possible(run: Run) -> list[Event]:
    return [function for function, weight, may_come in EVENTS if may_come(run) for _ in range(weight)]


def in_main_thread(_run: Run) -> bool:
    return threading.current_thread() is threading.main_thread()


def has_processes(run: Run) -> bool:
    return run.plan.kind == "workers" and run.workers != 0 and run.plan.method != "remote"


def some(run: Run) -> int:
    return run.rng.choice([1, 5, 20])


@event()
def look(run: Run) -> None:
    run.did.append("look")
    run.loader.stats(), run.loader.diagnose(), repr(run.loader)


@event()
def iterate(run: Run) -> None:
    if not run.loader._reset_iter:
        run.did.append("iter")
        run.iterator = iter(run.loader)


@event()
def limit(run: Run) -> None:
    count = run.rng.choice([1, 3, 10])
    if count >= run.size - run.at:
        return
    run.did.append(f"limit {count}")
    run.iterator.limit(count)
    run.take(run.iterator, count)
    then = run.rng.random()
    if then < 0.2:
        run.read_on()  # begins a `for` loop, whose new iterator has no limit
        return
    if then < 0.5:
        save(run)
    elif then < 0.6 and may_exit(run):
        kill(run)
    run.iterator.resume()
    run.iterator.limit(None)


@event()
def rest(run: Run) -> None:
    time.sleep(run.rng.random() * 0.05)


@event()
def read_by_a_thread(run: Run) -> None:
    by_thread(run, lambda: run.read(some(run)), lambda thread: thread.join())


@event(may_come=lambda run: not (run.plan.draws_in_main or "failing" in [*run.plan.before, *run.plan.after]))
def read_a_second_loader(run: Run) -> None:
    if run.rng.random() < 0.7:
        return
    run.did.append("a second loader:")
    first, seed = run.expected[0], run.plan.epochs[0][0]
    with run.plan.made() as other:
        for number in (run.plan.loader_seed, seed):
            if number is not None:
                other.seed(number)
        got = read_epoch(other, first.size or None, lambda: run.read(1) if run.rng.random() < 0.5 else None)
    first.check([], got, run.plan.free)
    if len(got) != first.size and first.size:
        raise Differs(f"another loader gives {len(got)} items instead of {first.size}")


@event(weight=2)
def read_on(run: Run) -> None:
    run.read_on()


@event()
def save(run: Run) -> None:
    run.did.append(f"state at {run.at}")
    run.put_aside(run.state())


@event()
def save_at_each_item(run: Run) -> None:
    for _ in range(run.rng.choice([3, 10])):
        save(run)
        run.read(1)


@event(may_come=in_main_thread)
def save_by_signal(run: Run) -> None:
    found: list[dict[str, Any]] = []
    run.did.append("signal")
    with alarm(run.rng.choice([1e-6, 1e-4, 1e-3]), lambda *_: found.append(run.loader.state_dict())):
        run.read(some(run))
    run.put_aside(*found)


@event()
def save_by_thread(run: Run) -> None:
    found: list[dict[str, Any]] = []
    stop, loader = threading.Event(), run.loader

    def work() -> None:
        while not stop.is_set():
            found.append(loader.state_dict())
            loader.stats()
            stop.wait(0.0003)

    def read(thread: threading.Thread) -> None:
        try:
            run.read(some(run))
        finally:
            stop.set()
            thread.join()

    by_thread(run, work, read)
    run.put_aside(*run.rng.sample(found, min(2, len(found))))


def by_thread(run: Run, work: Callable[[], object], meanwhile: Callable[[threading.Thread], object]) -> None:
    failed: list[Exception | SystemExit] = []

    def carry_out() -> None:
        try:
            work()
        except ENDS as error:
            failed.append(error)

    thread = threading.Thread(target=carry_out)
    run.did.append("thread")
    thread.start()
    meanwhile(thread)
    if failed:
        raise failed[0]


@event(may_come=lambda run: in_main_thread(run) and run.plan.presses)
def interrupt(run: Run) -> None:
    """Presses Ctrl-C at a random moment, and then continues the loop, or resumes the epoch with another loader."""
    most = run.size - run.is_left  # The next loop needs one more item if this loop leaves the epoch early.
    if run.at >= most:
        return
    got: list[Any] = []
    with alarm(None):
        try:
            signal.signal(signal.SIGALRM, press)
            signal.setitimer(signal.ITIMER_REAL, run.rng.choice([1e-6, 3e-5, 1e-4, 1e-3]))
            for item in run.iterator:
                got.append(item)
                if run.at + len(got) == most:
                    break
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            pass
    run.take(got, len(got))
    position = run.loader.state_dict()["iteration_state"]
    received = 0 if position is None else position["received"]
    if received - run.at not in (0, 1):  # Ctrl-C may arrive between counting and receiving an item.
        raise Differs(f"{run.at} items of epoch {run.epoch} arrived, but the state counts {received}")
    run.did.append(f"interrupted at {received}")
    run.received += [None] * (received - run.at)
    if run.rng.random() < 0.5:
        run.read_on(reads_on=False)


def victim(run: Run) -> tuple[int, int] | None:
    service = run.loader.reading_service
    pids: list[int] = getattr(service, "reading_services", [service])[-1]._children.pids
    index = run.rng.randrange(max(1, len(pids)))
    return (index, pids[index]) if pids else None


def may_exit(run: Run) -> bool:
    return has_processes(run) and run.plan.restarts


@event(may_come=has_processes)
def halt(run: Run) -> None:
    if (found := victim(run)) is None:
        return
    index, pid = found
    send(pid, signal.SIGSTOP)
    timer = threading.Timer(0.005, send, [pid, signal.SIGCONT])
    run.did.append(f"halt {index}")
    timer.start()
    run.read(some(run))
    timer.join()


@event(weight=3, may_come=may_exit)
def kill(run: Run) -> None:
    if (found := victim(run)) is None:
        return
    index, pid = found
    if run.exits[index] == 2:  # The third exit of a worker in a row is an error.
        return
    run.exits[index] += 1
    run.did.append(f"kill {index}")
    if run.plan.method == "forkserver" and run.rng.random() < 0.5:
        run.did.append("kill the fork server")
        kill_fork_server()
    timer = threading.Timer(run.rng.choice([0.0, 0.0005, 0.002]), send, [pid, run.rng.choice(SIGNALS)])
    timer.start()
    if run.rng.random() < 0.5 or run.loader._is_paused:
        timer.join()
    else:
        run.read(some(run))
        timer.join()


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
