"""Random graphs of nodes, for some seconds (`random_nodes.py` does it for as long as one likes)."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("torch", reason="nodes need PyTorch")

from random_nodes import run_many


@pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])
def test_random_graphs_go_on_exactly_from_every_state(processes: bool) -> None:
    seed = int(time.time())
    checked, positions = run_many(seed, seconds=5 if processes else 15, processes=processes)
    assert checked > 0
    assert positions > 0
