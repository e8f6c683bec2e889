"""Compares the runs of a random program: what came behind its state with what comes without a stop."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from fresh_processes import FreshProcesses
from random_stateful.programs import Program, program_of


@dataclass
class Verdict:
    """What became of a program."""

    program: Program
    #: In which way it was wrong, or nothing.
    wrong: str = ""
    #: What is told about its state.
    known: dict[str, Any] = field(default_factory=dict)
    #: Why no loader can be right, or nothing.
    unknowable: str = ""
    #: In which way torch's own loader gave other epochs, if that was asked for.
    unlike_torch: str | None = None


class Judge:
    """Runs programs under a Python interpreter.

    Args:
        python: the interpreter.
        limit: seconds after which a run counts as hung.
    """

    def __init__(self, python: str = sys.executable, limit: float = 30.0) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="random_stateful")
        self._processes = FreshProcesses(
            "random_stateful.running", "torchdata.stateful_dataloader", python=python, limit=limit
        )

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._processes.__exit__(kind, error, tb)
        self._folder.cleanup()

    def judge(self, seed: int) -> Verdict:
        """Runs the program of a seed in all its phases."""
        program = program_of(seed)
        verdict = Verdict(program)
        try:
            self._judge(program, verdict)
        except _Failed as failed:
            verdict.wrong = str(failed)
        return verdict

    def _phase(self, program: Program, phase: str, **more: Any) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._processes.call(
                "random_stateful.running:run", seed=program.seed, phase=phase, **more
            )
        except RuntimeError as error:
            raise _Failed(f"{phase}: {error}") from error
        return found

    def _judge(self, program: Program, verdict: Verdict) -> None:
        first, second = (Path(self._folder.name) / name for name in ("first", "second"))
        whole = self._phase(program, "whole")["epochs"]
        stop = self._phase(program, "stop", batches=len(whole[program.stop_epoch]), target=first)
        verdict.known, before = stop["known"], stop["epochs"]
        taken, over = verdict.known["taken"], verdict.known["over"]
        verdict.unknowable = program.unknowable(over)
        if program.seeds == "none":
            whole = before
        elif different := difference(program, before, whole[: len(before)], cut=True):
            raise _Failed(f"two runs differ before the stop: {different}")
        if program.relayed:
            self._phase(program, "relay", source=first, target=second)
            first = second
        next_epoch = program.stop_epoch + over
        rest = self._phase(program, "resume", source=first, first=next_epoch)["epochs"]
        expected = whole[next_epoch:]
        if not over:
            given = before[program.stop_epoch][:taken] if taken else []
            expected = [without(program, expected[0], given), *expected[1:]]
        if different := difference(program, rest, expected):
            raise _Failed(f"behind the state: {different}")
        if program.beside_torch and program.has_torch_s_order:
            torch = self._phase(program, "torch")
            verdict.unlike_torch = difference(program, whole, torch["epochs"])


class _Failed(Exception):
    """A program that was wrong."""


def without(program: Program, epoch: list[Any], given: list[Any]) -> list[Any]:
    """An epoch without the batches that were given before the stop."""
    if program.in_order:
        return epoch[len(given) :]
    left = Counter(map(json.dumps, epoch))
    left.subtract(map(json.dumps, given))
    return [json.loads(batch) for batch in left.elements()]


def difference(program: Program, found: list[Any], expected: list[Any], cut: bool = False) -> str:
    """In which epoch what was found differs from what was expected, and how, or nothing.

    Args:
        program: says whether batches come in order.
        found: epochs as lists of batches.
        expected: the same.
        cut: whether the last epoch that was found may lack its end.
    """
    if len(found) != len(expected):
        return f"{len(found)} epochs for {len(expected)}"
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        ending = cut and number == len(found) - 1
        if program.in_order:
            alike = one == (other[: len(one)] if ending else other)
        else:
            left, right = Counter(map(json.dumps, one)), Counter(map(json.dumps, other))
            alike = left <= right if ending else left == right
        if not alike:
            return f"epoch {number} of these: {shown(one)} for {shown(other)}"
    return ""


def shown(epoch: list[Any]) -> str:
    """An epoch in few words."""
    text = json.dumps(epoch).replace(".0,", ",").replace(".0]", "]")
    return text if len(text) < 200 else f"{text[:200]}… ({len(epoch)} batches)"
