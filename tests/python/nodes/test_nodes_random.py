"""Random programs over nodes, some of them: `python -m random_nodes` runs as many as one likes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="nodes need PyTorch")

from random_nodes.judging import Judge


@pytest.mark.parametrize(
    ("processes", "seeds"), [(False, range(1, 41)), (True, range(41, 56))], ids=["threads", "processes"]
)
def test_random_graphs_go_on_exactly_from_their_states_in_new_processes(processes: bool, seeds: range) -> None:
    with Judge(processes=processes) as judge:
        verdicts = [judge.judge(seed) for seed in seeds]
    wrong = [f"seed {one.seed}: {one.words}: {one.told}" for one in verdicts if one.told]
    assert not wrong, "\n".join(wrong)
    assert judge.positions > len(seeds)
