"""Random loaders over real processes: see `random_loaders`. And proof that its judgement can say no."""

from __future__ import annotations

import pytest

from process_checks import METHODS
from random_loaders import epochs, graphs, sizes
from random_loaders.__main__ import report, run_seed
from random_loaders.items import Fail, Keep, Provoked
from random_loaders.plans import Setup, make_plan
from seeds import try_seeds
from torchdata.dataloader2 import DataLoader2
from watchdog import run_module

#: Which seeds each start method runs; others than `python -m random_loaders` takes by itself.
SEEDS = {
    method: range(first, first + (3 if method == "fork" else 1))
    for method, first in zip(METHODS, (10_000, 20_000, 30_000), strict=True)
}


@pytest.mark.parametrize("method", METHODS)
def test_every_epoch_of_random_loaders_is_what_the_model_says(method):
    try_seeds(
        SEEDS[method],
        run=lambda seed: run_seed(seed, [method], limit=120),
        wrong=lambda ran: not ran.ok and ran.why,
        report=lambda seed, ran: report(seed, method, ran, lines=100),
    )


def test_a_seed_stands_for_one_plan():
    for seed in range(20):
        assert make_plan(seed).describe() == make_plan(seed).describe()


# -- the judgement -------------------------------------------------------------------------------------------------


def run_of(tmp_path, main=None, exact=True, in_order=True):
    """A run whose epochs are the numbers below 10, from two workers."""
    function = Fail(0, 7, None, "error")
    graph = graphs.Failing(graphs.Shard(graphs.Plain(start=0, count=10)), function=function, number=0)
    setup = Setup(graph, main, "fork", 2, {"in_order": in_order}, exact, [graph])
    run = epochs.Run(setup, tmp_path, "loader", say=lambda _line: None)
    run.ident = (1, 0)
    return run


WRONG = {
    "the end is missing": list(range(9)),
    "one is missing": [0, 1, 2, 3, 5, 6, 7, 8, 9],
    "one came twice": [0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    "one came twice at the end": [*range(10), 9],
    "nothing came": [],
}


@pytest.mark.parametrize("got", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("in_order", [True, False])
def test_a_whole_epoch_that_is_not_whole_is_wrong(tmp_path, got, in_order):
    run = run_of(tmp_path, exact=in_order, in_order=in_order)
    with pytest.raises(epochs.Wrong):
        run.judge(got, None, True, None, None)
    run.judge(list(range(10)), None, True, None, None)


def test_the_order_counts_where_it_is_exact_and_that_of_one_worker_always(tmp_path):
    swapped, late = [1, 0, *range(2, 10)], [2, 0, *range(3, 10), 1]
    with pytest.raises(epochs.Wrong, match="item 0 of 10 is 1 instead of 0"):
        run_of(tmp_path).judge(swapped, None, True, None, None)
    run_of(tmp_path, exact=False, in_order=False).judge(swapped, None, True, None, None)
    with pytest.raises(epochs.Wrong, match="0 of worker 0 came after one that it sent later"):
        run_of(tmp_path, exact=False, in_order=False).judge(late, None, True, None, None)


def test_a_part_of_an_epoch_must_be_its_beginning(tmp_path):
    run = run_of(tmp_path)
    run.judge([0, 1, 2], None, False, None, None)
    with pytest.raises(epochs.Wrong):
        run.judge([0, 2], None, False, None, None)


def test_an_item_with_the_tag_of_another_epoch_is_wrong(tmp_path):
    run = run_of(tmp_path)
    run.judge([5 << 32 | number for number in range(10)], None, True, None, None)
    run.ident = (1, 1)
    with pytest.raises(epochs.Wrong, match="an item of the epoch"):
        run.judge([5 << 32], None, False, None, None)


def test_another_order_for_the_same_seed_is_wrong(tmp_path):
    run = run_of(tmp_path, exact=False)
    run.judge(list(range(10)), None, True, None, None)
    with pytest.raises(epochs.Wrong, match="another order before"):
        run.judge([1, 0, *range(2, 10)], None, True, None, None)


def test_errors_must_be_those_of_the_plan(tmp_path):
    run = run_of(tmp_path)
    run.judge([0, 1, 2], Provoked("at key 7"), False, 0, 0)
    with pytest.raises(epochs.Wrong, match="came as ValueError"):
        run.judge([0, 1, 2], ValueError("at key 7"), False, 0, 0)
    with pytest.raises(ValueError, match="unexpected"):
        run.judge([0, 1, 2], ValueError("unexpected"), False, None, None)
    with pytest.raises(epochs.Wrong, match="ended, although"):
        run.judge(list(range(10)), None, True, 0, 0)


def test_the_watchdog_tells_a_hang_a_failure_and_what_outlives_a_run():
    def run(statement, limit=30.0):
        return run_module(["timeit", "-n1", "-r1", statement], limit)

    assert run("pass").ok
    assert "hung" in run("import time; time.sleep(1000)", limit=1.0).why
    assert "exit code 1: ZeroDivisionError" in run("1 / 0").why
    assert "outlived" in run("import subprocess; subprocess.Popen(['sleep', '1000'])").why


def chain_of(links):
    pipe = graphs.Filtered(graphs.Source(start=100_000, count=40), function=Keep(1, 0.5, 0))
    return sizes.Chain(pipe, "fork", [sizes.Link(*link, {}) for link in links])


def test_batches_of_another_size_go_on_behind_a_state():
    said = []
    sizes.run_chain(chain_of([(3, 2, 2, False), (4, 0, 1, True), (7, 1, 0, False)]), said.append)
    assert len(said) == 3
    assert any(plan.chain for plan in map(make_plan, range(10)))


def test_a_batch_that_begins_elsewhere_is_wrong(monkeypatch):
    load = DataLoader2.load_state_dict

    def off_by_one(self, state):
        load(self, state)
        next(iter(self))

    monkeypatch.setattr(DataLoader2, "load_state_dict", off_by_one)
    with pytest.raises(AssertionError, match="in place of"):
        sizes.run_chain(chain_of([(3, 0, 2, False), (4, 0, 1, False)]), str)
