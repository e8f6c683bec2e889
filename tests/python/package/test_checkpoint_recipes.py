"""The program for several ranks in the guide "Checkpoints" works.

`test_recipes.py` tests the guide's Lightning program.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import doc_blocks
from ranks import gloo_job

pytest.importorskip("torch", reason="the recipe is for its checkpoints")
pytestmark = pytest.mark.alone

GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/checkpoints.md"
BLOCKS = [block.code for block in doc_blocks.blocks(GUIDE) if block.language == "python"]


def block_with(words: str) -> str:
    (found,) = [code for code in BLOCKS if words in code]
    return found


def test_ranks_save_and_load_one_distributed_checkpoint(tmp_path: Path) -> None:
    recipe = block_with("class LoaderState")
    classes = recipe[: recipe.index('if __name__ == "__main__":')]
    body = f"""
{classes}
def build():
    pipe = IterableWrapper(range(60)).shuffle().sharding_filter().map(identity)
    service = SequentialReadingService(DistributedReadingService(30), MultiProcessingReadingService(2))
    loader = DataLoader2(pipe, reading_service=service)
    loader.seed(7)
    return loader

def main(rank):
    folder = {str(tmp_path / "checkpoint")!r}
    with build() as loader:
        iterator = iter(loader)
        got = [next(iterator) for _ in range(5)]
        dcp.save({{"data": LoaderState(loader, rank)}}, checkpoint_id=folder)
        rest, following = list(iterator), list(loader)
    with build() as loader:
        dcp.load({{"data": LoaderState(loader, rank)}}, checkpoint_id=folder)
        return got, rest == list(loader), following == list(loader), rest
"""
    with gloo_job(tmp_path, body) as job:
        outcomes = job.outcomes()
    assert [(same, later) for _, same, later, _ in outcomes] == [(True, True)] * 2
    assert sorted(item for got, *_, rest in outcomes for item in got + rest) == list(range(60))
