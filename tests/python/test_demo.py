"""The demo, run as users run it: in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_the_demo_trains_to_its_goal_and_reuses_its_shards(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    arguments = ["-m", "torchdata.demo", "--data-dir", str(tmp_path), "--photographs", "4"]
    first = run(*arguments)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "order: the same in two runs with the same seed, another in every epoch" in first.stdout
    assert first.stderr == "", "no progress bar where nobody looks"
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tar")}
    assert len(written) == 14
    second = run(*arguments)
    assert second.returncode == 0, second.stdout + second.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == written


@pytest.mark.parametrize(
    ("module", "package"), [("sklearn", "scikit-learn"), ("PIL", "Pillow"), ("tqdm", "tqdm")]
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(module: str, package: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; from torchdata.demo.__main__ import main; sys.exit(main([]))"
    result = run("-c", code)
    assert result.returncode == 2
    assert f"the demo needs {package}" in result.stderr
    assert "pip install 'torchdata-rs[demo]'" in result.stderr
