"""The demo runs without errors in a separate process, as a user's program does."""

import importlib.util
import os
import re
from pathlib import Path

import pytest

import demo.__main__
from demo.data import write_photographs
from fresh_processes import EXAMPLES, python_path, run_python
from needing import needs


def test_the_demo_trains_survives_a_killed_worker_and_resumes(tmp_path: Path) -> None:
    needs("sklearn", "the demo trains with sklearn")
    arguments = ["-m", "demo", "--data-dir", str(tmp_path), "--photographs", "128", "--batch-size", "8"]
    found = run_python(*arguments, PYTHONPATH=os.pathsep.join((python_path(), EXAMPLES)))
    assert found.returncode == 0, found.stdout + found.stderr
    losses = [float(loss) for loss in re.findall(r"^epoch \d: loss ([\d.]+), [\d.]+% correct, ", found.stdout, re.M)]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True), "it learns"
    assert re.search(r"^test: the model classifies (9[1-9]|100)\.\d% of other crops correctly", found.stdout, re.M)
    assert "1 new worker replaced it; 128 of 128 images arrived, in the same order" in found.stdout
    assert re.search(r"^resume: .* returned the other 8 batches, with identical pixels$", found.stdout, re.M)
    assert re.search(r"^verdict: ", found.stdout, re.M)
    if importlib.util.find_spec("torch") is not None:
        assert len(re.findall(r"images/s \(torch's DataLoader: [\d,]+\)$", found.stdout, re.M)) == 3
        assert re.search(r"verdict: [\d.]+ times as fast as torch's DataLoader with the same number", found.stdout)
    assert len(found.stdout.splitlines()) <= 10, "few lines"
    assert found.stderr == ""
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert len(written) == 16
    write_photographs(tmp_path, 128)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == written


def test_without_torch_the_bench_reports_that_there_is_nothing_to_compare_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs("sklearn", "the demo trains with sklearn")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "torch" else find(name, *more))
    demo.__main__.main(["--data-dir", str(tmp_path), "--photographs", "16", "--epochs", "1", "--batch-size", "4"])
    assert "torch is not installed, so its DataLoader was not measured" in capsys.readouterr().out
