"""Writes random bytes into shared memory. Each run must end with correct items or an error, and release all resources.

In each run, one process writes random bytes into shared memory, but not into arrays, because arrays lack a checksum.
The items received before an error must be the first of the correct items. `stats`, `diagnose`, `shutdown` and the
deletion of objects must not raise."""

import ctypes
import gc
import os
import random
import re
import sys
import threading
import warnings

from drivers.frame import Driver
from families import FAMILIES, identity
from leftovers import children
from torchdata._engine.processes import shutdown
from torchdata._observe.outside import attaching, stalls
from torchdata.dataloader2 import DataLoader2
from waiting import wait_for

COUNT = 30
TIMEOUT = 0.5
_BEFORE_BLOCKS = 4096 + (256 << 10) + 8 * 4096
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-s \S+ \S+ \S+\s+/memfd:torchdata(\S*)")
_TARGETS = ("links", "bells", "counters", "stacks", "any")


def _mappings():
    with open("/proc/self/maps") as maps:
        found = [_MAPPING.match(line) for line in maps]
    for one in filter(None, found):
        first, length = int(one[1], 16), int(one[2], 16) - int(one[1], 16)
        kind = "counters" if one[3] == "-stats" else "bells" if length <= 16384 else "links"
        yield first, min(length, _BEFORE_BLOCKS) if kind == "links" else length, kind


def _stacks():
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:torchdata-stacks"):
                yield int(name)
        except OSError:
            continue


class Scribbler:
    def __init__(self, seed, target, most):
        self.seed, self.target, self.most = seed, target, most

    def scribble(self, salt):
        rng = random.Random(f"{self.seed} {salt}")
        if self.target == "stacks" or (self.target == "any" and rng.random() < 0.1):
            for descriptor in _stacks():
                os.pwrite(descriptor, rng.randbytes(rng.randrange(1, 200)), rng.randrange(64))
            return
        found = [one for one in _mappings() if self.target in ("any", one[2])]
        if not found:
            return
        first, length, _ = rng.choice(found)
        for _ in range(rng.randrange(1, self.most + 1)):
            # Most writes hit the beginning of a memory page, which contains headers and the current messages of a ring.
            page = rng.choice([0, 0, 1, rng.randrange(1 + length // 4096)])
            offset = (4096 * page + rng.randrange(rng.choice([768, 1600, 4096]))) % length
            size = min(rng.choice([1, 4, 8, 64, 512]), length - offset)
            written = rng.choice([rng.randbytes(size), bytes(size), b"\xff" * size])
            ctypes.memmove(first + offset, written, size)


class Scribbles:
    def __init__(self, scribbler, at):
        self.scribbler, self.at = scribbler, at

    def __call__(self, x):
        if x in self.at:
            self.scribbler.scribble(x)
        return x


def opened_by(plan):
    options = {"function": plan.function, "count": COUNT, "timeout": TIMEOUT}
    if plan.family not in ("DataLoader2", "dispatching"):
        return FAMILIES[plan.family]("fork", **options)
    options |= {"worker_prefetch_cnt": 10, "main_prefetch_cnt": 10, "stall_warning": 0.2}
    options["on_worker_exit"] = "restart" if plan.restarts else "error"
    return FAMILIES["DataLoader2"]("fork", dispatches=plan.family == "dispatching", **options)


class Plan:
    def __init__(self, seed):
        rng = random.Random(f"scribbles {seed}")
        self.seed = seed
        self.family = rng.choice(["DataLoader2", "DataLoader2", "dispatching", *list(FAMILIES)[1:]])
        self.target = rng.choice(_TARGETS)
        self.restarts = rng.random() < 0.2
        self.by_main = rng.random() < 0.2
        self.scribbler = Scribbler(seed, self.target, rng.choice([1, 1, 8, 100]))
        at = {rng.randrange(COUNT)} if rng.random() < 0.6 else {x for x in range(COUNT) if rng.random() < 0.5}
        self.at = at
        self.function = identity if self.by_main else Scribbles(self.scribbler, at)
        self.looks = rng.random()

    def __repr__(self):
        by = "by main, " * self.by_main + "with restarts, " * self.restarts
        return f"seed {self.seed}: {self.family}, {self.target}, {by}at {sorted(self.at)}"


def check(plan):
    timeouts = shutdown.ASKED, stalls.STALL
    shutdown.ASKED, stalls.STALL = 0.3, 0.2
    raised = []
    before = sys.unraisablehook, threading.excepthook
    sys.unraisablehook = threading.excepthook = lambda one: raised.append(repr(one.exc_value))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole = _run(plan)
            gc.collect()
    finally:
        shutdown.ASKED, stalls.STALL = timeouts
        sys.unraisablehook, threading.excepthook = before
    assert not raised, raised
    wait_for(lambda: not children(), 10)
    return whole


def _run(plan):
    opened = opened_by(plan)
    rng = random.Random(plan.seed)
    got, whole = [], False
    try:
        for x in opened.items:
            got.append(x)
            if plan.by_main and len(got) in plan.at:
                plan.scribbler.scribble(len(got))
            if rng.random() < plan.looks / 4:
                _look(opened)
        whole = True
    except Exception as error:  # damaged memory may cause any error, except in `_look`
        if isinstance(error, _LookingError):
            raise
    assert got == list(range(COUNT))[: len(got)], got
    assert not whole or len(got) == COUNT, got
    if plan.looks < 0.7:
        _look(opened)
    if plan.looks < 0.1:
        for attached in attaching.find(os.getpid()):
            attached.stacks()
    opened.close()
    _look(opened)
    return whole


class _LookingError(Exception):
    """Raised if a function that observes a loader fails."""


def _look(opened):
    try:
        if isinstance(opened.loader, DataLoader2):
            str(opened.loader.stats())
            str(opened.loader.diagnose())
        for attached in attaching.find(os.getpid()):
            str(attached.stats())
    except Exception as error:
        raise _LookingError from error


DRIVER = Driver(lambda seed, _: Plan(seed), check, "whole epochs", is_quiet=lambda _: False)  # workers print errors
