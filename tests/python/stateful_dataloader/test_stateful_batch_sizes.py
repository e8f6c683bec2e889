"""If a loader resumes with another batch size, its first batch begins after the last delivered sample."""

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import BatchSampler, IterableDataset

from random_stateful.orders import SAMPLERS
from resumed import TakesOnce, advanced, loaded, seed_all
from torchdata.stateful_dataloader import StatefulDataLoader

KINDS = ["in order", "shuffle, generator", "RandomSampler", "WeightedRandomSampler"]
KINDS += ["user's, Python's generator", "user's, stateful"]


def loader(size: int, kind: str, workers: int = 0) -> Any:
    options = {"num_workers": workers, "snapshot_every_n_steps": 3 if workers else 1, **SAMPLERS[kind](50, size)}
    return StatefulDataLoader(range(50), batch_size=size, **options)


def flat(batches: Any) -> list[int]:
    return [int(item) for batch in batches for item in batch]


@pytest.mark.parametrize(
    ("kind", "workers"), [*((kind, 0) for kind in KINDS), ("RandomSampler", 2), ("user's, stateful", 2)]
)
def test_the_rest_of_the_epoch_and_the_next_one_equal_those_of_an_uninterrupted_run(kind: str, workers: int) -> None:
    seed_all(1)
    whole = loader(4, kind, workers)
    first, second = flat(whole), flat(whole)
    for received, size in ((1, 6), (5, 3), (7, 7), (12, 5))[: 2 if workers else 4]:
        seed_all(1)
        run = loader(4, kind, workers)
        epoch = iter(run)
        assert flat(next(epoch) for _ in range(received)) == first[: 4 * received]
        run = loaded(loader(size, kind, workers), run.state_dict())
        rest = [batch.tolist() for batch in run]
        assert [item for batch in rest for item in batch] == first[4 * received :]
        assert all(len(batch) == size for batch in rest[:-1])
        assert flat(run) == second


class Long(TakesOnce):
    length = 50


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_with_a_state_resumes_after_the_last_sample(workers: int) -> None:
    run = StatefulDataLoader(Long(), batch_size=4, num_workers=workers)
    epoch = iter(run)
    assert flat(next(epoch) for _ in range(3)) == list(range(12))
    run = loaded(StatefulDataLoader(Long(), batch_size=5, num_workers=workers), run.state_dict())
    assert [batch.tolist() for batch in run][:2] == [[12, 13, 14, 15, 16], [17, 18, 19, 20, 21]]


class Lines(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        yield from range(50)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda size: StatefulDataLoader(Lines(), batch_size=size), "the dataset does not have a position for each"),
        (
            lambda size: StatefulDataLoader(range(50), batch_sampler=BatchSampler(range(50), size, False)),
            "the position in the BatchSampler is a number of batches",
        ),
    ],
)
def test_positions_that_count_batches_are_refused_by_name(made: Any, message: str) -> None:
    run = made(4)
    advanced(run, 1)
    run = loaded(made(5), run.state_dict())
    with pytest.raises(ValueError, match=rf"batches of 4 samples, but now they have 5: {message}"):
        next(iter(run))


@pytest.mark.parametrize(("old", "size"), [(4, 3), (4, 5), (60, 3)])
def test_before_the_first_batch_a_sampler_s_position_fits_another_batch_size(old: int, size: int) -> None:
    run, whole = (loader(old, "user's, stateful") for _ in range(2))
    assert flat(run) == flat(whole)
    iter(run)
    run = loaded(loader(size, "user's, stateful"), run.state_dict())
    first = next(iter(run)).tolist()
    rest = flat(loaded(loader(7, "user's, stateful"), run.state_dict()))
    assert [len(first), *first, *rest] == [size, *flat(whole)]
