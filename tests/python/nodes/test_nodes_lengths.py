"""The length of a node or loader is unknown, or is the exact number of items of a whole epoch."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torchdata.nodes as tn
from node_sources import CRITERIA, numbers, same
from torchdata.datapipes.iter import IterableWrapper as PipeOf


def known() -> Iterator[tn.BaseNode[Any]]:
    for size in (0, 1, 4, 9):
        source = numbers(size)
        yield from (source, tn.SamplerWrapper(range(size)), tn.from_pipe(PipeOf(range(size))))
        yield from (tn.Mapper(source, same), tn.Prefetcher(source, 2), tn.ParallelMapper(source, same, 2, prebatch=3))
        yield tn.MapStyleWrapper(list(range(size or 1)), torch.utils.data.RandomSampler(range(size or 1)))
        yield from (tn.Batcher(source, 4), tn.Batcher(source, 4, drop_last=False), tn.Batcher(tn.Batcher(source, 2), 2))
        yield from (tn.Header(source, 3), tn.Header(source, 0), tn.Cycler(source, 3))
    for sizes in itertools.product((0, 1, 3, 4), repeat=3):
        sources = {name: numbers(size) for name, size in zip("abc", sizes, strict=True)}
        yield tn.MultiNodeWeightedSampler(sources, dict.fromkeys("abc", 1.0), "ALL_DATASETS_EXHAUSTED", 0, 1)
        for criterion in CRITERIA:
            if criterion != tn.StopCriteria.CYCLE_FOREVER or not any(sizes):
                yield tn.MultiNodeRoundRobinSampler(sources, criterion)


def test_a_length_is_the_number_of_items_of_an_epoch() -> None:
    for node in known():
        with tn.Loader(node) as loader:
            assert len(loader) == len(list(loader)) == len(list(loader)), vars(node)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tn.Filter(numbers(3), bool),
        lambda: tn.Unbatcher(tn.Batcher(numbers(3), 2)),
        lambda: tn.Batcher(tn.Filter(numbers(3), bool), 2),
        lambda: tn.Header(tn.Filter(numbers(3), bool), 2),
        lambda: tn.Cycler(numbers(3)),
        lambda: tn.IterableWrapper(number for number in range(3)),
        lambda: tn.MultiNodeRoundRobinSampler({"a": numbers(3)}, tn.StopCriteria.CYCLE_FOREVER),
        lambda: tn.MultiNodeWeightedSampler(
            {"a": numbers(3)}, {"a": 1.0}, tn.StopCriteria.FIRST_DATASET_EXHAUSTED, 0, 1
        ),
        lambda: tn.MultiNodeRoundRobinSampler({"a": tn.Filter(numbers(3), bool)}),
    ],
)
def test_an_unknown_length_raises_a_type_error_but_the_loader_can_be_read(make: Callable[[], tn.BaseNode[Any]]) -> None:
    loader = tn.Loader(make())
    with pytest.raises(TypeError, match=r"no length|has no len\(\)"):
        len(loader)
    assert bool(loader)
    assert list(itertools.islice(loader, 2))


def test_a_length_that_raises_another_error_counts_as_unknown() -> None:
    class Unsized(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

        def __len__(self) -> int:
            raise NotImplementedError

    loader = tn.Loader(tn.IterableWrapper(Unsized()))
    with pytest.raises(TypeError, match="the length of Unsized is not known"):
        len(loader)
    assert list(loader) == [0, 1, 2]


def test_the_length_is_the_length_of_a_whole_epoch_after_a_load_and_in_the_middle() -> None:
    loader = tn.Loader(tn.Batcher(numbers(9), 2))
    next(iter(loader))
    state = loader.state_dict()
    assert len(loader) == 4
    loader.load_state_dict(state)
    assert len(loader) == 4
    assert len(list(loader)) == 3
    assert len(loader) == 4


def test_nodes_and_loaders_without_items_are_true() -> None:
    assert bool(numbers(0))
    assert bool(tn.Loader(numbers(0)))
    assert len(tn.Loader(numbers(0))) == 0


def test_a_node_of_a_user_has_the_length_that_its_len_method_returns() -> None:
    class Sized(tn.BaseNode[int]):
        def __len__(self) -> int:
            return 7

    assert len(tn.Loader(tn.Prefetcher(tn.Batcher(Sized(), 2, drop_last=False), 2))) == 4
