"""Graphs that end in a torch pipe can resume from any position, including the beginning of a later epoch."""

import pickle
import random
from itertools import cycle, islice
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="it is its pipes that are tried here")

from torch.utils.data.datapipes.iter import Batcher, Filter, Mapper  # noqa: E402

from pipes_of_users import plus_one  # noqa: E402
from random_graphs.users import ByHand, Declared, drawn, is_odd, kept, up_to  # noqa: E402
from resuming import begun, check_resumes  # noqa: E402
from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService  # noqa: E402
from torchdata.datapipes._pipe.state.iteration import is_torchs, may_be_over  # noqa: E402
from torchdata.datapipes.iter import IterableWrapper, SampleMultiplexer  # noqa: E402
from torchdata.datapipes.state import (  # noqa: E402
    iterate,
    load_generators,
    load_state,
    save_generators,
    save_state,
)

pytestmark = pytest.mark.alone


def shuffled() -> Any:
    return IterableWrapper(range(6)).shuffle().sharding_filter()


def sampled() -> Any:
    return SampleMultiplexer({IterableWrapper(range(4)): 1, IterableWrapper(range(4, 8)): 2}, seed=3)


class Mapping(torch.utils.data.IterDataPipe):
    """A pipe of torch whose `__iter__` returns an iterator instead of being a generator function."""

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
#: Graphs with a last pipe for which torch reports neither the beginning nor the end of an iteration.
NEED_ITERATE = ("one that returns an iterator", "over random functions that leave items out")
SERVICES = {
    "none": lambda: None,
    "in process": InProcessReadingService,
    "workers": lambda: MultiProcessingReadingService(2),
}


def start(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)


def restarted(pipe: Any, build: Any) -> Any:
    """Returns a new pipe at the position of the given pipe, as in a new program with another seed."""
    state, generators = pickle.loads(pickle.dumps((save_state(pipe), save_generators())))
    start(99)
    pipe = build()
    load_state(pipe, state)
    load_generators(generators)
    return pipe


def after(build: Any, epochs: int, read: Any = iterate) -> Any:
    """Returns a pipe whose first epochs have been read."""
    start(1)
    pipe = build()
    for _ in range(epochs):
        list(read(pipe))
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


@pytest.mark.parametrize("kind", [kind for kind in GRAPHS if kind not in NEED_ITERATE])
def test_without_a_loader_a_pipe_resumes_in_the_middle_of_an_epoch_but_not_at_its_end(kind: str) -> None:
    build = GRAPHS[kind]
    pipe = after(build, 0)
    epochs = [list(pipe) for _ in range(3)]
    for epoch in range(2):
        for position in range(1, len(epochs[epoch]) + 2):
            pipe = after(build, epoch, iter)
            list(islice(iter(pipe), position))
            if is_torchs(pipe) and position >= len(epochs[epoch]) and may_be_over(pipe):
                with pytest.raises(TypeError, match=OVER):
                    save_state(pipe)
                continue
            assert position <= len(epochs[epoch]) or not is_torchs(pipe)
            pipe = restarted(pipe, build)
            assert [list(pipe), list(pipe)] == [epochs[epoch][position:], epochs[epoch + 1]], (epoch, position)


def test_a_torch_pipe_that_returns_an_iterator_and_began_unnoticed_is_refused_with_the_remedy() -> None:
    words = "ends in Mapping can be neither saved nor resumed.*state.iterate.*or append a pipe of this package"
    pipe = Mapping(shuffled())
    save_state(pipe)  # no iteration has begun yet
    next(iter(pipe))
    with pytest.raises(TypeError, match=words):
        save_state(pipe)
    next(iterate(pipe))
    state = save_state(pipe)
    load_state(pipe, state)
    with pytest.raises(TypeError, match=words):
        next(iter(pipe))


OVER = "does not show whether its pass is over or its next pass has begun.*state.iterate.*or append a pipe"


@pytest.mark.parametrize("source", ["ours", "torchs", "torchs without a length"])
def test_before_the_first_item_of_a_later_epoch_a_state_needs_iterate(source: str) -> None:
    def build() -> Any:
        if source == "ours":
            return Mapper(shuffled(), plus_one)
        pipe = Mapper(torch.utils.data.datapipes.iter.IterableWrapper(range(5)), plus_one)
        return pipe if source == "torchs" else Filter(pipe, is_odd)

    pipe = build()
    list(pipe)
    _iterator = iter(pipe)
    with pytest.raises(TypeError, match=OVER):
        save_state(pipe)
    expected = list(pipe) if source != "ours" else None
    pipe = build()
    list(iterate(pipe))
    _iterator = iterate(pipe)
    state = save_state(pipe)
    pipe = build()
    load_state(pipe, state)
    rest = list(pipe)
    assert rest == (expected or rest)
    assert len(rest) == {"ours": 6, "torchs": 5, "torchs without a length": 3}[source]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", PIPES)
@pytest.mark.parametrize("service", SERVICES)
def test_a_loader_resumes_within_an_epoch_at_its_end_and_in_the_next_one(kind: str, service: str, often: None) -> None:
    def loader(state: Any) -> DataLoader2[Any]:
        start(1 if state is None else 99)
        return begun(DataLoader2(PIPES[kind](), reading_service=SERVICES[service]()), state)

    check_resumes(loader, (0, 0), (0, 1), (0, -2), (1, -1), (2, 0), (2, 1), (2, 2))
