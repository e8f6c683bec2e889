"""The functional forms as type checkers see them: the written stub is up to date, and chains of forms have types."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchdata

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(torchdata.__file__).resolve().parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}

SAMPLE = """
from collections.abc import Iterator
from torchdata.datapipes import functional_datapipe
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.map import SequenceWrapper

numbers = IterableWrapper([1, 2, 3])
reveal_type(numbers.map(str).batch(2))
reveal_type(numbers.filter(bool).shuffle(buffer_size=3).sharding_filter().prefetch(2))
reveal_type(numbers.map(str).shuffle().set_seed(1))
reveal_type(numbers.fork(2))
reveal_type(numbers.demux(2, lambda n: n % 2)[0].map(str))
reveal_type(numbers.unzip(sequence_length=2)[1].batch(3))
reveal_type(SequenceWrapper(["a"]).map(str.upper).batch(2))
reveal_type(SequenceWrapper(["a"]).shuffle())
reveal_type(SequenceWrapper(["a"]).to_iter_datapipe().enumerate())
reveal_type(numbers.to_map_datapipe(lambda n: (n, n)).in_memory_cache())
for number in numbers.cycle(2):
    reveal_type(number)

pipe = numbers.map(str)
pipe = pipe.batch(2)
pipe = pipe.filter(bool).unbatch()

@functional_datapipe("halved")
class Halver(IterDataPipe[float]):
    def __init__(self, source_datapipe: IterDataPipe[int]) -> None:
        self.source_datapipe = source_datapipe

    def __iter__(self) -> Iterator[float]:
        for number in self.source_datapipe:
            yield number / 2

reveal_type(Halver(numbers).batch(2))
reveal_type(numbers.halved())
"""

REVEALED = """
IterDataPipe[Any]
IterDataPipe[int]
Any
list[IterDataPipe[int]]
IterDataPipe[Any]
IterDataPipe[Any]
MapDataPipe[Any]
IterDataPipe[str]
IterDataPipe[Any]
MapDataPipe[Any]
int
IterDataPipe[Any]
Any
"""

MISTAKES = [
    ("numbers.batch(size=2)", 'Unexpected keyword argument "size"'),
    ('numbers.batch("2")', 'has incompatible type "str"; expected "int"'),
    ("numbers.batch()", 'Missing positional argument "batch_size"'),
    ("numbers.map(3)", 'has incompatible type "int"'),
    ("numbers.map(str).shuffle(7)", "Too many positional arguments"),
    ("numbers.groupby(str.upper)", "incompatible type"),
    ("words.batch(2, wrapper_class=3)", 'has incompatible type "int"'),
]


def checked(code: str, folder: Path) -> list[str]:
    """What mypy says about the code, one message a line."""
    pytest.importorskip("mypy", reason="mypy is a tool of development")
    sample = folder / "sample.py"
    sample.write_text(code, encoding="utf-8")
    # One cache for all runs of the tests, as the package itself takes longest.
    cache = ROOT / ".mypy_cache" / "samples"
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        str(cache),
        "--no-error-summary",
        str(sample),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=folder, env=ENVIRONMENT)
    assert run.stderr == ""
    return [line for line in run.stdout.splitlines() if line]


def test_the_stub_is_what_make_stubs_would_write() -> None:
    command = [sys.executable, str(ROOT / "tools/typed_forms.py"), "--print"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, env=ENVIRONMENT)
    assert (run.returncode, run.stderr) == (0, "")
    stub = (PACKAGE / "datapipes/_forms.pyi").read_text(encoding="utf-8")
    assert stub == run.stdout, "the functional forms have changed: run `make stubs`"


def test_chains_of_forms_have_types_and_can_be_assigned_line_by_line(tmp_path: Path) -> None:
    notes = checked(SAMPLE, tmp_path)
    assert [note for note in notes if "Revealed type" not in note] == []
    revealed = [re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", note.split('"')[1]) for note in notes]
    assert revealed == REVEALED.split()


def test_wrong_arguments_of_forms_are_errors(tmp_path: Path) -> None:
    head = [
        "from torchdata.datapipes.iter import IterableWrapper",
        "from torchdata.datapipes.map import SequenceWrapper",
        "numbers = IterableWrapper([1, 2, 3])",
        "words = SequenceWrapper(['a'])",
    ]
    found = checked("\n".join([*head, *(code for code, _ in MISTAKES)]), tmp_path)
    errors = {int(line.split(":")[1]): line for line in found if ": error:" in line}
    assert sorted(errors) == list(range(len(head) + 1, len(head) + 1 + len(MISTAKES)))
    for line, (code, message) in enumerate(MISTAKES, len(head) + 1):
        assert message in errors[line], code
