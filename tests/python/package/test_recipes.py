"""Programs of the guides that need several ranks, a bucket or other libraries work.

`test_docs.py` does not run the programs that this file tests.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import doc_blocks
from archive_bytes import tar_of
from fresh_processes import run_python
from needing import needs
from ranks import torchrun
from s3_server import ENVIRONMENT, fill, s3_server

RECIPES = Path(__file__).resolve().parents[3] / "docs" / "recipes"
CHECKPOINTS = RECIPES.parent / "guides" / "checkpoints.md"
pytestmark = pytest.mark.alone


def recipe(page: str, words: str) -> str:
    [code] = [
        block.code for block in doc_blocks.blocks(RECIPES / page) if block.language == "python" and words in block.code
    ]
    return code


def run(code: str, folder: Path, **environment: str) -> str:
    (folder / "train.py").write_text(code)
    ended = run_python("-W", "ignore", "train.py", folder=folder, OMP_NUM_THREADS="1", **environment)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_ranks_make_equally_many_steps(tmp_path: Path) -> None:
    needs("torch", reason="the recipe is for it")
    (tmp_path / "train.py").write_text(recipe("training.md", "DistributedDataParallel(torch"))
    steps = re.findall(r"rank (\d): (\d) steps", "".join(torchrun(tmp_path / "train.py")))
    assert sorted(rank for rank, _ in steps) == ["0", "0", "1", "1"]
    assert len({count for _, count in steps}) == 1


def test_lightning_and_the_trainer_of_transformers_take_their_loaders_from_the_recipes(tmp_path: Path) -> None:
    """The programs for both libraries run in one process, because each library takes seconds to import."""
    needs("lightning", reason="a recipe is for it")
    needs("transformers", reason="a recipe is for it")
    both = recipe("training.md", "lightning.Trainer") + recipe("training.md", "MyTrainer")
    blocks = [one.code for one in doc_blocks.blocks(CHECKPOINTS) if one.language == "python"]
    [goes_on] = [code for code in blocks if "import lightning" in code]
    goes_on = f"{blocks[0]}import os, tempfile\n{goes_on}print('it went on')\n"
    printed = run(both + goes_on, tmp_path)
    assert re.findall(r"(\d+) steps", printed) == ["16", "8"]
    assert "it went on" in printed


CONTENTS = {".txt": b"text", ".cls": b"7"}


def shard(keys: list[str]) -> bytes:
    return tar_of((f"{key}{end}", text) for key in keys for end, text in CONTENTS.items())


def test_shards_are_read_from_a_bucket(tmp_path: Path) -> None:
    needs("moto", reason="a server of S3")
    needs("obstore", reason="it is an extra")
    shards = {f"train/{number}.tar": shard([f"{number}0", f"{number}1"]) for number in range(3)}
    with s3_server() as endpoint:
        fill(endpoint, {"bucket": shards}).close()
        printed = run(recipe("data.md", "list_files_by_s3"), tmp_path, **ENVIRONMENT, AWS_ENDPOINT_URL=endpoint)
    keys = re.findall(r"train/\d\.tar/(\d\d) text 7", printed)
    assert sorted(keys) == ["00", "01", "10", "11", "20", "21"]
