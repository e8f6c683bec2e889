"""The plan of a seed: a loader, the moment of the blow, its victim, and the kind of blow."""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass

METHODS = ("fork", "spawn", "forkserver")

#: The word of main at the beginning of each part of its work, and about how long that takes; the blow falls within.
PHASES = {
    "start": 0.05,
    "iterate": 0.1,
    "leave": 0.02,
    "turn": 0.02,
    "between": 0.02,
    "pause": 0.02,
    "resume": 0.02,
    "last": 0.1,
    "shutdown": 0.01,
}
#: Ways in which a process hangs at an item, other than by a signal.
HANGS = ("sleep", "lock", "loop", "fifo")
#: Processes that hang at one item, one after the other, until that is an error.
TRIES = 3
#: Starting takes longer where children import everything anew.
SLOW_START = 1.0


@dataclass
class Plan:
    """All that a seed stands for."""

    seed: int
    method: str
    workers: int
    dispatch: bool
    in_order: bool
    #: Items of an epoch, elements of each array, longest sleep for one.
    items: int
    elements: int
    sleep: float
    window: int
    #: Whether a thread, or a signal handler, of main keeps the GIL for long.
    busy: str
    phase: str
    #: Seconds after main has come to the phase.
    delay: float
    #: "child", "main", "terminal" (Ctrl-C there goes to all processes), or "self" (a child does it to itself).
    victim: str
    #: Which child, in the order in which they were started.
    child: int
    #: Name of the signal; "exit" for a child that calls `os._exit`.
    blow: str
    #: Seconds after which a stopped process goes on; 0 for never.
    stopped: float
    #: For "self": the item at which it happens.
    at: int
    #: Seconds that the loader waits for an item; None for ever.
    timeout: float | None
    #: Whether main catches what comes and iterates once more.
    again: bool
    #: How a process hangs, for which another one takes its place: "SIGSTOP" from outside, or one of `HANGS` at the item
    #: `at`; "" for not at all.
    hang: str = ""
    #: How many processes do that at that item.
    times: int = 0
    #: Whether the function is called before the items are dispatched, and so in the dispatching process.
    before: bool = False
    #: Whether an epoch is left in its midst, and another loader goes on from its state.
    resumes: bool = False

    def describe(self):
        return ", ".join(f"{name}={value}" for name, value in vars(self).items())

    @property
    def deadly(self):
        return self.blow in ("SIGKILL", "SIGTERM", "SIGXCPU", "exit")


def make_plan(seed, methods=METHODS):
    """The plan of a seed; `methods` are the start methods to draw from."""
    rng = random.Random(f"chaos {seed}")
    method = methods[rng.randrange(60) % len(methods)]
    workers = rng.randint(1, 4)
    dispatch = rng.random() < 0.4
    phase = rng.choice(list(PHASES))
    longest = SLOW_START if phase == "start" and method != "fork" else PHASES[phase]
    victim = rng.choices(["child", "main", "terminal", "self"], [8, 3, 3, 3])[0]
    blow, stopped, timeout = "SIGKILL", 0.0, rng.choice([None, None, 30.0])
    if victim == "child":
        blow = rng.choice(["SIGKILL", "SIGKILL", "SIGKILL", "SIGXCPU", "SIGSTOP", "SIGSTOP"])
    elif victim == "main":
        blow = rng.choice(["SIGKILL", "SIGTERM", "SIGINT", "SIGINT", "SIGSTOP"])
    elif victim == "terminal":
        blow = "SIGINT"
    else:
        blow = rng.choice(["SIGKILL", "exit"])
    if blow == "SIGSTOP":
        stopped = rng.uniform(0.01, 0.5)
        if victim == "child" and rng.random() < 0.5:
            stopped, timeout = 0.0, 1.0 if method == "fork" else 5.0
    items = rng.choice([5, 50, 200, 1000])
    plan = Plan(
        seed=seed,
        method=method,
        workers=workers,
        dispatch=dispatch,
        in_order=rng.random() < 0.75,
        items=items,
        elements=rng.choice([0, 0, 10, 5000, 100_000 if items < 1000 else 1000]),
        sleep=rng.choice([0, 0, 0.001, 0.003]) if items < 1000 else 0,
        window=rng.choice([0, 1, 10]),
        busy=rng.choice(["", "", "", "thread", "handler"]),
        phase=phase,
        delay=longest * rng.random() ** 2,
        victim=victim,
        child=rng.randrange(workers + dispatch),
        blow=blow,
        stopped=stopped,
        at=rng.randrange(items),
        timeout=timeout,
        again=rng.random() < 0.5,
    )
    if rng.random() < 0.3:
        hang(plan, rng)
    return plan


def hang(plan, rng):
    """Has processes hang in place of the blow, and others take their places."""
    plan.hang = rng.choice(["SIGSTOP", *HANGS])
    plan.resumes, plan.before = rng.random() < 0.5, plan.dispatch and rng.random() < 0.5
    plan.timeout, plan.stopped = 0.4 if plan.method == "fork" else 1.0, 0.0
    if plan.hang == "SIGSTOP":
        plan.victim, plan.blow = "child", "SIGSTOP"
    else:
        plan.victim, plan.blow, plan.times = "self", "hang", rng.choice([1, 1, 1, 2, TRIES])
    if plan.phase == "shutdown":
        plan.phase = "iterate"


def number_of(blow):
    return getattr(signal, blow)
