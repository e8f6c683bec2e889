"""A few of the blows that `chaos` deals by the thousand, for every start method."""

from __future__ import annotations

import pytest

from chaos.__main__ import report
from chaos.drive import run_seed
from process_checks import METHODS
from seeds import try_seeds

#: Which seeds each start method runs.
SEEDS = {method: range(first, first + 2) for method, first in zip(METHODS, (10_000, 20_000, 30_000), strict=True)}


@pytest.mark.parametrize("method", METHODS)
def test_whoever_is_killed_stopped_or_interrupted_main_knows_and_nothing_is_left(method):
    try_seeds(
        SEEDS[method],
        run=lambda seed: run_seed(seed, [method]),
        wrong=lambda outcome: outcome.wrong,
        report=lambda seed, outcome: report(seed, method, outcome, lines=100),
    )
