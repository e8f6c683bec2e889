"""Training loops of public projects are stopped within and after an epoch, and resume with the same batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="StatefulDataLoader needs PyTorch")

from fresh_processes import FreshProcesses, with_torch
from trainers import TRAINERS


@pytest.fixture(scope="module")
def processes() -> FreshProcesses:
    return with_torch().imports("trainers")


@pytest.fixture(scope="module")
def whole(processes: FreshProcesses, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a function that returns the result of an uninterrupted run. Each result is computed only once."""
    made: dict[tuple[str, int], list[Any]] = {}
    nowhere = tmp_path_factory.mktemp("whole") / "unused"

    def of(trainer: str, workers: int) -> list[Any]:
        if (trainer, workers) not in made:
            made[trainer, workers] = processes.call(
                "trainers:train", trainer=trainer, workers=workers, checkpoint=nowhere
            )
        return made[trainer, workers]

    return of


@pytest.mark.parametrize(
    ("workers", "stop"),
    [(0, (0, 2)), (0, (1, 1)), (2, (0, 2)), (2, (0, -1))],
    ids=["middle", "second epoch", "middle, workers", "end, workers"],
)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_trainer_resumes_in_a_new_process_as_if_it_had_not_been_stopped(
    processes: FreshProcesses, whole: Any, tmp_path: Path, trainer: str, workers: int, stop: tuple[int, int]
) -> None:
    run = {"trainer": trainer, "workers": workers, "checkpoint": tmp_path / "checkpoint"}
    before = processes.call("trainers:train", stop=stop, **run)
    behind = processes.call("trainers:train", resumes=True, **run)
    assert before + behind == whole(trainer, workers)
