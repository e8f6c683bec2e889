"""Runs random programs with this Python, and optionally with a second Python, and counts the programs that pass."""

import argparse
import contextlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from drivers.frame import Driver
from fresh_processes import FreshProcesses


@dataclass
class Verdict:
    seed: int
    category: str
    words: str
    wrong: str = ""
    unknowable: str = ""
    known: dict[str, Any] = field(default_factory=dict)
    unlike: str | None = None

    @property
    def shown(self) -> str:
        return "" if self.unknowable else self.wrong or self.unlike or ""


class Wrong(Exception):
    """Raised if a random program has failed."""


class Judge:
    modules: tuple[str, ...]
    start_methods: Sequence[str] = ("fork",)

    def __init__(self, python: str = sys.executable, limit: float = 30.0, server: FreshProcesses | None = None) -> None:
        self._is_own = server is None
        self._runs = server or FreshProcesses(python=python, limit=limit)
        self._runs.imports(*self.modules)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._is_own:
            self._runs.__exit__(kind, error, tb)

    def call(self, phase: str, function: str, /, **arguments: Any) -> Any:
        try:
            return self._runs.call(f"{self.modules[0]}:{function}", **arguments)
        except RuntimeError as error:
            raise Wrong(f"{phase}: {error}") from error

    def judge(self, seed: int) -> Verdict:
        raise NotImplementedError


def without(epoch: list[Any], received: list[Any], in_order: bool) -> list[Any]:
    if in_order:
        return epoch[len(received) :]
    left = Counter(map(json.dumps, epoch))
    left.subtract(map(json.dumps, received))
    return [json.loads(item) for item in left.elements()]


def difference(found: list[Any], expected: list[Any], in_order: bool, cut: bool = False) -> str:
    if len(found) != len(expected):
        return f"{len(found)} epochs instead of {len(expected)}"
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        ending = cut and number == len(found) - 1
        if in_order:
            alike = one == (other[: len(one)] if ending else other)
        else:
            left, right = Counter(map(json.dumps, one)), Counter(map(json.dumps, other))
            alike = left <= right if ending else left == right
        if not alike:
            return f"epoch {number} of these: {shown(one)} instead of {shown(other)}"
    return ""


def shown(epoch: list[Any]) -> str:
    text = json.dumps(epoch).replace(".0,", ",").replace(".0]", "]")
    return text if len(text) < 200 else f"{text[:200]}… ({len(epoch)})"


def table(columns: dict[str, list[Verdict]], categories: tuple[str, ...]) -> list[str]:
    lines = []
    for category in [*categories, "all"]:
        cells = []
        for name, verdicts in columns.items():
            of_it = [one for one in verdicts if not one.unknowable and category in (one.category, "all")]
            cells.append(f"{name} {sum(not one.wrong for one in of_it)} of {len(of_it)}")
        lines.append(f"{category:35} " + ", ".join(f"{cell:22}" for cell in cells))
    return lines


def unknown(verdicts: list[Verdict]) -> list[str]:
    reasons = Counter(one.unknowable for one in verdicts if one.unknowable)
    lines = [f"  programs that cannot be compared: {sum(reasons.values())}"]
    for reason, count in reasons.most_common():
        exact = sum(not one.wrong for one in verdicts if one.unknowable == reason)
        lines.append(f"    {count}, of which {exact} were exact: {reason}")
    return lines


def driver_of(
    judge: Callable[[str, float], Judge],
    categories: tuple[str, ...],
    more: Callable[[list[Verdict]], list[str]] = lambda verdicts: [],
    phase_limit: float = 30.0,
) -> Driver:
    judges: dict[str, Judge] = {}
    columns: dict[str, list[Verdict]] = {}

    @contextlib.contextmanager
    def around(options: argparse.Namespace) -> Iterator[None]:
        pythons = {"ours": sys.executable} | ({"upstream": options.upstream} if options.upstream else {})
        with contextlib.ExitStack() as stack:
            for name, python in pythons.items():
                judges[name], columns[name] = stack.enter_context(judge(python, phase_limit)), []
                judges[name].start_methods = options.start_methods.split(",")
            yield
        print("\n".join(table(columns, categories)))
        for name, verdicts in columns.items():
            print("\n".join([f"{name}:", *more(verdicts), *unknown(verdicts)]))

    def check(seed: int) -> int:
        with ThreadPoolExecutor(len(judges)) as pool:
            found = list(pool.map(lambda one: one.judge(seed), judges.values()))
        for name, verdict in zip(judges, found, strict=True):
            columns[name].append(verdict)
        ours, *theirs = found
        if ours.shown:
            upstream = "".join(f" (upstream: {one.unknowable or one.shown or 'exact'})" for one in theirs)
            raise Wrong(f"{ours.category}: {ours.words}\n    {ours.shown}{upstream}")
        return 1

    def options_of(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--upstream", help="an interpreter with another torchdata, which runs the same programs")

    # The driver need not fork, because each program already runs in a new process.
    return Driver(lambda seed, _: seed, check, "programs", limit=1000.0, around=around, forks=False, more=options_of)
