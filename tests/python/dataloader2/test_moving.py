"""A state from inside an epoch can be moved between loaders with and without workers."""

import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from one_rank import Alone
from process_checks import nothing_is_left  # noqa: F401
from random_graphs.users import Passing, unpinned
from resuming import begun, epochs_of, saved, stopped
from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    InProcessReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("often")]

UNITS = 30


class Bad(ValueError):
    """The exception of `failing`."""


def failing(item: int) -> int:
    if item == 20:
        raise Bad(item)
    return item


def shuffled(items: int = UNITS) -> Any:
    return IterableWrapper(range(items)).shuffle()


class Tuples(IterDataPipe[tuple[int, ...]]):
    iteration_state = ()

    def __init__(self, source: Any, size: int) -> None:
        self.source, self.size = source, size

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        source = iter(self.source)
        while items := tuple(itertools.islice(source, self.size)):
            yield items


def drawing(item: int) -> str:
    random.random()
    return str(item)


PIPES = {
    "items": (lambda: shuffled().sharding_filter().map(str), 1),
    "batches": (lambda: shuffled(3 * UNITS - 1).sharding_filter().batch(3).map(list), 3),
    "batches of the user's": (lambda: Tuples(shuffled(3 * UNITS - 1).sharding_filter(), 3), 3),
    "two passes": (lambda: shuffled(UNITS // 2).cycle(2).shuffle(buffer_size=4).sharding_filter().map(str), 1),
    "what is replayed": (lambda: Passing(shuffled()).sharding_filter().map(str), 1),
    "what main reads ahead": (lambda: shuffled().sharding_filter().pin_memory(pin_memory_fn=unpinned), 1),
}
SERVICES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "in process": InProcessReadingService,
    "in process, ahead": lambda: InProcessReadingService(prefetch_cnt=3),
    "ranks": lambda: SequentialReadingService(DistributedReadingService(process_group=Alone())),
    "ranks and a worker": lambda: SequentialReadingService(
        DistributedReadingService(process_group=Alone()), MultiProcessingReadingService(1)
    ),
}


def loader(pipe: Any, service: Any, state: Any = None, block: int = 1) -> DataLoader2[Any]:
    return begun(DataLoader2(pipe, ShardingPolicy(block), service), state)


@pytest.mark.parametrize(("kind", "service"), [*zip(PIPES, itertools.cycle([*SERVICES][:3]), strict=False)])
def test_a_state_moves_from_workers_to_none_and_back_in_the_same_order(kind: str, service: str) -> None:
    (pipe, block), in_main = PIPES[kind], SERVICES[service]
    whole = epochs_of(loader(pipe(), in_main(), block=block), 3)
    got: list[Any] = []
    state = None
    others = [make() for make in SERVICES.values()]
    services = [in_main(), *others, MultiProcessingReadingService(2), in_main(), SERVICES["ranks and a worker"]()]
    services += [SERVICES["ranks"](), MultiProcessingReadingService(3)]  # more workers than shards
    for number, (each, ago) in enumerate(zip(services, [0, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0], strict=True)):
        random.seed(number)  # The items must not depend on the program's random generators.
        with loader(pipe(), each, state, block) as made:
            if not number:
                assert list(made) == whole[0]
            reading = iter(made)
            got += [next(reading) for _ in range(3)]
            time.sleep(0.01)  # threads read ahead as far as they can
            state = saved(made, items_ago=ago)
            del got[len(got) - ago :]
    rest, following = epochs_of(loader(pipe(), MultiProcessingReadingService(1), state, block))
    assert [got + rest, following] == whole[1:]


def test_seeds_that_pipes_drew_by_themselves_are_not_sent_to_workers() -> None:
    _, state = stopped(DataLoader2(shuffled().sharding_filter()), 3)
    made = loader(shuffled().sharding_filter(), MultiProcessingReadingService(2), state)
    with made, pytest.raises(ValueError, match=r"pipes drew their own seeds.*Call `loader\.seed"):
        iter(made)
    with loader(shuffled().sharding_filter(), None, state) as made:
        assert len(list(made)) == UNITS - 3


@pytest.mark.parametrize(
    ("pipe", "old", "new"),
    [
        (lambda: Passing(shuffled()).map(drawing), "ranks", "ranks and a worker"),
        (lambda: Passing(shuffled().map(str)), "in process", "in process, ahead"),
        (lambda: Passing(shuffled().map(drawing)), "in process", "in process, ahead"),
    ],
)
def test_a_replay_moves_between_services_that_append_other_pipes(pipe: Any, old: str, new: str) -> None:
    items, state = stopped(loader(pipe(), SERVICES[old]()), 2)
    with loader(pipe(), SERVICES[new](), state) as made:
        assert sorted([*items, *made]) == sorted(map(str, range(UNITS)))


def test_before_the_first_item_any_pipeline_moves() -> None:
    def pipe() -> Any:
        return shuffled().sharding_filter().shuffle()

    for old, new in [(2, 0), (0, 2)]:
        services = [MultiProcessingReadingService(n) if n else InProcessReadingService() for n in (old, new, new)]
        _, state = stopped(loader(pipe(), services[0]), 0)
        with loader(pipe(), services[1], state) as made, loader(pipe(), services[2]) as other:
            assert list(made) == list(other)


@pytest.mark.parametrize(
    ("ahead", "before", "after"), [("prefetch", 0, 3), ("threadpool_map", 2, 0), ("prefetch", 1, 2)]
)
def test_an_error_that_was_read_ahead_is_raised_at_its_position(ahead: str, before: int, after: int) -> None:
    pipe: Any = IterableWrapper(range(UNITS)).map(failing).sharding_filter()
    pipe = pipe.prefetch(9) if ahead == "prefetch" else pipe.threadpool_map(str, max_workers=2)

    def service(workers: int) -> Any:
        return MultiProcessingReadingService(workers) if workers else InProcessReadingService(prefetch_cnt=9)

    def read(made: DataLoader2[Any]) -> list[Any]:
        got = []
        with pytest.raises(Bad):
            got.extend(made)
        return got

    with loader(pipe, service(before)) as made:
        whole = read(made)
    assert len(whole) == 20
    for index in 15, 20:
        with loader(pipe, service(before)) as made:
            reading = iter(made)
            got = [next(reading) for _ in range(index)]
            time.sleep(0.02)  # during the sleep, threads usually reach the failing item
            state = saved(made)
        for _ in range(2):
            with loader(pipe, SERVICES["ranks"](), state) as made:
                iter(made)
                time.sleep(0.02)
                state = saved(made)
        with loader(pipe, service(after), state) as made:
            assert got + read(made) == whole
