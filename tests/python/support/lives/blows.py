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
from lives.model import is_known
from lives.pipelines import Differs, key
from torchdata.dataloader2 import WorkerExitedError

if TYPE_CHECKING:
    from lives.run import Run

NOTICED = 3.0
LATE = 15.0


class Strike(threading.Thread):
    def __init__(self, run: Run) -> None:
        super().__init__(name="strikes")
        self.run_, self.blow = run, run.life.blow
        assert self.blow is not None
        self.struck: float | None = None
        self.pid: int | None = None
        self.pause = 0.01 + 0.5 * run.dice.random()
        self._who = run.dice.randrange(100)

    def run(self) -> None:
        blow = self.blow
        assert blow is not None
        time.sleep(blow.delay)
        if blow.victim == "child":
            deadline = time.monotonic() + 10 * (blow.moment == "start")
            while not (there := sorted(children())) and time.monotonic() < deadline:
                time.sleep(0.001)
            if not there:
                return
            self.pid = there[self._who % len(there)]
        elif blow.victim == "main":
            self.pid = os.getpid()
        self.struck = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            if blow.victim == "self":
                self.run_.life.set_flag(True)
            elif blow.victim == "terminal":
                os.killpg(os.getpgrp(), signal.SIGINT)
            else:
                assert self.pid is not None
                os.kill(self.pid, blow.number)
                if blow.what == "halt":
                    time.sleep(self.pause)
                    os.kill(self.pid, signal.SIGCONT)


def strike(run: Run) -> None:
    blow = run.life.blow
    assert blow is not None
    run.did.append(f"{blow}")
    if blow.victim == "main" and blow.what != "SIGINT":
        about_to_exit(blow.number)
    thread, is_over, error = Strike(run), False, None
    asked = [time.monotonic()]
    before = signal.signal(signal.SIGINT, signal.default_int_handler) if blow.what == "SIGINT" else None
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
        if blow.what == "SIGINT":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        _judge(run, thread, error, noticed - max(thread.struck or 0.0, asked[0]))
        run.life.set_flag(False)
        if blow.again and not is_over:
            run.did.append("again")
            with contextlib.suppress(TimeoutError, RuntimeError):  # these errors report why the loader cannot be read
                items = iter(run.loader)
                if is_known(run.life) and not run.life.lasts:
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


def _read_on(run: Run, thread: Strike, asked: list[float]) -> None:
    blow, life = run.life.blow, run.life
    assert blow is not None
    first = run.epoch
    for number in range(first, len(run.expected)):
        run.epoch = number
        if number > first and number < len(life.epochs) and (seed := life.epochs[number][0]) is not None:
            run.loader.seed(seed)
        asked[0] = time.monotonic()
        if number == first and blow.moment == "start":
            thread.start()
        iterator = iter(run.loader)
        if number == first and blow.moment == "read":
            thread.start()
        if number == first and blow.moment == "pause" and run.expected[number].size > 2:
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
        if number == first and blow.moment in ("end", "pause") and thread.ident is None:
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
        expected.check([], seen, run.life.free)
    if whole and len(seen) != expected.size:
        raise Differs(f"epoch {number} ends behind {len(seen)} of {expected.size} items")
    return seen


def _judge(run: Run, thread: Strike, error: BaseException | None, latency: float) -> None:
    blow = run.life.blow
    assert blow is not None
    what = f"{type(error).__name__}: {error}"
    if error is None:
        if blow.what == "SIGINT":
            raise Differs("the interrupt was swallowed")
        # The loader may not notice the exit of a process that has already sent its last item.
        late = run.did[-1] == "read all" or thread.struck is None or run.epoch == len(run.expected) - 1
        if blow.what != "halt" and not late and blow.victim == "child":
            raise Differs(f"nobody missed the process {thread.pid}")
    elif thread.struck is None or blow.what == "halt":
        raise Differs(f"nobody was struck for good, but: {what}") from error
    elif blow.what == "SIGINT":
        if not isinstance(error, KeyboardInterrupt) or latency > NOTICED:
            raise Differs(f"the interrupt came after {latency:.1f} s as {what}") from error
    elif blow.what == "SIGSTOP":
        timeout = 1.0 if run.life.method == "fork" else 5.0
        if not isinstance(error, TimeoutError) or latency > timeout + NOTICED:
            raise Differs(f"the process that stands still came after {latency:.1f} s as {what}") from error
    else:
        name = "process" if blow.victim == "self" else f"(pid {thread.pid})"
        if not isinstance(error, WorkerExitedError) or name not in str(error):
            raise Differs(f"the death came as {what}") from error
        if latency > (LATE if blow.victim == "self" else NOTICED):
            raise Differs(f"the death was noticed after {latency:.1f} s")
