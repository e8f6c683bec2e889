"""Starts the program, strikes, and judges what came of it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from dataclasses import dataclass, field

from chaos.plans import TRIES, make_plan, number_of
from leftovers import all_children, cmdline, is_gone
from watchdog import end_session, environment, show_stacks, survivors_of

#: Seconds within which a death is reported and an interrupt is obeyed. The machine may be busy with other things.
NOTICED = 3.0
#: The same for a child that killed itself nobody knows when.
LATE = 15.0
#: Seconds for all that a program does; longer is a hang, also on a machine that others use.
LIMIT = 240.0
#: Epochs that the program reads to their end.
EPOCHS = 4


@dataclass
class Outcome:
    """The outcome of a run."""

    plan: object
    #: Its faults, one line each.
    wrong: list[str] = field(default_factory=list)
    #: The events that the program reported, and its output.
    said: list[dict] = field(default_factory=list)
    printed: str = ""
    #: When the blow fell, and on which process; None where it did not.
    struck: float | None = None
    victim: int | None = None
    #: Seconds from the blow, or from when main asked, until main had the error or the interrupt.
    latency: float | None = None
    seconds: float = 0.0


class Listener(threading.Thread):
    """Reads what the program says, as it says it."""

    def __init__(self, descriptor):
        super().__init__(daemon=True)
        self.file = os.fdopen(descriptor)
        self.lines = []
        self.news = threading.Condition()
        self.start()

    def run(self):
        with contextlib.suppress(ValueError), self.file:
            for line in self.file:
                with self.news:
                    self.lines.append(json.loads(line))
                    self.news.notify_all()

    def said(self, **what):
        """The first line with these contents."""
        return next((line for line in self.lines if what.items() <= line.items()), None)

    def wait_for(self, condition, seconds):
        with self.news:
            return self.news.wait_for(condition, seconds)


def run_seed(seed, methods):
    """Runs the plan of a seed."""
    plan = make_plan(seed, methods)
    outcome = Outcome(plan)
    started = time.monotonic()
    reading, writing = os.pipe()
    terminal, tty = os.openpty()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "chaos.main", str(seed), ",".join(methods), str(writing)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[writing],
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(tty, termios.TIOCSCTTY, 0),  # Ctrl-C there goes to all of the session
            env=environment(),
        )
        os.close(writing)
        os.close(tty)
        listener = Listener(reading)
        try:
            strike(plan, process, terminal, listener, outcome)
            process.stdin.close()
            try:
                process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                outcome.wrong.append(f"it hung: not done after {LIMIT:.0f} s")
                show_stacks(process.pid, output)
            else:
                left = survivors_of(process.pid)
                if left:
                    outcome.wrong.append(f"processes outlived main: {left}")
        finally:
            process.stdin.close()
            end_session(process)
            os.close(terminal)
        listener.join(5)
        output.seek(0)
        outcome.printed = output.read()
    outcome.said = listener.lines
    outcome.seconds = time.monotonic() - started
    if not outcome.wrong:
        judge(outcome, process.returncode, listener)
    return outcome


# -- the blow ------------------------------------------------------------------------------------------------------


def strike(plan, process, terminal, listener, outcome):
    """Waits for the moment, and strikes. Does nothing where the program comes to its end before."""
    if plan.victim == "self":
        return
    over = lambda: listener.said(ends=True) or process.poll() is not None  # noqa: E731
    listener.wait_for(lambda: listener.said(phase=plan.phase) or over(), LIMIT)
    if listener.said(phase=plan.phase) is None:
        return
    time.sleep(plan.delay)
    pid = process.pid
    if plan.victim == "child":
        pids = children_of(process.pid, plan.method)
        if not pids:
            return
        pid = pids[plan.child % len(pids)]
    number = number_of(plan.blow)
    # A process that has ended but was not waited for yet takes signals, too, but is none the worse for it.
    if is_gone(pid):
        return
    outcome.struck, outcome.victim = time.monotonic(), pid
    with contextlib.suppress(ProcessLookupError):
        if plan.victim == "terminal":
            os.write(terminal, b"\x03")
            return
        os.kill(pid, number)
        if plan.stopped:
            time.sleep(plan.stopped)
            os.kill(pid, signal.SIGCONT)


def children_of(main, method):
    """The loader's processes in the order in which they were started; a fork server's own children are among them.

    One that has not become another program yet may still become multiprocessing's resource tracker.
    """
    found = []
    for pid in all_children(main):
        command = cmdline(pid)
        if method == "forkserver" and b"spawn_main" in command:
            found += all_children(pid)
        elif b"tracker" not in command and (method == "fork" or command not in (b"", cmdline(main))):
            found.append(pid)
    return sorted(found)


# -- the judgement -------------------------------------------------------------------------------------------------


def judge(outcome, code, listener):
    plan, wrong = outcome.plan, outcome.wrong
    report = listener.said(report=True)
    main_dies = plan.victim == "main" and plan.deadly and outcome.struck is not None
    starts = main_dies and plan.method == "spawn" and listener.said(phase="iterate") is None
    if outcome.printed and not (starts and was_not_told(outcome.printed)):
        wrong.append(f"something was printed: {outcome.printed.strip().splitlines()[-1]}")
    if main_dies and report is None:
        if code != -number_of(plan.blow):
            wrong.append(f"main ended with code {code}")
        return
    if code != 0 or report is None:
        wrong.append(f"main ended with code {code} and {'a' if report else 'no'} report")
        return
    wrong += report["wrong"]
    errors = report["errors"]
    if plan.hang:
        judge_hang(outcome, report)
    elif plan.victim == "self":
        judge_death(outcome, report, listener, "process")
    elif outcome.struck is None:
        # A time-out that is short, for a process that was to be stopped, may be too short for a busy machine's start.
        hasty = plan.blow == "SIGSTOP" and not plan.stopped and errors and errors[0]["type"] == "TimeoutError"
        if errors and not hasty:
            wrong.append(f"nobody was struck, but: {errors[0]['type']}: {errors[0]['text']:.300}")
    elif plan.blow == "SIGINT":
        judge_interrupt(outcome, report, listener)
    elif plan.deadly and plan.victim == "child":
        judge_death(outcome, report, listener, f"(pid {outcome.victim})")
    elif plan.victim == "child" and not plan.stopped:
        judge_stop(outcome, report, listener)
    elif errors:
        wrong.append(f"it was only stopped for a while, but: {errors[0]['type']}: {errors[0]['text']:.300}")


#: The output of a spawned child's interpreter if main has died before it had sent the program: no code of the library,
#: and none of the program, has run there yet.
UNTOLD = re.compile(
    r"""(Traceback \(most recent call last\):
  File "<string>", line 1, in <module>
  File "[^"]*/multiprocessing/spawn\.py", line \d+, in spawn_main
    exitcode = _main\(.*\)
