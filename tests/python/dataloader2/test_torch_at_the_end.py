"""Graphs that end in a torch pipe can resume from any position, including the beginning of a later epoch."""

import pickle
import random
from itertools import cycle, islice
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the tests use torch's own pipes")

from torch.utils.data.datapipes.iter import Batcher, Filter, Mapper  # noqa: E402

from pipes_of_users import plus_one  # noqa: E402
from random_graphs.users import ByHand, Declared, drawn, is_odd, kept, up_to  # noqa: E402
from resuming import begun, check_resumes  # noqa: E402
from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService  # noqa: E402
from torchdata.datapipes.iter import IterableWrapper, SampleMultiplexer  # noqa: E402
from torchdata.datapipes.state import iterate, load_generators, load_state, save_generators, save_state  # noqa: E402

pytestmark = pytest.mark.alone


def shuffled() -> Any:
    return IterableWrapper(range(6)).shuffle().sharding_filter()


def sampled() -> Any:
    return SampleMultiplexer({IterableWrapper(range(4)): 1, IterableWrapper(range(4, 8)): 2}, seed=3)


class Mapping(torch.utils.data.IterDataPipe):
    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Any:
        return map(plus_one, self.source)


PIPES = {
    "a batcher": lambda: Batcher(Mapper(shuffled(), plus_one), 2),
    "over passes, draws and epochs that are counted": lambda: Mapper(
        ByHand(IterableWrapper(range(3)).shuffle().cycle(2).sharding_filter().map(drawn)), plus_one
    ),
}
GRAPHS = {
    **PIPES,
    "a mapper": lambda: Mapper(shuffled(), plus_one),
    "over declared numbers of epochs": lambda: Mapper(Declared(shuffled()), plus_one),
    "over random functions": lambda: Batcher(shuffled().map(drawn), 2),
    "over random functions that leave items out": lambda: Mapper(shuffled().filter(kept), plus_one),
    "over a generator that goes on through the epochs": lambda: Mapper(sampled(), plus_one),
    "not at the end, below a function that makes several items": lambda: Filter(shuffled(), is_odd).flatmap(up_to),
    "one that returns an iterator": lambda: Mapping(Declared(shuffled().map(drawn))),
}
SERVICES = {
    "none": lambda: None,
    "in process": InProcessReadingService,
    "workers": lambda: MultiProcessingReadingService(2),
}


def start(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)


def restarted(pipe: Any, build: Any) -> Any:
    state, generators = pickle.loads(pickle.dumps((save_state(pipe), save_generators())))
    start(99)
    pipe = build()
    load_state(pipe, state)
    load_generators(generators)
    return pipe


def after(build: Any, epochs: int) -> Any:
    start(1)
    pipe = build()
    for _ in range(epochs):
        list(iterate(pipe))
    return pipe


@pytest.mark.parametrize(("kind", "chain"), [*zip(GRAPHS, cycle([[], [0, 1], [1, 0]]), strict=False)])
def test_a_graph_resumes_from_every_position_and_in_the_next_epoch(kind: str, chain: list[int]) -> None:
    build = GRAPHS[kind]
    pipe = after(build, 0)
    epochs = [list(iterate(pipe)) for _ in range(4)]
    for epoch in range(3):
        for position in range(len(epochs[epoch]) + 2):
            pipe = after(build, epoch)
            reading = iterate(pipe)
            rest = epochs[epoch][len(list(islice(reading, position))) :]
            for count in [*chain, None]:
                pipe = restarted(pipe, build)
                if count is not None:
                    reading = iterate(pipe)
                    rest = rest[len(list(islice(reading, count))) :]
            assert [list(iterate(pipe)), list(iterate(pipe))] == [rest, epochs[epoch + 1]], (epoch, position)


UNNOTICED = "can be neither saved nor resumed.*state.iterate.*or append a pipe of this package"


@pytest.mark.parametrize("build", [lambda: Mapper(shuffled(), plus_one), lambda: Mapping(shuffled())])
@pytest.mark.parametrize("read", [1, None])
def test_a_pass_that_began_without_iterate_is_refused_with_the_remedy(build: Any, read: int | None) -> None:
    pipe = build()
    save_state(pipe)
    for _ in range(2):
        list(islice(pipe, read))
        with pytest.raises(TypeError, match=UNNOTICED):
            save_state(pipe)
        next(iterate(pipe))
        save_state(pipe)


def test_a_loaded_state_is_resumed_without_iterate_or_refused() -> None:
    for build in (lambda: Mapper(shuffled(), plus_one), lambda: Mapping(shuffled())):
        pipe = after(build, 1)
        reading = iterate(pipe)
        next(reading)
        other = restarted(pipe, build)
        if isinstance(other, Mapping):
            with pytest.raises(TypeError, match=UNNOTICED):
                next(iter(other))
        else:
            assert list(other) == list(reading)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", PIPES)
@pytest.mark.parametrize("service", SERVICES)
def test_a_loader_resumes_within_an_epoch_at_its_end_and_in_the_next_one(kind: str, service: str, often: None) -> None:
    def loader(state: Any) -> DataLoader2[Any]:
        start(1 if state is None else 99)
        return begun(DataLoader2(PIPES[kind](), reading_service=SERVICES[service]()), state)

    check_resumes(loader, (0, 0), (0, 1), (0, -2), (1, -1), (2, 0), (2, 1), (2, 2))
