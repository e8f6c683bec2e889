"""Without a loader, random pipes use a different seed in each pass of an epoch, and the seeds are part of states."""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from archive_bytes import tar_of
from torchdata._importing import loaded
from torchdata.dataloader2.graph.settings import set_graph_random_seed
from torchdata.dataloader2.random import SeedGenerator
from torchdata.datapipes.iter import IterableWrapper, SampleMultiplexer, Zipper
from torchdata.datapipes.map import SequenceWrapper
from torchdata.datapipes.state import load_state, save_state


class Drawn:
    """A sampler that draws its order from the global random generator."""

    def __iter__(self) -> Any:
        return iter(random.sample(range(6), 6))

    def __len__(self) -> int:
        return 6


def pair(item: Any) -> Any:
    return item, item


def content(member: Any) -> Any:
    return member[1].read()


def members() -> Any:
    archive = tar_of((f"{number}.txt", b"%d" % number) for number in range(4))
    return IterableWrapper([("a.tar", archive)]).map(io.BytesIO, input_col=1).load_from_tar()


def split() -> Any:
    train, _ = IterableWrapper(range(9)).random_split({"train": 6, "valid": 3}, seed=None)
    return train


GRAPHS: dict[str, Callable[[], Any]] = {
    "a shuffled map pipe": lambda: SequenceWrapper(range(6)).shuffle().cycle(2),
    "a shuffled map pipe below others": lambda: SequenceWrapper(range(6)).shuffle().batch(2).map(tuple).cycle(3),
    "a shuffled map pipe of what was read": lambda: (
        IterableWrapper(range(4)).shuffle().to_map_datapipe(pair).shuffle().cycle(3)
    ),
    "a sampler": lambda: SequenceWrapper(range(6)).sample_by(Drawn()).cycle(3),
    "a shuffle": lambda: IterableWrapper(range(6)).shuffle(buffer_size=3).cycle(3),
    "a shuffle in batches": lambda: IterableWrapper(range(9)).batch(3).in_batch_shuffle().cycle(3),
    "a choice between inputs": lambda: SampleMultiplexer(
        {IterableWrapper(range(3)): 1, IterableWrapper(range(3, 6)): 2}
    ).cycle(3),
    "a child of a split": lambda: split().shuffle().cycle(3),
    "a fork": lambda: Zipper(*IterableWrapper(range(4)).shuffle().fork(2)).cycle(3),
    "members of an archive": lambda: members().shuffle().map(content).cycle(3),
    "a shuffle in a thread": lambda: IterableWrapper(range(4)).shuffle().prefetch(2).cycle(3),
}


def elsewhere(number: int) -> None:
    """Simulates another process by seeding the global random generators with a number that no other run uses."""
    random.seed(number)
    torch = loaded("torch")
    if torch is not None:
        torch.manual_seed(number)


@pytest.mark.filterwarnings("ignore:Some child DataPipes are not exhausted")
@pytest.mark.parametrize("kind", GRAPHS)
def test_a_graph_that_was_seeded_as_a_whole_resumes_with_its_later_passes(kind: str) -> None:
    def seeded() -> Any:
        elsewhere(1)
        return set_graph_random_seed(GRAPHS[kind](), SeedGenerator(5))

    pipe = seeded()
    first, second = list(pipe), list(pipe)
    for position in range(len(first) + 1):
        pipe = seeded()
        list(islice(pipe, position))
        for _ in range(2):  # the second time, the state is saved before any item was requested
            state = pickle.dumps(save_state(pipe))
            elsewhere(77)
            pipe = GRAPHS[kind]()
            load_state(pipe, pickle.loads(state))
        assert [list(pipe), list(pipe)] == [first[position:], second], position