(               \^+\n)?  File "[^"]*/multiprocessing/spawn\.py", line \d+, in _main
    preparation_data = reduction\.pickle\.load\(from_parent\)
(                       \^+\n)?EOFError: Ran out of input
)"""
)


def was_not_told(printed):
    """Whether all that was printed is by multiprocessing, once: main starts one child after the other."""
    return UNTOLD.fullmatch(printed) is not None


def fell_late(outcome, listener):
    """Whether the blow fell in the last epoch or later, so that it may have come too late to matter."""
    last = listener.said(phase="last")
    # A signal takes its time to do what it does.
    return outcome.struck is not None and last is not None and outcome.struck > last["time"] - 0.05


def judge_death(outcome, report, listener, name):
    struck = outcome.struck
    errors = report["errors"]
    if not errors:
        # A child that dies after it has sent the last item has done its work.
        if not fell_late(outcome, listener) or report["complete"] < EPOCHS:
            outcome.wrong.append(f"the death was not noticed; {report['complete']} epochs were complete")
        return
    for error in errors:
        if not error["died"] or name not in error["text"]:
            outcome.wrong.append(f"the death came as {error['type']}: {error['text']:.300}")
            return
    first = errors[0]
    outcome.latency = first["time"] - max(struck or 0, first["asked"])
    # The moment when a child killed itself is not known; main may have asked long before, while the child was still
    # starting.
    if outcome.latency > (NOTICED if struck else LATE):
        outcome.wrong.append(f"the death was noticed after {outcome.latency:.2f} s")


def judge_interrupt(outcome, report, listener):
    if not report["interrupts"]:
        # Once all is over the program ignores Ctrl-C; a key takes its time through the terminal.
        over = listener.said(peace=True)
        if over is None or outcome.struck < over["time"] - 0.05:
            outcome.wrong.append("the interrupt was swallowed")
        return
    outcome.latency = report["interrupts"][0] - outcome.struck
    if outcome.latency > NOTICED:
        outcome.wrong.append(f"the interrupt came after {outcome.latency:.2f} s")
    for error in report["errors"]:
        if "shut down" not in error["text"]:
            outcome.wrong.append(f"after the interrupt came {error['type']}: {error['text']:.300}")


def judge_hang(outcome, report):
    """Processes that hang are replaced, and nothing is lost; at the third one at an item that is an error."""
    plan, errors = outcome.plan, report["errors"]
    if plan.times == TRIES:
        if not errors:
            outcome.wrong.append(f"{TRIES} processes hung at an item, and that was no error")
        elif not errors[0]["died"] or "made nothing for" not in errors[0]["text"]:
            outcome.wrong.append(f"the hang came as {errors[0]['type']}: {errors[0]['text']:.300}")
    elif errors:
        outcome.wrong.append(f"a process that hung was an error: {errors[0]['type']}: {errors[0]['text']:.300}")
    elif report["complete"] < EPOCHS:
        outcome.wrong.append(f"{report['complete']} epochs were complete")


def judge_stop(outcome, report, listener):
    """A child that stands still for ever is a time-out, and does not keep main from its end."""
    errors = report["errors"]
    if not errors:
        if not fell_late(outcome, listener):
            outcome.wrong.append("nobody missed the process that was stopped")
    elif errors[0]["type"] != "TimeoutError":
        outcome.wrong.append(f"the stopped process came as {errors[0]['type']}: {errors[0]['text']:.300}")
    else:
        outcome.latency = errors[0]["time"] - max(outcome.struck, errors[0]["asked"])
        if outcome.latency > outcome.plan.timeout + NOTICED:
            outcome.wrong.append(f"the time-out of {outcome.plan.timeout} s came after {outcome.latency:.2f} s")
    ending = listener.said(report=True)["time"] - listener.said(ends=True)["time"]
    if ending > 8:
        outcome.wrong.append(f"shutting down took {ending:.1f} s")
