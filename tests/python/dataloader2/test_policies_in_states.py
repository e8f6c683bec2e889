"""Within an epoch, a loader refuses states, adapters and batch sizes that would change the settings of a pipe."""

from typing import Any

import pytest

from resuming import begun, resumed
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.adapter import ShardingPolicy, Shuffle
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.map import SequenceWrapper


def batched(size: int = 8) -> Any:
    return IterableWrapper(range(100)).sharding_filter().batch(size).map(list)


def shuffled() -> Any:
    return IterableWrapper(range(100)).shuffle().sharding_filter()


def saved(pipe: Any, adapter: Any, workers: int, items: int) -> dict[str, Any]:
    with begun(DataLoader2(pipe, adapter, num_workers=workers)) as run:
        for _, _ in zip(range(items), run, strict=False):
            pass
        return run.state_dict()


OTHERS = [
    (batched, None, ShardingPolicy(block=8), r"ShardingFilter, has ShardingPolicy\.block=1 in the state and 8"),
    (batched, ShardingPolicy(block=8), None, r"ShardingFilter, has ShardingPolicy\.block=8 in the state and 1"),
    (batched, None, ShardingPolicy(enable=False), r"ShardingPolicy\.enable=True in the state and False"),
    (shuffled, None, Shuffle(False), r"Shuffler, has Shuffle\.enable=True in the state and False"),
    (
        lambda: SequenceWrapper(range(100)).shuffle().sharding_filter(),
        None,
        Shuffle(False),
        r"Shuffler, has Shuffle\.enable=True in the state and False",
    ),
]


MOVES = [(0, 0), (2, 2), (3, 2), (0, 2)]


@pytest.mark.parametrize(
    ("pipe", "adapter", "other", "words", "move"), [(*row, MOVES[n % 4]) for n, row in enumerate(OTHERS)]
)
def test_another_setting_of_an_adapter_is_refused_inside_an_epoch(
    pipe: Any, adapter: Any, other: Any, words: str, move: tuple[int, int]
) -> None:
    workers, later = move
    state = saved(pipe(), adapter, workers, 3)
    with (
        DataLoader2(pipe(), other, num_workers=later) as run,
        pytest.raises(ValueError, match=f"inside an epoch.*{words}"),
    ):
        run.load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_between_two_epochs_is_loaded_with_another_policy(workers: int) -> None:
    state = saved(batched(), None, workers, 100)
    epoch = [list(range(start, min(start + 8, 100))) for start in range(0, 100, 8)]
    assert resumed(DataLoader2(batched(), ShardingPolicy(block=8), num_workers=workers), state) == [epoch]


def test_the_policy_of_a_loader_that_takes_its_pipe_from_the_state_is_compared() -> None:
    state = saved(batched(), None, 4, 3)
    run = DataLoader2(None, ShardingPolicy(block=8), MultiProcessingReadingService(3))
    with run, pytest.raises(ValueError, match=r"ShardingPolicy\.block=1 in the state and 8"):
        run.load_state_dict(state)
    for workers in (3, 6):
        [rest] = resumed(DataLoader2(None, ShardingPolicy(), MultiProcessingReadingService(workers)), state)
        assert len(rest) == 13 - 3 + 3  # Each of the four shards has its own last batch.


@pytest.mark.parametrize(("workers", "later"), MOVES)
def test_a_state_inside_an_epoch_is_refused_by_a_loader_with_another_batch_size(workers: int, later: int) -> None:
    state = saved(batched(4), ShardingPolicy(block=4), workers, 1)
    with DataLoader2(batched(5), ShardingPolicy(block=4), num_workers=later) as run:
        with pytest.raises(ValueError, match="Batcher, has batch_size=4 in the state and 5 in this loader.*between"):
            run.load_state_dict(state)
        assert len(next(iter(run))) == 5
