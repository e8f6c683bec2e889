"""Gives random malicious input to the readers of files and formats (`make fuzz-files`).

A *target* is a function that creates an input from a `random.Random`, reads it, and checks the result. An exception
that the reader does not document is a finding. Reading may take at most `LONGEST` seconds, and `MOST_MEMORY` bytes. The
printed command, with the number of the input and the target's name, reproduces a finding."""

import argparse
import contextlib
import faulthandler
import importlib.util
import itertools
import random
import resource
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from drivers.frame import Driver

MODULES = ("fuzz_archives", "fuzz_states")

LONGEST = 20

MOST_MEMORY = 256 << 10

Target = Callable[[random.Random], None]

#: Numbers near powers of two, which often reveal errors in code that reads files.
_EDGES = [
    sign * (1 << bits) + more for bits in (0, 7, 8, 15, 16, 31, 32, 63) for sign in (1, -1) for more in (-1, 0, 1)
]


def mutated(rng: random.Random, data: bytes, most: int = 4) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, most)):
        if not changed:
            return rng.randbytes(rng.randint(0, 40))
        offset = rng.randrange(len(changed))
        end = min(len(changed), offset + rng.choice((1, 2, 8, 64, 512)))
        match rng.randrange(8):
            case 0:
                changed[offset] ^= 1 << rng.randrange(8)
            case 1:
                changed[offset] = rng.choice(b"\0\xff\x80\x7f\n/.0 9-=")
            case 2:
                changed[offset:end] = rng.randbytes(end - offset)
            case 3:
                del changed[offset:]
            case 4:
                del changed[offset:end]
            case 5:
                changed[offset:offset] = changed[offset:end] * rng.choice((1, 2, 50))
            case 6:
                size, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
                changed[offset : offset + size] = (rng.choice(_EDGES) % 256**size).to_bytes(size, order)
            case 7:
                other = rng.randrange(len(changed))
                changed[other : other + end - offset] = changed[offset:end]
    return bytes(changed)


def targets() -> dict[str, Target]:
    found: dict[str, Target] = {}
    for name in MODULES:
        if importlib.util.find_spec(name) is not None:
            found.update(importlib.import_module(name).TARGETS)
    return found


def check(name: str, target: Target, number: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with _limited(LONGEST):
        target(random.Random(f"{name}-{number}"))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < MOST_MEMORY, f"the process grew by {grown >> 10} MiB"


@contextlib.contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise AssertionError(f"the target took longer than {seconds} s")

    previous = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    faulthandler.dump_traceback_later(3 * seconds, exit=True)  # C or Rust code may block the alarm
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@dataclass
class Inputs:
    numbers: range
    targets: dict[str, Target]


def plan_of(number: int, options: argparse.Namespace) -> Inputs:
    parts = options.targets.split(",")
    chosen = {name: one for name, one in targets().items() if any(part in name for part in parts)}
    return Inputs(range(10 * number, 10 * number + 10), chosen)


def check_inputs(plan: Inputs) -> int:
    for number, (name, target) in itertools.product(plan.numbers, plan.targets.items()):
        try:
            check(name, target, number)
        except Exception as error:
            error.add_note(f"target {name}, input {number}")
            raise
    return len(plan.numbers) * len(plan.targets)


DRIVER = Driver(
    plan_of,
    check_inputs,
    "inputs",
    is_quiet=lambda _: False,
    more=lambda parser: parser.add_argument("--targets", default="", help="parts of target names, with commas"),
)
