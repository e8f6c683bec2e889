"""Random graphs of nodes, some of them (`random_nodes.py` runs others, for as long as one likes)."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch", reason="nodes need PyTorch")

from random_nodes import run_many


@pytest.mark.parametrize(("processes", "graphs"), [(False, 40), (True, 30)], ids=["threads", "processes"])
def test_random_graphs_go_on_exactly_from_every_state(processes: bool, graphs: int) -> None:
    checked, positions = run_many(100, seconds=math.inf, graphs=graphs, processes=processes)
    assert checked == graphs
    assert positions > graphs
