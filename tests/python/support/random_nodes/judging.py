"""Compares the runs of a random program over nodes."""

import tempfile
from pathlib import Path
from typing import Any

from comparing import Judge, Verdict, Wrong, difference, driver_of, without
from random_nodes.graphs import CATEGORIES
from random_nodes.programs import Program, program_of


class NodesJudge(Judge):
    modules = "random_nodes.running", "torchdata.nodes"

    def __init__(self, *arguments: Any, processes: bool = False, **more: Any) -> None:
        self.processes, self.positions = processes, 0
        super().__init__(*arguments, **more)

    def judge(self, seed: int) -> Verdict:
        program = program_of(seed, self.processes)
        verdict = Verdict(seed, "lists and pipes", f"seed {seed}")
        try:
            described = self._run(program, "described")
            verdict.category, verdict.words = described["category"], described["words"]
            with tempfile.TemporaryDirectory(prefix="random_nodes") as folder:
                self._judge(program, described, Path(folder))
        except Wrong as wrong:
            verdict.wrong = str(wrong)
            if "ImportError" in verdict.wrong or "has no attribute" in verdict.wrong:
                verdict.unknowable = "its nodes are not in this torchdata"
        return verdict

    def _run(self, program: Program, phase: str, **more: Any) -> Any:
        return self.call(phase, phase, seed=program.seed, processes=self.processes, **more)

    def _judge(self, program: Program, described: dict[str, Any], folder: Path) -> None:
        whole = self._run(program, "whole", threads=True)
        if not described["shows_reading_ahead"]:
            plain = self._run(program, "whole", threads=False)
            if different := self._different(program, whole, plain, 0):
                raise Wrong(f"differs from the same nodes without threads: {different}")
        if described["category"] == "nodes without checkpoints":
            return
        before = self._run(program, "saving", target=folder)
        if different := difference(before[-1:], whole[program.stop_epoch : program.stop_epoch + 1], program.in_order):
            raise Wrong(f"while states are saved: {different}")
        count = len(before[-1])
        for position in sorted({round(share * count) for share in program.resumed}):
            self.positions += 1
            self._resume(program, whole, before[-1], position, folder)

    def _resume(self, program: Program, whole: list[Any], items: list[Any], position: int, folder: Path) -> None:
        over = position == len(items)
        rest = self._run(program, "resumed", source=folder / str(position), over=over, left=len(items) - position)
        expected = whole[program.stop_epoch + over :]
        if not over:
            expected = [without(expected[0], items[:position], program.in_order), *expected[1:]]
        if different := self._different(program, rest, expected, program.stop_epoch + over):
            raise Wrong(f"after the state at {position} of {len(items)}: {different}")

    def _different(self, program: Program, found: list[Any], expected: list[Any], first: int) -> str:
        if not program.in_order and len(found) == len(expected):
            whole = [number for number in range(len(found)) if first + number not in program.breaks]
            found, expected = [found[number] for number in whole], [expected[number] for number in whole]
        return difference(found, expected, program.in_order)


DRIVER = driver_of(NodesJudge, CATEGORIES)
