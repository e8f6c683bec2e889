"""A state that was saved with a different batch size is refused within an epoch, and accepted between two epochs."""

from __future__ import annotations

from typing import Any

import pytest

from resuming import stopped
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.datapipes.iter import IterableWrapper


def pipe(size: int) -> Any:
    return IterableWrapper(range(50)).shuffle(buffer_size=9).sharding_filter().batch(size).map(list)


def loader(size: int, workers: int = 0, policy: Any = None) -> DataLoader2[Any]:
    service = MultiProcessingReadingService(workers) if workers else None
    return DataLoader2(pipe(size), policy, service)


@pytest.mark.parametrize(("workers", "later"), [(0, 0), (2, 2), (2, 3), (0, 2), (2, 0)])
def test_a_state_inside_an_epoch_is_refused_by_a_loader_with_another_batch_size(workers: int, later: int) -> None:
    _, state = stopped(loader(4, workers, ShardingPolicy(block=4)), 1)
    with loader(5, later, ShardingPolicy(block=4)) as run:
        with pytest.raises(ValueError, match="Batcher, has batch_size=4 in the state and 5 in this loader.*between"):
            run.load_state_dict(state)
        assert len(next(iter(run))) == 5  # the refused state has not changed the loader
