"""Draws one plan from each of successive seeds, and runs each plan in a process under a watchdog."""

import argparse
import atexit
import contextlib
import dataclasses
import faulthandler
import gc
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from leftovers import children, descriptors, shared_mappings, shown
from watchdog import end_session, show_stacks, survivors_of

PROGRESS = 60.0
#: The maximum number of seconds until all processes and resources of a plan are gone, even on a busy machine.
EXITED = 60.0
DULL = ("/multiprocessing/", "<frozen runpy>", 'File "<string>"', "/threading.py")


class Skipped(Exception):
    """Raised if a plan cannot be checked. The message explains why the plan cannot be checked."""


class Leaves(BaseException):
    """Raised to end the driver and then run `program` in the same process."""

    def __init__(self, program: Callable[[], None]) -> None:
        self.program = program


@dataclasses.dataclass(frozen=True)
class Driver:
    """Runs plans that are drawn from seeds. `plan_of` returns the plan for a seed, or None to stop the driver.

    `check` runs a plan, and returns how many objects were checked. `noun` is the name of the checked objects in the
    driver's output. A plan may run for at most `limit` seconds."""

    plan_of: Callable[[int, argparse.Namespace], Any]
    check: Callable[[Any], int]
    noun: str
    limit: float = 240.0
    around: Callable[[argparse.Namespace], contextlib.AbstractContextManager[Any]] = lambda _: contextlib.nullcontext()
    forks: bool = True
    is_quiet: Callable[[Any], bool] = lambda _: True
    more: Callable[[argparse.ArgumentParser], object] = lambda _: None
    start_methods: str = "fork"


@dataclasses.dataclass
class Outcome:
    count: int = 0
    skipped: str = ""
    wrong: str = ""
    output: str = ""


_outcome_pipes: list[int] = []


def _write(**what: Any) -> None:
    for descriptor in _outcome_pipes:
        os.write(descriptor, (json.dumps(what) + "\n").encode())


def about_to_exit(number: int) -> None:
    _write(exits=number)


def left_over(descriptors_before: int) -> dict[str, Any]:
    deadline = time.monotonic() + EXITED
    while True:
        gc.collect()
        left = {
            "child processes": children(),
            # Up to six descriptors of multiprocessing's resource tracker and fork server are not leaks.
            "more descriptors": max(0, descriptors() - descriptors_before - 6),
            "shared mappings": shared_mappings(),
            "threads": [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()],
        }
        left = {name: what for name, what in left.items() if what}
        if not left or time.monotonic() > deadline:
            left |= {"child processes": list(map(shown, left["child processes"]))} if "child processes" in left else {}
            return left
        time.sleep(0.005)


def check_here(driver: Driver, plan: Any) -> Outcome:
    try:
        return Outcome(driver.check(plan))
    except Skipped as error:
        return Outcome(skipped=str(error) or "skipped")
    except Exception as error:
        return Outcome(wrong=f"{type(error).__name__}: {error}", output=traceback.format_exc())


class Forked:
    def __init__(self, driver: Driver, plan: Any) -> None:
        self.driver, self.plan, self.started = driver, plan, time.monotonic()
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed at its end
        self._read_end, self._write_end = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run()
        os.close(self._write_end)
        self.code: int | None = None

    def _run(self) -> NoReturn:
        code = 1
        try:
            os.setsid()  # the driver finds and interrupts all processes of this session
            os.close(self._read_end)
            _outcome_pipes[:] = [self._write_end]
            for descriptor in (1, 2):
                os.dup2(self.output.fileno(), descriptor)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
            # SIGINT is enabled again, because a shell makes background processes ignore this signal.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            faulthandler.register(signal.SIGUSR1, all_threads=True)
            before = descriptors()
            outcome = check_here(self.driver, self.plan)
            if not outcome.wrong and (left := left_over(before)):
                outcome.wrong = f"still exists: {left}"
            print(outcome.output, end="")
            _write(count=outcome.count, skipped=outcome.skipped, wrong=outcome.wrong)
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            code = 0
        except Leaves:
            raise
        except BaseException:
            traceback.print_exc()
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def wait(self) -> None:
        while self.poll() is None:
            time.sleep(0.005)

    def outcome(self, limit: float) -> Outcome | None:
        if self.poll() is None and time.monotonic() - self.started < limit:
            return None
        hung = self.code is None
        if hung:
            show_stacks(self.pid, self.output)
        left = [] if hung else survivors_of(self.pid)
        end_session(self)
        with os.fdopen(self._read_end) as pipe, self.output:
            reported: dict[str, Any] = {}
            for line in pipe:
                reported |= json.loads(line)
            self.output.seek(0)
            output = self.output.read()
        outcome = Outcome(reported.get("count", 0), reported.get("skipped", ""), reported.get("wrong", ""), output)
        if hung:
            outcome.wrong = f"the run hung: it did not end within {limit:.0f} s"
        elif left:
            outcome.wrong = "; ".join(filter(None, [outcome.wrong, f"these processes still run: {left}"]))
        elif self.code and self.code != -reported.get("exits", 0):
            outcome.wrong = f"exit code {self.code}"
        elif output and self.driver.is_quiet(self.plan) and not outcome.wrong and not self.code:
            outcome.wrong = "the run printed text"
        return outcome


