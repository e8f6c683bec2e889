"""Within an epoch, each rank loads only its own state. The state of another rank causes an explanatory error."""

from __future__ import annotations

import random
from typing import Any

import pytest

from process_checks import nothing_is_left  # noqa: F401
from rank_threads import ThreadGroup, in_ranks
from resuming import begun, continued, epochs_of
from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from torchdata.datapipes.iter import IterableWrapper


def drawn(x: int) -> tuple[int, float]:
    """An augmentation that draws different random numbers on each rank."""
    return x, random.random()


def loader(group: ThreadGroup, workers: int, items: int) -> DataLoader2[Any]:
    service: Any = DistributedReadingService(60, process_group=group)
    if workers:
        service = SequentialReadingService(service, MultiProcessingReadingService(workers, "fork"))
    pipe: Any = IterableWrapper(list(range(items))).shuffle().sharding_filter()
    if workers:  # without workers, ranks would share the random numbers of this process, because they are threads
        pipe = pipe.map(drawn)
    return DataLoader2(pipe, reading_service=service)


def saved(workers: int, count: int | None) -> list[Any]:
    """Returns a pair for each rank: a state after `count` items, and the remaining items of the epoch.

    If `count` is None, the state is saved before the epoch.
    """

    def body(group: ThreadGroup) -> Any:
        made = begun(loader(group, workers, 40))
        if count is None:
            return made.state_dict(), *epochs_of(made, 1)
        return continued(made, count)[1:]

    return in_ranks(2, body)


def resumed(ranks: int, workers: int, items: int, states: dict[int, Any]) -> list[Any]:
    """Returns for each rank the items after the rank's state.

    A rank for which no state is given resumes from the state of rank 0.
    """

    def body(group: ThreadGroup) -> Any:
        with begun(loader(group, workers, items), states.get(group.rank, states[0])) as made:
            return list(made)

    return in_ranks(ranks, body)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_of_rank_0_is_refused_by_another_rank_with_the_remedy(workers: int, count: int) -> None:
    (state, rest), (other, others_rest) = saved(workers, count)
    with pytest.raises(ValueError, match=r"saved by rank 0 of 2, and this is rank 1 of 2: load each rank's own state"):
        resumed(2, workers, 40, {0: state})
    assert resumed(2, workers, 40, {0: state, 1: other}) == [rest, others_rest]


@pytest.mark.parametrize(("ranks", "here"), [(1, "no rank of a distributed job"), (3, r"rank \d of 3")])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_of_one_rank_is_refused_by_another_number_of_ranks(workers: int, ranks: int, here: str) -> None:
    state = saved(workers, 3)[0][0]
    with pytest.raises(ValueError, match=rf"saved by rank 0 of 2, and this is {here}"):
        resumed(ranks, workers, 40, {0: state})


@pytest.mark.parametrize("items", [20, 60])
@pytest.mark.parametrize("workers", [0, 2])
def test_states_of_ranks_are_refused_by_a_longer_or_shorter_dataset(workers: int, items: int) -> None:
    states = {rank: state for rank, (state, _) in enumerate(saved(workers, 3))}
    with pytest.raises(
        ValueError,
        match=rf"has iterable=builtins.list of length 40 in the state and builtins.list of length {items} in this",
    ):
        resumed(2, workers, items, states)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_rank_0_between_epochs_begins_the_epoch_of_each_rank(workers: int) -> None:
    (state, whole), (_, others_whole) = saved(workers, None)
    assert resumed(2, workers, 40, {0: state}) == [whole, others_whole]
