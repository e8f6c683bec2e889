"""If there are fewer shards than workers, a warning names the workers that received no item in the epoch."""

import warnings
from typing import Any

import pytest

from random_graphs.users import unpinned
from resuming import resumed, stopped
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper


def shard(size: int) -> list[int]:
    return list(range(size))


def shards(*sizes: int) -> Any:
    return IterableWrapper(sizes).sharding_filter().flatmap(shard)


def shown(pipe: Any, workers: int, epochs: int = 2, **options: Any) -> list[str]:
    service = MultiProcessingReadingService(workers, **options)
    with warnings.catch_warnings(record=True) as caught, DataLoader2(pipe, reading_service=service) as loader:
        warnings.simplefilter("always")
        for _ in range(epochs):
            list(loader)
    assert {warning.filename for warning in caught} <= {__file__}, "the warning names the line of the loop"
    assert {warning.category for warning in caught} <= {UserWarning}
    return [str(warning.message) for warning in caught]


def test_one_line_reports_fewer_shards_than_workers() -> None:
    assert shown(shards(50, 30), 4) == [
        "worker processes 2 and 3 have yielded no item in this epoch, and no worker more than 50: probably there are "
        "fewer files, shards or blocks of ShardingPolicy (2) than workers (4). Use num_workers=2, or more and smaller "
        "shards and blocks"
    ]
    assert shown(shards(50), 2) == [
        "worker process 1 has yielded no item in this epoch, and no worker more than 50: probably there are fewer "
        "files, shards or blocks of ShardingPolicy (1) than workers (2). Use num_workers=1, or more and smaller shards "
        "and blocks"
    ]
    after = shards(50, 30).pin_memory(pin_memory_fn=unpinned)  # `pin_memory` runs in the main process
    [warning] = shown(after, 3)
    assert "worker process 2 has yielded no item in this epoch, and no worker more than 50" in warning


@pytest.mark.parametrize(
    ("pipe", "workers", "options"),
    [
        (IterableWrapper(range(3)).sharding_filter(), 4, {}),
        (IterableWrapper(range(9)).sharding_filter().batch(9), 4, {}),
        (shards(9, 30), 3, {}),
        (IterableWrapper([]).sharding_filter(), 2, {}),
        (shards(50, 30), 2, {}),
        (shards(10, 0, 40, 0, 10), 3, {}),
        (shards(50, 30), 4, {"in_order": False}),
        (shards(50), 1, {}),
        (shards(20, 9, 0, 10), 4, {}),
        (IterableWrapper([50, 30]).sharding_round_robin_dispatch().flatmap(shard), 3, {}),
    ],
)
def test_nothing_is_reported_about_busy_workers_or_small_datasets(
    pipe: Any, workers: int, options: dict[str, Any]
) -> None:
    assert shown(pipe, workers, **options) == []


def test_an_abandoned_epoch_is_not_reported_but_a_resumed_one_is() -> None:
    _, state = stopped(DataLoader2(shards(50, 50), num_workers=3), 20)
    with pytest.warns(UserWarning, match="worker process 2 has yielded no item .* more than 50"):
        [rest] = resumed(DataLoader2(shards(50, 50), num_workers=3), state)
    assert len(rest) == 80


def test_a_warning_that_is_an_error_leaves_the_loader_between_two_epochs() -> None:
    loader = DataLoader2(shards(50), reading_service=MultiProcessingReadingService(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="no item in this epoch"):
            list(loader)
        assert list(loader) == list(loader) == shard(50)
    loader.shutdown()
