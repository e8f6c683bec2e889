"""The programs in the guide on Ray that need a cluster print the output that the guide shows."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

import doc_blocks
import ray_cluster
from ray_cluster import needs_ray, of_ray

pytest.importorskip("pandas", reason="Ray Data needs pandas, which the parquet extra installs")
pytest.importorskip("pyarrow", reason="Ray Data needs pyarrow, which the parquet extra installs")

pytestmark = [needs_ray, *of_ray]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "more-machines.md"
#: Settings that make Ray Train check its workers more often than every two seconds, and collect no metrics.
PROMPT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.3",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from ray_cluster import cluster

if __name__ == "__main__":
    with cluster(TESTS_HIDDEN=""):
        import ray.data
        ray.data.DataContext.get_current().enable_progress_bars = False
        for code in sys.argv[2:]:
            exec(compile(code, "<the guide>", "exec"), globals())
"""


def programs() -> list[tuple[str, str]]:
    """Returns the code blocks of the guide that mention this test file, each with its output."""
    found = doc_blocks.blocks(PAGE)
    return [
        (one.code, shown.code)
        for one, shown in itertools.pairwise(found)
        if one.reason and Path(__file__).name in one.reason and shown.language == "text"
    ]


def test_the_guide_shows_what_its_programs_print(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the guide's example of Ray Train trains with torch")
    pytest.importorskip("tensorboardX", reason="Ray Train needs tensorboardX, which ray[train] installs")
    pages = programs()
    assert len(pages) == 2
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    support = str(Path(ray_cluster.__file__).resolve().parent)
    codes = [code for code, _ in pages]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), support, *codes],
        env={**os.environ, **PROMPT}, cwd=tmp_path, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(shown for _, shown in pages)
