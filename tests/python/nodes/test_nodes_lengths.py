"""The length of a node or loader is unknown, or is the exact number of items of a whole epoch."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from node_sources import CRITERIA, numbers, same
from torchdata.datapipes.iter import IterableWrapper as PipeOf
from torchdata.nodes import (
    BaseNode,
    Batcher,
    Cycler,
    Filter,
    Header,
    IterableWrapper,
    Loader,
    Mapper,
    MapStyleWrapper,
    MultiNodeRoundRobinSampler,
    MultiNodeWeightedSampler,
    ParallelMapper,
    Prefetcher,
    SamplerWrapper,
    StopCriteria,
    Unbatcher,
    from_pipe,
)


def known() -> Iterator[BaseNode[Any]]:
    for size in (0, 1, 4, 9):
        source = numbers(size)
        yield from (source, SamplerWrapper(range(size)), from_pipe(PipeOf(range(size))))
        yield from (Mapper(source, same), Prefetcher(source, 2), ParallelMapper(source, same, 2, prebatch=3))
        yield MapStyleWrapper(list(range(size or 1)), torch.utils.data.RandomSampler(range(size or 1)))
        yield from (Batcher(source, 4), Batcher(source, 4, drop_last=False), Batcher(Batcher(source, 2), 2))
        yield from (Header(source, 3), Header(source, 0), Cycler(source, 3))
    for sizes in itertools.product((0, 1, 3, 4), repeat=3):
        sources = {name: numbers(size) for name, size in zip("abc", sizes, strict=True)}
        yield MultiNodeWeightedSampler(sources, dict.fromkeys("abc", 1.0), "ALL_DATASETS_EXHAUSTED", 0, 1)
        for criterion in CRITERIA:
            if criterion != StopCriteria.CYCLE_FOREVER or not any(sizes):
                yield MultiNodeRoundRobinSampler(sources, criterion)


def test_a_length_is_the_number_of_items_of_an_epoch() -> None:
    for node in known():
        with Loader(node) as loader:
            assert len(loader) == len(list(loader)) == len(list(loader)), vars(node)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Filter(numbers(3), bool),
        lambda: Unbatcher(Batcher(numbers(3), 2)),
        lambda: Batcher(Filter(numbers(3), bool), 2),
        lambda: Header(Filter(numbers(3), bool), 2),
        lambda: Cycler(numbers(3)),
        lambda: IterableWrapper(number for number in range(3)),
        lambda: MultiNodeRoundRobinSampler({"a": numbers(3)}, StopCriteria.CYCLE_FOREVER),
        lambda: MultiNodeWeightedSampler({"a": numbers(3)}, {"a": 1.0}, StopCriteria.FIRST_DATASET_EXHAUSTED, 0, 1),
        lambda: MultiNodeRoundRobinSampler({"a": Filter(numbers(3), bool)}),
    ],
)
def test_an_unknown_length_raises_a_type_error_but_the_loader_can_be_read(make: Callable[[], BaseNode[Any]]) -> None:
    loader = Loader(make())
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

    loader = Loader(IterableWrapper(Unsized()))
    with pytest.raises(TypeError, match="the length of Unsized is not known"):
        len(loader)
    assert list(loader) == [0, 1, 2]


def test_a_length_stays_that_of_a_whole_epoch_after_a_load_and_in_the_middle() -> None:
    loader = Loader(Batcher(numbers(9), 2))
    next(iter(loader))
    state = loader.state_dict()
    assert len(loader) == 4
    loader.load_state_dict(state)
    assert len(loader) == 4
    assert len(list(loader)) == 3
    assert len(loader) == 4


def test_nodes_and_loaders_without_items_are_true() -> None:
    assert bool(numbers(0))
    assert bool(Loader(numbers(0)))
    assert len(Loader(numbers(0))) == 0


def test_a_node_of_a_user_has_the_length_that_it_says() -> None:
    class Sized(BaseNode[int]):
        def __len__(self) -> int:
            return 7

    assert len(Loader(Prefetcher(Batcher(Sized(), 2, drop_last=False), 2))) == 4