def parser_of(driver: Driver | None, name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m drivers {name}")
    parser.add_argument("--seed", type=int, default=1, help="the first seed; each later plan adds 1")
    parser.add_argument("--seconds", type=float, default=60, help="start plans for this many seconds")
    parser.add_argument("--runs", type=int, default=sys.maxsize, help="the maximum number of plans")
    parser.add_argument("--jobs", type=int, default=1, help="the number of plans that run at once")
    parser.add_argument(
        "--start-methods", default=driver.start_methods if driver else "fork", help="methods to use, such as fork,spawn"
    )
    parser.add_argument("--cadence-zero", action="store_true", help="take a snapshot after each item")
    parser.add_argument("--switch", type=float, help="the interpreter's switch interval (default: 0.005 s)")
    parser.add_argument("--limit", type=float, help="seconds after which a plan is considered hung")
    parser.add_argument("--here", action="store_true", help="run plans in this process, for example in a debugger")
    if driver is not None:
        driver.more(parser)
    return parser


def outcomes(driver: Driver, options: argparse.Namespace) -> Iterator[tuple[int, Any, Outcome]]:
    started, seed, running = time.monotonic(), options.seed, dict[Forked, int]()
    limit = options.limit or driver.limit
    while True:
        if (
            len(running) < options.jobs
            and time.monotonic() - started < options.seconds
            and seed < options.seed + options.runs
        ):
            if (plan := driver.plan_of(seed, options)) is None:
                options.runs = 0
                continue
            if options.cadence_zero and hasattr(plan, "cadence"):
                plan.cadence = 0.0, 0.0
            if options.here or not driver.forks:
                faulthandler.dump_traceback_later(limit, exit=True)
                yield seed, plan, check_here(driver, plan)
                faulthandler.cancel_dump_traceback_later()
            else:
                running[Forked(driver, plan)] = seed
            seed += 1
            continue
        if not running:
            return
        for one, number in list(running.items()):
            if (outcome := one.outcome(limit)) is not None:
                del running[one]
                yield number, one.plan, outcome
        time.sleep(0.002)


def drive(name: str, driver: Driver, arguments: list[str]) -> int:
    options = parser_of(driver, name).parse_args(arguments)
    if options.switch is not None:
        sys.setswitchinterval(options.switch)
    warnings.simplefilter("ignore")
    warnings.filterwarnings("always", ".* did not end within .*")  # a process of the plan is still running
    failed, skipped, count, runs = list[int](), Counter[str](), 0, 0
    started = reported = time.monotonic()
    with driver.around(options):
        for seed, plan, outcome in outcomes(driver, options):
            runs, count = runs + 1, count + outcome.count
            skipped[outcome.skipped[:60]] += 1
            if outcome.wrong:
                failed.append(seed)
                _report(name, seed, plan, outcome, arguments)
            if time.monotonic() > reported + PROGRESS:  # The progress is visible even if the driver is killed.
                reported = time.monotonic()
                print(f"so far {runs} runs, {count} {driver.noun}; {len(failed)} failed", flush=True)
    del skipped[""]
    if skipped:
        print(f"{skipped.total()} runs could not be checked: {dict(skipped.most_common(8))}")
    seconds = time.monotonic() - started
    print(f"{name}: {runs} runs in {seconds:.0f} s, {count} {driver.noun}; {len(failed)} failed: {failed}", flush=True)
    return int(bool(failed) or not count)


def _report(name: str, seed: int, plan: Any, outcome: Outcome, arguments: list[str]) -> None:
    kept = [
        word
        for word, before in zip(arguments, ["", *arguments], strict=False)
        if not {word, before} & {"--seed", "--runs", "--seconds", "--jobs"}
    ]
    print(f"seed {seed} failed: {outcome.wrong}")
    print(f"again: python -m drivers {' '.join([name, *kept])} --seed {seed} --runs 1")
    shown = [line for line in outcome.output.rstrip().split("\n") if not any(one in line for one in DULL)]
    if len(shown) > 60:
        shown = [*shown[:30], "…", *shown[-30:]]
    print("\n".join("    " + line for line in [f"{plan}", *shown]), flush=True)
