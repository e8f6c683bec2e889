"""The demo, run as users run it: in a process of its own."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchdata.demo.train import Softmax, epoch


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


def test_the_demo_trains_to_its_goal_and_reuses_its_shards(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    arguments = ["-m", "torchdata.demo", "--data-dir", str(tmp_path), "--photographs", "4"]
    first = run(*arguments)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "order: the same in two runs with the same seed, another in every epoch" in first.stdout
    epochs = re.findall(r"^epoch (\d): loss ([\d.]+), accuracy ([\d.]+)%", first.stdout, re.M)
    assert [number for number, _, _ in epochs] == ["1", "2", "3"]
    losses, accuracies = (
        [float(loss) for _, loss, _ in epochs],
        [float(accuracy) for _, _, accuracy in epochs],
    )
    assert losses == sorted(losses, reverse=True), "it learns"
    assert 0 < accuracies[0] < accuracies[-1] <= 100
    waited = re.search(r"main waited for data (\d+)% of the time \(([\d.]+) of ([\d.]+) s\)", first.stdout)
    assert waited is not None
    assert 0 <= int(waited[1]) <= 100
    assert float(waited[2]) <= float(waited[3])
    assert first.stderr == "", "no progress bar where nobody looks"
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tar")}
    assert len(written) == 14
    second = run(*arguments)
    assert second.returncode == 0, second.stdout + second.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == written


def test_the_time_that_main_waits_for_data_is_told_from_the_time_that_it_trains() -> None:
    numpy = pytest.importorskip("numpy")
    batch = {"name": ["a", "b"], "label": numpy.array([0, 1]), "image": numpy.zeros((2, 2, 2), "uint8")}

    def slowly() -> Iterator[dict[str, Any]]:
        for _ in range(3):
            time.sleep(0.05)
            yield batch

    class Slow(Softmax):
        def step(self, images: Any, labels: Any) -> tuple[float, int]:
            time.sleep(0.1)
            return super().step(images, labels)

    result = epoch(slowly(), 6, "slow", Slow(pixels=4, classes=2))
    assert result.count == 6
    assert 0.15 <= result.waited <= result.seconds - 0.3
    assert result.loss == pytest.approx(math.log(2)), "of two classes that are equally likely"
    assert result.accuracy == 0.5


def test_help_is_for_users_and_wrong_numbers_are_told() -> None:
    shown = run("-m", "torchdata.demo", "--help")
    assert shown.returncode == 0
    assert "Role:" not in shown.stdout
    assert "under spawn" not in shown.stdout
    wrong = run("-m", "torchdata.demo", "--epochs", "0")
    assert wrong.returncode == 2
    assert "argument --epochs: 0 is below 1" in wrong.stderr


@pytest.mark.parametrize(("module", "package"), [("sklearn", "scikit-learn"), ("PIL", "Pillow"), ("tqdm", "tqdm")])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(module: str, package: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; from torchdata.demo.__main__ import main; sys.exit(main([]))"
    result = run("-c", code)
    assert result.returncode == 2
    assert f"the demo needs {package}" in result.stderr
    assert "pip install 'torchdata-rs[demo]'" in result.stderr
