"""Runs random programs and prints how many of each category went on exactly.

python -m random_stateful --programs 2000 --seed 1 [--python PATH] [--beside PATH]
"""

from __future__ import annotations

import statistics
import sys

import beside
from random_stateful.judging import Judge
from random_stateful.programs import CATEGORIES


def of_states(verdicts: list[beside.Verdict]) -> list[str]:
    """Counts of the kinds of states, and of epochs that were those of torch's own loader."""
    torch = [one for one in verdicts if one.unlike is not None]
    told = [one.known for one in verdicts if "json" in one.known]
    sizes = [one["size"] for one in told] or [0]
    return [
        f"  epochs of torch's loader: {sum(not one.unlike for one in torch)} of {len(torch)}",
        f"  states that are JSON: {sum(one['json'] for one in told)} of {len(told)},"
        f" that are alike when asked for twice: {sum(one['alike'] for one in told)},"
        f" bytes in the median: {statistics.median(sizes):.0f}, at most {max(sizes)}",
    ]


if __name__ == "__main__":
    sys.exit(beside.main("random_stateful", __doc__, Judge, CATEGORIES, of_states))
