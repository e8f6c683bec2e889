"""A job ends in time if any rank, including rank 0 with the job's store, is killed, stopped or hangs at any moment."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rank_chaos import Plan
from ranks import environment_of_ranks, gloo_job

pytest.importorskip("torch", reason="ranks on gloo need torch")
pytestmark = pytest.mark.alone

SUPPORT = Path(__file__).parents[1] / "support"

ORDINARY = Plan(
    seed=0,
    ranks=3,
    timeout=3.0,
    mode="service",
    store="outside",
    victim=1,
    action="stop",
    moment="epoch",
    delay=0.0,
    pace=0.01,
    pause=0.1,
)


JOBS: list[dict[str, Any]] = [
    {"moment": "first item", "action": "hang"},
    {"moment": "between epochs", "mode": "fullsync"},
    {"moment": "between epochs", "store": "rank 0", "victim": 0},
    {"moment": "before the loader", "store": "rank 0", "victim": 0},
    {"moment": "first item", "store": "rank 0", "victim": 0, "action": "kill", "mode": "workers"},
    {"moment": "epoch", "store": "rank 0", "victim": 0, "action": "stop and go on late", "ranks": 2},
    {"moment": "epoch", "action": "stop and go on soon"},
    {"moment": "epoch", "action": "kill", "ranks": 4},
    {"moment": "epoch", "leaves": True, "mode": "fullsync", "victim": 0, "store": "rank 0"},
]


def run_chaos(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    results = folder / "results.json"
    command = [sys.executable, "-m", "drivers", "ranks", "--jobs", "3", "--results", str(results), *arguments]
    run = subprocess.run(command, cwd=SUPPORT, capture_output=True, text=True, timeout=250, env=environment_of_ranks())
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return [json.loads(line) for line in results.read_text().splitlines()]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """Runs jobs with faults. Repeats a job up to three times if the fault did not occur, or if the ranks were slow."""
    plans = [vars(ORDINARY) | {"seed": number} | changes for number, changes in enumerate(JOBS)]
    found: dict[int, dict[str, Any]] = {}
    for _ in range(4):
        for job in run_chaos(tmp_path_factory.mktemp("chaos"), "--plans", json.dumps(plans)):
            late = bool(job["broken"]) and all(rule.startswith("late") for rule in job["broken"])
            found[job["plan"]["seed"]] = job | {"shows": job["struck"] and not late}
        plans = [plan for plan in plans if not found[plan["seed"]]["shows"]]
        if not plans:
            break
    return found


@pytest.mark.parametrize("number", range(len(JOBS)), ids=lambda number: " ".join(map(str, JOBS[number].values())))
def test_a_rank_that_fails_is_named_by_all_others_in_time(number: int, jobs: dict[int, dict[str, Any]]) -> None:
    assert jobs[number]["struck"]
    assert not jobs[number]["broken"], jobs[number]


def test_the_name_of_an_interface_is_optional_and_a_wrong_name_is_reported(tmp_path: Path) -> None:
    body = """
    def main(rank):
        del os.environ["GLOO_SOCKET_IFNAME"]
        with DataLoader2(Counting(3), reading_service=DistributedReadingService(20)) as loader:
            assert list(loader) == [0, 1, 2]
        os.environ["GLOO_SOCKET_IFNAME"] = "nowhere0"
        return list(DataLoader2(Counting(3), reading_service=DistributedReadingService(2)))
    """
    with gloo_job(tmp_path, body) as job:
        first, second = job.outcomes()
    assert "GLOO_SOCKET_IFNAME names the network interface 'nowhere0'" in str(first)
    assert "rank 0 of 2 did not begin to iterate" in str(second)
