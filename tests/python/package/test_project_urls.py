"""The metadata of a released distribution link to the repository that built the distribution."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))


def test_the_release_workflow_writes_them_before_each_build() -> None:
    workflow = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    jobs = workflow.split("\n  sdist:")
    for job in jobs:
        steps = job.index("tools/project_urls.py"), re.search(r"maturin (build|sdist)", job).start()
        assert steps == tuple(sorted(steps))


def test_workflows_use_actions_by_the_hash_of_a_commit() -> None:
    used = [
        line.strip()
        for path in (ROOT / ".github/workflows").glob("*.yml")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "uses:" in line
    ]
    assert len(used) >= 5
    assert [line for line in used if not re.fullmatch(r"- uses: [\w/-]+@[0-9a-f]{40} # v[\d.]+", line)] == []


def test_the_release_workflow_and_make_build_for_the_same_glibc() -> None:
    name = re.search(r"^MANYLINUX := (\w+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert name is not None
    assert f'--compatibility {name[1]}"' in (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
