"""Jobs of real ranks on gloo that go on with other numbers of ranks and workers, in the global order."""

from __future__ import annotations

import itertools
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from ranks import gloo_job

pytest.importorskip("torch", reason="gloo is its")
if not sys.platform.startswith("linux"):
    pytest.skip("what ranks leave behind is looked for in /proc", allow_module_level=True)
pytestmark = pytest.mark.alone

ITEMS = 61

BODY = """
from torchdata.dataloader2 import InProcessReadingService
from torchdata.datapipes.map import SequenceWrapper

def plus(item):
    return item + 100

def build(workers):
    pipe = SequenceWrapper(range({items})).shuffle().sharding_filter().map(plus)
    services = [DistributedReadingService(60)] + ([MultiProcessingReadingService(workers)] if workers else [])
    return DataLoader2(pipe, reading_service=SequentialReadingService(*services))

def main(rank):
    loaded, count, workers = {plan!r}
    with build(workers) as loader:
        if loaded is None:
            loader.seed(3)
        else:
            with open(loaded, "rb") as file:
                loader.load_state_dict(pickle.load(file))
        iterator = iter(loader)
        if count is None:
            return list(iterator), list(loader)
        got = [next(iterator) for _ in range(count)]
        return got, pickle.dumps(loader.state_dict())
"""


def run(folder: Path, ranks: int, workers: int, loaded: Path | None, count: int | None) -> list[Any]:
    folder.mkdir()
    plan = (None if loaded is None else str(loaded), count, workers)
    with gloo_job(folder, BODY.replace("{items}", str(ITEMS)).replace("{plan!r}", repr(plan)), ranks=ranks) as job:
        return job.outcomes(120)


def dealt(left: list[int], ranks: int, workers: int) -> list[list[int]]:
    shares: list[list[int]] = [[] for _ in range(ranks)]
    each = max(1, workers)
    for place, item in enumerate(left):
        shares[place % (ranks * each) // each].append(item)
    shortest = min(map(len, shares))
    return [share[:shortest] for share in shares]


@pytest.mark.parametrize("shapes", [[(1, 2), (2, 2), (4, 1)], [(4, 0), (2, 1), (1, 3)]], ids=str)
def test_ranks_of_a_job_share_out_what_is_left_in_the_global_order(
    shapes: list[tuple[int, int]], tmp_path: Path
) -> None:
    whole, following = run(tmp_path / "whole", 1, 0, None, None)[0]
    assert sorted(whole) == list(range(100, 100 + ITEMS))
    left, loaded = list(whole), None
    for number, (ranks, workers) in enumerate(shapes):
        outcomes = run(tmp_path / str(number), ranks, workers, loaded, 3)
        got = [outcome[0] for outcome in outcomes]
        assert got == [share[:3] for share in dealt(left, ranks, workers)]
        left = [item for item in left if item not in set(itertools.chain(*got))]
        loaded = tmp_path / f"{number}.states"
        loaded.write_bytes(pickle.dumps({rank: pickle.loads(outcome[1]) for rank, outcome in enumerate(outcomes)}))
    outcomes = run(tmp_path / "rest", 2, 1, loaded, None)
    assert [outcome[0] for outcome in outcomes] == dealt(left, 2, 1)
    assert [outcome[1] for outcome in outcomes] == dealt(following, 2, 1)
