"""Causes a fault that ends the run of a loader: a process is killed, suspended or interrupted, but not replaced."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from drivers.frame import about_to_exit
from leftovers import children
from random_loaders.model import is_known
from random_loaders.pipelines import Differs, key
from torchdata.dataloader2 import WorkerExitedError

if TYPE_CHECKING:
    from random_loaders.run import Run

NOTICED = 3.0
LATE = 15.0


class FaultThread(threading.Thread):
    def __init__(self, run: Run) -> None:
        super().__init__(name="strikes")
        self.run_, self.fault = run, run.plan.fault
        assert self.fault is not None
        self.injected_at: float | None = None
        self.pid: int | None = None
        self.pause = 0.01 + 0.5 * run.rng.random()
        self._index = run.rng.randrange(100)

    def run(self) -> None:
        fault = self.fault
        assert fault is not None
        time.sleep(fault.delay)
        if fault.victim == "child":
            deadline = time.monotonic() + 10 * (fault.moment == "start")
            while not (there := sorted(children())) and time.monotonic() < deadline:
                time.sleep(0.001)
            if not there:
                return
            self.pid = there[self._index % len(there)]
        elif fault.victim == "main":
            self.pid = os.getpid()
        self.injected_at = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            if fault.victim == "self":
                self.run_.plan.set_flag(True)
            elif fault.victim == "terminal":
                os.killpg(os.getpgrp(), signal.SIGINT)
            else:
                assert self.pid is not None
                os.kill(self.pid, fault.number)
                if fault.what == "halt":
                    time.sleep(self.pause)
                    os.kill(self.pid, signal.SIGCONT)


def inject(run: Run) -> None:
    fault = run.plan.fault
    assert fault is not None
    run.did.append(f"{fault}")
    if fault.victim == "main" and fault.what != "SIGINT":
        about_to_exit(fault.number)
    thread, is_over, error = FaultThread(run), False, None
    asked = [time.monotonic()]
    before = signal.signal(signal.SIGINT, signal.default_int_handler) if fault.what == "SIGINT" else None
    try:
        try:
            _read_on(run, thread, asked)
            is_over = True
            if thread.ident is not None:
                thread.join()
        except (WorkerExitedError, TimeoutError, KeyboardInterrupt) as one:
            error = one
        noticed = time.monotonic()
        if thread.ident is not None:
            thread.join()
        if fault.what == "SIGINT":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        _judge(run, thread, error, noticed - max(thread.injected_at or 0.0, asked[0]))
        run.plan.set_flag(False)
        if fault.again and not is_over:
            run.did.append("again")
            with contextlib.suppress(TimeoutError, RuntimeError):  # these errors report why the loader cannot be read
                items = iter(run.loader)
                if is_known(run.plan) and not run.plan.lasts:
                    _read_epoch(run, items, len(run.expected) - 1)
                for _ in items:
                    pass
        ending = time.monotonic()
        run.loader.shutdown()
        if time.monotonic() > ending + LATE:
            raise Differs(f"shutting down took {time.monotonic() - ending:.1f} s")
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _read_on(run: Run, thread: FaultThread, asked: list[float]) -> None:
    fault, plan = run.plan.fault, run.plan
    assert fault is not None
    first = run.epoch
    for number in range(first, len(run.expected)):
        run.epoch = number
        if number > first and number < len(plan.epochs) and (seed := plan.epochs[number][0]) is not None:
            run.loader.seed(seed)
        asked[0] = time.monotonic()
        if number == first and fault.moment == "start":
            thread.start()
        iterator = iter(run.loader)
        if number == first and fault.moment == "read":
            thread.start()
        if number == first and fault.moment == "pause" and run.expected[number].size > 2:
            iterator.limit(run.expected[number].size // 2)
            head = _read_epoch(run, iterator, number, whole=False)
            thread.start()
            time.sleep(0.01)
            asked[0] = time.monotonic()
            iterator.resume()
            iterator.limit(None)
            _read_epoch(run, iterator, number, asked=asked, head=head)
        else:
            _read_epoch(run, iterator, number, asked=asked)
        if number == first and fault.moment in ("end", "pause") and thread.ident is None:
            thread.start()
            time.sleep(0.02)
    if thread.ident is None:
        thread.start()
    run.did.append("read all")
    asked[0] = time.monotonic()
    run.loader.shutdown()


def _read_epoch(
    run: Run,
    items: Any,
    number: int,
    whole: bool = True,
    asked: list[float] | None = None,
    head: list[Any] | None = None,
) -> list[Any]:
    expected, seen = run.expected[number], [*(head or [])]
    most = (len(expected) if expected.until is None else expected.size) - len(seen)
    try:
        while most > 0 or expected.until is None:
            if asked is not None:
                asked[0] = time.monotonic()
            if (item := next(items, run)) is run:
                break
            seen.append(key(item))
            most -= 1
            if expected.until is not None and most == 0:
                break
    finally:
        expected.check([], seen, run.plan.free)
    if whole and len(seen) != expected.size:
        raise Differs(f"epoch {number} ends after {len(seen)} of {expected.size} items")
    return seen


def _judge(run: Run, thread: FaultThread, error: BaseException | None, latency: float) -> None:
    fault = run.plan.fault
    assert fault is not None
    what = f"{type(error).__name__}: {error}"
    if error is None:
        if fault.what == "SIGINT":
            raise Differs("the interrupt raised no exception")
        # The loader may not notice the exit of a process that has already sent its last item.
        late = run.did[-1] == "read all" or thread.injected_at is None or run.epoch == len(run.expected) - 1
        if fault.what != "halt" and not late and fault.victim == "child":
            raise Differs(f"the exit of process {thread.pid} was not detected")
    elif thread.injected_at is None or fault.what == "halt":
        raise Differs(f"no process was killed, but: {what}") from error
    elif fault.what == "SIGINT":
        if not isinstance(error, KeyboardInterrupt) or latency > NOTICED:
            raise Differs(f"the interrupt was raised after {latency:.1f} s as {what}") from error
    elif fault.what == "SIGSTOP":
        timeout = 1.0 if run.plan.method == "fork" else 5.0
        if not isinstance(error, TimeoutError) or latency > timeout + NOTICED:
            raise Differs(f"the paused process was reported after {latency:.1f} s as {what}") from error
    else:
        name = "process" if fault.victim == "self" else f"(pid {thread.pid})"
        if not isinstance(error, WorkerExitedError) or name not in str(error):
            raise Differs(f"the exit was reported as {what}") from error
        if latency > (LATE if fault.victim == "self" else NOTICED):
            raise Differs(f"the exit was detected after {latency:.1f} s")
