"""Randomly generated StatefulDataLoaders resume exactly. `python -m drivers stateful` tests many more programs."""

from collections.abc import Iterator

import pytest

from fresh_processes import with_torch
from random_stateful.judging import StatefulJudge
from random_stateful.programs import SKIPPING, SKIPPING_STREAMS

REVEALING = [2, 13, 15, 17, 18, 20, 28, 48, 51, 66, 74, 75, 95, 128, 138, 158, 287, 424, 2659, 3368, 970232]


@pytest.fixture(scope="module")
def judge() -> Iterator[StatefulJudge]:
    with StatefulJudge(server=with_torch()) as judge:
        yield judge


SKIPS = [first + number for first in (SKIPPING, SKIPPING_STREAMS) for number in range(3)]


@pytest.mark.parametrize("seed", [*REVEALING, *SKIPS])
def test_a_random_program_resumes_in_a_new_process_as_if_it_had_not_been_stopped(
    judge: StatefulJudge, seed: int
) -> None:
    verdict = judge.judge(seed)
    assert not verdict.shown, verdict.words
