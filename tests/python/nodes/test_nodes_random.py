"""Tests with a few random programs that nodes resume exactly. `python -m drivers nodes` tests many random programs."""

from collections.abc import Iterator

import pytest

from fresh_processes import with_torch
from random_nodes.judging import NodesJudge


@pytest.fixture(scope="module", params=[False, True], ids=["threads", "processes"])
def judge(request: pytest.FixtureRequest) -> Iterator[NodesJudge]:
    with NodesJudge(processes=request.param, server=with_torch()) as judge:
        yield judge


#: The seeds of the tested random programs, including a seed that draws an unusually long epoch.
SEEDS = [*(range(first, first + 2) for first in (1, 11, 91)), range(973_676, 973_677)]


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_random_graphs_resume_exactly_from_their_states_in_new_processes(judge: NodesJudge, seeds: range) -> None:
    verdicts = [judge.judge(seed) for seed in seeds]
    wrong = [f"seed {one.seed}: {one.words}: {one.shown}" for one in verdicts if one.shown]
    assert not wrong, "\n".join(wrong)
    assert judge.positions > len(seeds)
