"""If one process runs several shards, each shard has separate global random generators."""

import random
from functools import partial
from typing import Any

import pytest

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torchdata._native import ShardTurns  # noqa: E402
from torchdata.datapipes._pipe import exchanging, skipping  # noqa: E402
from torchdata.datapipes._pipe.exchanging import ShardGlobals  # noqa: E402
from torchdata.datapipes._pipe.state.generators import load_generators, save_generators  # noqa: E402


@pytest.fixture(autouse=True)
def _generators_are_put_back() -> Any:
    before = save_generators()
    yield
    load_generators(before)
    torch.utils.data._utils.worker._worker_info = None


@pytest.fixture(params=["memory", "public functions"])
def way(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(exchanging, "_known", None)
    if request.param != "memory":
        monkeypatch.setattr(exchanging, "_is_copied", lambda *_: False)
    return request.param


def seed(number: int) -> None:
    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)


def draw(times: int = 1) -> list[float]:
    """Draws uniform and normal numbers. Some generators compute two normal numbers at once, and store the second."""
    drawn: list[float] = []
    for _ in range(times):
        drawn += [random.gauss(0.0, 1.0), random.random(), float(numpy.random.standard_normal()), numpy.random.random()]
        drawn += [float(torch.randn(())), float(torch.randn((), dtype=torch.float64)), float(torch.rand(()))]
    return drawn


def exchange(shards: list[Any], switched: list[Any], left: int, entered: int) -> None:
    switched.append((left, entered))
    shards[left].leave(is_all=True)
    shards[entered].enter()


def test_shards_that_are_switched_natively_draw_and_seed_as_if_they_were_alone(way: Any) -> None:
    def steps(number: int) -> Any:
        for step in range(300):
            if step % 50 == number:  # A seed changes the numbers, but not how many numbers are drawn.
                seed(step)
            yield draw(step % 3)
            skipping.worker = number

    before, expected = skipping.worker, {}
    for number in range(3):
        seed(number)
        expected[number] = list(steps(number))
    shards, switched = [ShardGlobals() for _ in range(3)], []
    skipping.worker = None
    try:
        for number, shard in enumerate(shards):
            seed(number)
            shard.leave(is_all=True)
        shards[0].enter()
        turns = ShardTurns(shards, partial(exchange, shards, switched), 0)
        iterators = [steps(number) for number in range(3)]
        for step in range(300):
            for number, iterator in enumerate(iterators):
                turns.enter(number)
                assert step < 2 or skipping.worker == number
                assert next(iterator) == expected[number][step]
        assert (len(switched) == 0) == (way == "memory")
        assert (shards[0]._others == []) == (way == "memory"), "the generators are exchanged through memory"
    finally:
        skipping.worker = before


def test_a_generator_that_is_installed_between_two_switches_is_exchanged_from_then_on() -> None:
    before = numpy.random.get_bit_generator()
    shards, switched = [ShardGlobals(), ShardGlobals()], []
    try:
        for shard in shards:
            shard.leave(is_all=True)
        shards[0].enter()
        turns = ShardTurns(shards, partial(exchange, shards, switched), 0)
        numpy.random.set_bit_generator(numpy.random.MT19937(7))
        for number in (1, 0, 1, 0):
            turns.enter(number)
        assert switched == [(0, 1), (1, 0)]
    finally:
        numpy.random.set_bit_generator(before)


def test_another_bit_generator_of_numpy_is_exchanged() -> None:
    before = numpy.random.get_bit_generator()
    one, two = ShardGlobals(), ShardGlobals()
    try:
        numpy.random.set_bit_generator(numpy.random.PCG64(7))
        expected = numpy.random.random(3).tolist()
        numpy.random.set_bit_generator(numpy.random.PCG64(7))
        one.leave()
        numpy.random.random(5)
        two.leave()
        one.enter()
        assert numpy.random.random(3).tolist() == expected
    finally:
        numpy.random.set_bit_generator(before)
