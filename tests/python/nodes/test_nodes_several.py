"""Nodes over several sources read them in the documented order, and end an epoch as the stop criterion requires."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torchdata.nodes as tn

CRITERIA = [
    tn.StopCriteria.CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED,
    tn.StopCriteria.ALL_DATASETS_EXHAUSTED,
    tn.StopCriteria.FIRST_DATASET_EXHAUSTED,
    tn.StopCriteria.CYCLE_FOREVER,
]


def modelled(sizes: dict[str, int], choices: Iterator[str], criterion: str, most: int) -> list[tuple[str, int]]:
    position, ended, found = dict.fromkeys(sizes, 0), set[str](), []
    while len(found) < most:
        name = next(choices)
        if criterion == tn.StopCriteria.ALL_DATASETS_EXHAUSTED and name in ended:
            continue
        if position[name] == sizes[name]:
            ended.add(name)
            if criterion == tn.StopCriteria.FIRST_DATASET_EXHAUSTED:
                break
            if criterion != tn.StopCriteria.CYCLE_FOREVER and len(ended) == len(sizes):
                break
            if criterion == tn.StopCriteria.ALL_DATASETS_EXHAUSTED:
                continue
            position[name] = 0
        found.append((name, position[name]))
        position[name] += 1
    return found


def sources(sizes: dict[str, int]) -> dict[str, tn.BaseNode[Any]]:
    return {name: tn.IterableWrapper([(name, n) for n in range(size)]) for name, size in sizes.items()}


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("sizes", [{"a": 3}, {"a": 4, "b": 1}, {"a": 2, "b": 5, "c": 3}])
def test_sources_take_turns_until_the_criterion_is_met(criterion: str, sizes: dict[str, int]) -> None:
    def turns() -> Iterator[str]:
        while True:
            yield from sizes

    found = list(tn.Header(tn.MultiNodeRoundRobinSampler(sources(sizes), criterion), 30))
    assert found == modelled(sizes, turns(), criterion, 30)


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("rank", [0, 1])
def test_sources_are_chosen_by_weight_as_torch_draws_them(criterion: str, rank: int) -> None:
    sizes, weights = {"a": 3, "b": 9}, {"a": 0.3, "b": 0.7}

    def drawn(epoch: int) -> Iterator[str]:
        of_rank, generator = torch.Generator().manual_seed(7 * 2 + rank), torch.Generator()
        seeds = torch.randint(0, 2**32 - 1, size=(epoch + 1,), generator=of_rank)
        generator.manual_seed(int(seeds[-1]))
        tensor = torch.tensor([0.3, 0.7], dtype=torch.float64)
        while True:
            for index in torch.multinomial(tensor, 1000, replacement=True, generator=generator).tolist():
                yield "ab"[index]

    sampler = tn.MultiNodeWeightedSampler(sources(sizes), weights, criterion, rank=rank, world_size=2, seed=7)
    loader = tn.Loader(tn.Header(sampler, 1500))
    for epoch in range(3):
        assert list(loader) == modelled(sizes, drawn(epoch), criterion, 1500)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_source_without_items_delays_no_other_source(criterion: str) -> None:
    for sizes in ({"a": 0}, {"a": 0, "b": 2}, {"a": 0, "b": 0}):
        for node in (
            tn.MultiNodeRoundRobinSampler(sources(sizes), criterion),
            tn.MultiNodeWeightedSampler(sources(sizes), dict.fromkeys(sizes, 1.0), criterion, 0, 1),
        ):
            found = list(tn.Header(node, 10))
            if criterion == tn.StopCriteria.ALL_DATASETS_EXHAUSTED:
                assert found == [("b", n) for n in range(sizes.get("b", 0))]
            elif criterion == tn.StopCriteria.CYCLE_FOREVER:
                assert len(found) == (10 if sizes.get("b") else 0)
            else:
                assert {name for name, _ in found} <= {"b"}


def test_items_may_contain_the_name_of_their_source() -> None:
    node = tn.MultiNodeRoundRobinSampler(
        {"x": tn.IterableWrapper([1, {"n": 2}])}, tn.StopCriteria.FIRST_DATASET_EXHAUSTED, tag_output=True
    )
    assert list(node) == [{"data": 1, "dataset_key": "x"}, {"n": 2, "dataset_key": "x"}]
    taken = tn.MultiNodeWeightedSampler({"x": tn.IterableWrapper([{"dataset_key": 0}])}, {"x": 1.0}, tag_output=True)
    with pytest.raises(ValueError, match="has a key 'dataset_key' already"):
        next(taken)


def test_ranks_choose_apart_and_are_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def order(**options: Any) -> list[Any]:
        sampler = tn.MultiNodeWeightedSampler(
            sources({"a": 40, "b": 40}), {"a": 1.0, "b": 1.0}, "ALL_DATASETS_EXHAUSTED", **options
        )
        return list(sampler)

    first, second = order(rank=0, world_size=2), order(rank=1, world_size=2)
    assert first != second
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert order() == second
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(ValueError, match="Invalid rank 2"):
        order()
