"""Wraps datasets in pipes, and builds the usual pipeline over a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torchdata.dataloader2.graph.settings import is_sharding
from torchdata.datapipes._pipe.checks import check_callable, check_optional_int, is_dataset
from torchdata.datapipes._pipe.datasets import (
    is_generator_function,
    is_indexed,
    is_known_to_split,
    splits_among_ranks,
    splits_itself,
)
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.graph.traversal import is_pipe
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe
from torchdata.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper, ShardingRoundRobinDispatcher
from torchdata.datapipes.map import SequenceWrapper


def pipe_over(dataset: Any) -> Any:
    """Wraps a dataset without copying it, and returns any other object unchanged."""
    if is_pipe(dataset):
        return dataset
    if is_indexed(dataset) and not isinstance(dataset, (str, bytes, bytearray, type)):
        return SequenceWrapper(dataset, deepcopy=False)
    if is_generator_function(dataset) or (is_dataset(dataset) and hasattr(type(dataset), "__iter__")):
        return IterableWrapper(dataset, deepcopy=False)
    return dataset


def pipeline_over(
    dataset: Any,
    batch_size: int | None,
    shuffle: bool,
    sampler: Iterable[Any] | None,
    drop_last: bool,
    collate_fn: Callable[[Any], Any] | None,
    itself: bool | None,
) -> IterDataPipe[Any]:
    """Builds the pipeline of `DataLoader2.from_dataset`, which documents the arguments and the errors."""
    owner = "DataLoader2.from_dataset"
    check_optional_int(owner, "batch_size", batch_size, least=1)
    if batch_size is None and drop_last:
        raise ValueError(f"{owner}: drop_last omits an incomplete batch, so it needs a batch_size")
    check_callable(owner, "collate_fn", collate_fn, optional=True)
    if sampler is not None and shuffle:
        raise ValueError(f"{owner}: a sampler determines the order, so shuffle must be False")
    source = pipe_over(dataset)
    if not is_pipe(source):
        raise TypeError(
            f"{owner} loads a dataset with `__len__` and `__getitem__`, an iterable that can be iterated repeatedly, "
            f"or a pipe, but got {dataset!r} of type {type(dataset).__name__}; wrap it in an IterableWrapper or a list "
            "first"
        )
    pipe: Any
    if isinstance(source, MapDataPipe):
        if sampler is not None:
            pipe = source.sample_by(sampler)
        else:
            pipe = source.shuffle() if shuffle else source.to_iter_datapipe()
    elif sampler is not None:
        raise ValueError(f"{owner}: a sampler yields indices, but {dataset!r} can only be iterated")
    else:
        pipe = source.shuffle() if shuffle else source
    if not any(is_sharding(member) or isinstance(member, ShardingRoundRobinDispatcher) for member in Graph(pipe)):
        # The indices of a map-style dataset are always divided among the workers, even if the dataset's code uses
        # `get_worker_info`.
        own = not isinstance(source, MapDataPipe) and (splits_itself(dataset) if itself is None else itself)
        if not own or not splits_among_ranks(dataset):
            pipe = pipe.sharding_filter(SHARDING_PRIORITIES.DISTRIBUTED if own else None)
            pipe.set_sharding_block(batch_size)
            pipe.source_splits_itself = own and itself is None and not is_known_to_split(dataset)
    if batch_size is not None:
        pipe = pipe.batch(batch_size, drop_last)
        return pipe.collate() if collate_fn is None else pipe.map(collate_fn)  # type: ignore[no-any-return]
    return pipe if collate_fn is None else pipe.map(collate_fn)  # type: ignore[no-any-return]
