"""Compares the resumed run of a program with an uninterrupted run."""

import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from comparing import Judge, Verdict, Wrong, difference, driver_of, without
from random_stateful import exits
from random_stateful.programs import CATEGORIES, Program, program_of


class StatefulJudge(Judge):
    modules = "random_stateful.running", "torchdata.stateful_dataloader"

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="random_stateful")
        self.folder, self.exits = self._folder.name, 0
        super().__init__(*arguments, **more)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._folder.cleanup()

    def judge(self, seed: int, found: dict[str, Any] | None = None, **more: Any) -> Verdict:
        program = program_of(seed)
        verdict = Verdict(seed, program.category, program.words())
        try:
            self._judge(program, verdict, found or self.phase(program, "whole"), more)
        except Wrong as wrong:
            verdict.wrong = str(wrong)
        return verdict

    def phase(self, program: Program, phase: str, **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.call(phase, "run", seed=program.seed, phase=phase, **more)
        self.exits += found["known"].get("exits", 0)
        return found

    def _judge(self, program: Program, verdict: Verdict, found: dict[str, Any], more: dict[str, Any]) -> None:
        first, second = (Path(self.folder) / name for name in ("first", "second"))
        verdict.unknowable = program.unknowable(over=program.stop_at == "end")
        whole, skipped = found["epochs"], found["skipped"]
        stop = self.phase(program, "stop", batches=len(whole[program.stop_epoch]), target=first, **more)
        verdict.known, before = stop["known"], stop["epochs"]
        taken, over = verdict.known["taken"], verdict.known["over"]
        verdict.unknowable = program.unknowable(over)
        if program.seeds == "none":
            whole, skipped = before, stop["skipped"]
        elif different := difference(before, whole[: len(before)], program.in_order, cut=True):
            raise Wrong(f"two runs differ before the stop: {different}")
        if program.relayed:
            self.phase(program, "relay", source=first, target=second)
            first = second
        next_epoch = program.stop_epoch + over
        try:
            resumed = self.phase(program, "resume", source=first, first=next_epoch, **more)
        except Wrong as wrong:
            if program.later_batch is None or "or save a state between two epochs" not in str(wrong):
                raise
            verdict.unknowable = "the position is a number of batches, so the state cannot be loaded"
            return
        rest = resumed["epochs"]
        expected = whole[next_epoch:]
        if program.later_workers_matter(next_epoch):
            expected = self.phase(program, "whole", workers=program.later_workers)["epochs"][next_epoch:]
        if not over:
            received = before[program.stop_epoch][:taken] if taken else []
            expected = [without(expected[0], received, program.in_order), *expected[1:]]
        if program.is_shared_again:
            rest, expected = rest[:1], expected[:1]
        if program.later_batch is not None:
            expected = in_batches(expected, program.later_batch)
        if different := difference(rest, expected, program.in_order):
            raise Wrong(f"after the state: {different}")
        compared = 1 if program.is_shared_again else None
        check_skipped(program, resumed["skipped"][:compared], skipped[next_epoch:][:compared])
        if program.compared_with_torch and program.has_torch_s_order:
            theirs = self.phase(program, "torch")["epochs"]
            different = difference(whole, theirs, program.in_order)
            verdict.unlike = different and f"torch's loader yields other samples: {different}"


def in_batches(epochs: list[Any], size: int) -> list[Any]:
    flat = [[sample for batch in epoch for sample in batch] for epoch in epochs]
    return [[samples[start : start + size] for start in range(0, len(samples), size)] for samples in flat]


def check_skipped(program: Program, found: list[Any], expected: list[Any]) -> None:
    if found != expected and (program.in_order or not program.breaks):
        raise Wrong(f"skipped {found} instead of {expected}")


def of_states(verdicts: list[Verdict]) -> list[str]:
    torch = [one for one in verdicts if one.unlike is not None]
    shown = [one.known for one in verdicts if "json" in one.known]
    sizes = [one["size"] for one in shown] or [0]
    return [
        f"  epochs of torch's loader: {sum(not one.unlike for one in torch)} of {len(torch)}",
        f"  states that are JSON: {sum(one['json'] for one in shown)} of {len(shown)},"
        f" that are equal when requested twice: {sum(one['alike'] for one in shown)},"
        f" bytes in the median: {statistics.median(sizes):.0f}, at most {max(sizes)}",
    ]


DRIVER = driver_of(StatefulJudge, CATEGORIES, of_states)


class ExitsJudge(StatefulJudge):
    def judge(self, seed: int, *_: Any, **__: Any) -> Verdict:
        program = program_of(seed)
        verdict = Verdict(seed, program.category, program.words(), unknowable=exits.unknowable(program))
        before = self.exits
        try:
            exits.check(super(), seed, random.Random(seed).choice(self.start_methods))
        except Wrong as wrong:
            verdict.wrong = str(wrong)
        verdict.known["exits"] = self.exits - before
        return verdict


def of_exits(verdicts: list[Verdict]) -> list[str]:
    return [f"  exits of workers: {sum(one.known['exits'] for one in verdicts)}"]


EXITS = driver_of(ExitsJudge, CATEGORIES, of_exits, phase_limit=240.0)
