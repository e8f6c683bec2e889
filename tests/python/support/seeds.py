"""Runs of random plans in tests: the seeds of one test, two runs side by side, as each mostly waits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest


def try_seeds(seeds, run, wrong, report):
    """Runs all seeds; fails with what is wrong with the first bad one.

    Args:
        seeds: the seeds.
        run: makes an outcome of a seed, in a process of its own.
        wrong: what is wrong with an outcome; nothing where it is fine.
        report: prints all that is known of the outcome of a seed.
    """
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(run, seeds))
    for seed, outcome in zip(seeds, outcomes, strict=True):
        if wrong(outcome):
            report(seed, outcome)
            pytest.fail(f"seed {seed}: {wrong(outcome)}")
