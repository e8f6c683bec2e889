"""Extracts the code blocks of a Markdown page, and runs them as a reader would who follows the page from its top.

From top to bottom, the Python blocks of a page form one program. The `text` block below a Python block contains the
output. A Python block without a `text` block must print nothing. A comment above a block changes how the block is run:

    <!-- alone -->              runs the block as a separate program
    <!-- not run: REASON -->    skips the block
"""

import multiprocessing
import os
import re
import subprocess
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from fresh_processes import EXAMPLES, python_path, run_program, run_python, with_torch, without_torch

_END = "\x1e"
_GUARD = 'if __name__ == "__main__":'
NEEDS_TORCH = re.compile(
    r"^ *(import (torch|webdataset)\b|from (torch|torchdata\.(nodes|stateful_dataloader))(\.\w+)* import )", re.M
)
_NOTEBOOK = "import pathlib, sys; exec(compile(pathlib.Path(sys.argv[1]).read_bytes(), sys.argv[1], 'exec'))"


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    code: str
    comment: str = ""

    @property
    def reason(self) -> str | None:
        return self.comment.removeprefix("not run:").strip() if self.comment.startswith("not run:") else None


@dataclass(frozen=True)
class Example:
    block: Block
    shown: str


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    comment, opened, lines = "", None, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if opened is None:
            if fence := re.fullmatch(r"```(\S*).*", line):
                opened, lines = (number, fence[1]), []
            elif remark := re.fullmatch(r"<!-- (.*) -->", line):
                comment = remark[1]
            elif line.strip():
                comment = ""
        elif line == "```":
            found.append(Block(*opened, "".join(f"{one}\n" for one in lines), comment))
            opened, comment = None, ""
        else:
            lines.append(line)
    assert opened is None, f"{page}: the block at line {opened} is not closed"
    return found


def examples(page: Path) -> list[Example]:
    found = blocks(page)
    return [
        Example(block, after.code if after and after.language == "text" and not after.comment else "")
        for block, after in zip_longest(found, found[1:])
        if block.language == "python" and block.reason is None
    ]


def _run(program: list[Example], script: Path) -> subprocess.CompletedProcess[str]:
    codes = [example.block.code for example in program]
    # webdataset leaves files open until the interpreter exits, which causes a ResourceWarning.
    ignored = "ResourceWarning" if any("import webdataset" in code for code in codes) else None
    first = next((number for number, code in enumerate(codes) if NEEDS_TORCH.search(code)), None)
    if how := _how(program):
        path = os.pathsep.join((python_path(), EXAMPLES))
        return run_python("-W", "error", *how, script, folder=script.parent, PYTHONPATH=path)
    # If a program calls `collate` before it imports torch, the server must not import torch, so `collate` makes arrays.
    imports_torch = first is not None and not any("collate(" in code for code in codes[:first])
    return run_program(script, ignored=ignored, server=with_torch() if imports_torch else without_torch())


def _how(program: list[Example]) -> list[str]:
    guarded = all(_GUARD in example.block.code for example in program)
    return [] if guarded or multiprocessing.get_all_start_methods()[0] == "fork" else ["-c", _NOTEBOOK]


def printed(page: Path, folder: Path) -> list[str]:
    texts = {}
    together = [example for example in examples(page) if example.block.comment != "alone"]
    programs = [[example] for example in examples(page) if example.block.comment == "alone"]
    for number, program in enumerate([*programs, together]):
        if not program:
            continue
        script = folder / f"{page.stem}_{number}.py"
        end = f'\n{_GUARD}\n    print("{_END}", end="", flush=True)\n'
        script.write_text("".join(one.block.code + end for one in program), encoding="utf-8")
        run = _run(program, script)
        assert (run.returncode, run.stderr) == (0, ""), f"{page}: {run.stdout}\n{run.stderr}"
        parts = run.stdout.split(_END)[:-1]
        assert len(parts) == len(program)
        texts.update({one.block.line: part for one, part in zip(program, parts, strict=True)})
    return [texts[example.block.line] for example in examples(page)]
