"""Provides sources and pipes for random graphs. All items are ints below 21."""

import os
import random
import sys
from collections.abc import Callable
from typing import Any

from pipes_table import ROWS
from pipes_table.folders import folder
from random_graphs import users
from random_graphs.users import small
from torchdata.datapipes import iter as iter_pipes
from torchdata.datapipes.map import ArrowParts, SequenceWrapper

Pipe = Any
Draws = random.Random

_FOLDER = folder("lines")


def _file_of(size: int) -> str:
    path = os.path.join(_FOLDER, f"{size}.csv")
    if not os.path.exists(path):
        with open(path, "w") as file:
            file.write("".join(f"{number},{number * number}\n" for number in range(size)))
    return path


def _table(size: int) -> Any:
    import pyarrow

    numbers = list(range(size))
    return pyarrow.table({"number": pyarrow.chunked_array([numbers[at : at + 3] for at in range(0, size, 3)], "int64")})


class Shuffled:
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Any:
        return iter(random.sample(range(self.size), self.size))

    def __len__(self) -> int:
        return self.size


def counted(size: int) -> Any:
    yield from range(size)


def _shuffled_parts(size: int) -> Pipe:
    parts = ArrowParts(_table(size)).shuffle()
    return parts.batch(2) if size % 2 else parts


SOURCES: dict[str, Callable[[Draws, int], Pipe]] = {
    "range": lambda rng, size: iter_pipes.IterableWrapper(range(size)),
    "list": lambda rng, size: iter_pipes.IterableWrapper([rng.randrange(21) for _ in range(size)]),
    "set": lambda rng, size: iter_pipes.IterableWrapper(set(range(size))),
    "generator": lambda rng, size: iter_pipes.IterableWrapper([size]).flatmap(counted),
    "map": lambda rng, size: SequenceWrapper(range(size)).to_iter_datapipe(),
    "map_shuffle": lambda rng, size: SequenceWrapper(range(size)).shuffle(),
    "sampler": lambda rng, size: SequenceWrapper(range(size)).sample_by(Shuffled(size)),
    "lines": lambda rng, size: iter_pipes.FileOpener([_file_of(size)]).readlines(return_path=False),
    "csv": lambda rng, size: iter_pipes.FileOpener([_file_of(size)], mode="b").parse_csv(),
    "arrow": lambda rng, size: iter_pipes.ArrowReader(_table(size)).map(users.first_value),
    "arrow_shuffled": lambda rng, size: _shuffled_parts(size).read_arrow().map(users.first_value),
    "unstated": lambda rng, size: users.UnstatedSource(size),
    "by_hand": lambda rng, size: users.SourceByHand(size),
}

OVER_ONE: dict[str, Callable[[Draws, Pipe], Pipe]] = {
    "unstated": lambda rng, pipe: users.Unstated(pipe),
    "unstated_pairs": lambda rng, pipe: users.UnstatedPairs(pipe),
    "unstated_twice": lambda rng, pipe: users.UnstatedTwice(pipe),
    "unstated_random": lambda rng, pipe: users.UnstatedRandom(pipe),
    "one_to_one": lambda rng, pipe: users.OneToOne(pipe),
    "no_state": lambda rng, pipe: users.NoState(pipe),
    "declared": lambda rng, pipe: users.Declared(pipe),
    "by_hand": lambda rng, pipe: users.ByHand(pipe),
    "shuffle": lambda rng, pipe: pipe.shuffle(buffer_size=rng.choice([1, 3, 10, 100])),
    "shuffle_batches": lambda rng, pipe: pipe.batch(3).in_batch_shuffle().unbatch(),
    "header": lambda rng, pipe: pipe.header(rng.randrange(12)),
    "filter": lambda rng, pipe: pipe.filter(users.is_odd),
    "flatmap": lambda rng, pipe: pipe.flatmap(users.up_to),
    "cycle": lambda rng, pipe: pipe.header(8).cycle(rng.randrange(4)),
    "cache": lambda rng, pipe: pipe.in_memory_cache(),
    "small_cache": lambda rng, pipe: pipe.in_memory_cache(100 / 2**20),
    "map_cache": lambda rng, pipe: pipe.enumerate().to_map_datapipe().in_memory_cache().shuffle(),
    "fork_zip": lambda rng, pipe: iter_pipes.Zipper(*_unequal(rng, pipe.fork(2, buffer_size=1000))),
    "fork_concat": lambda rng, pipe: iter_pipes.Concater(*_unequal(rng, pipe.fork(3, buffer_size=1000))),
    "fork_mux": lambda rng, pipe: iter_pipes.MultiplexerLongest(*_unequal(rng, pipe.fork(2))),
    "fork_to_map": lambda rng, pipe: _by_map(pipe.enumerate().fork(2)),
    "demux": lambda rng, pipe: rng.choice([iter_pipes.Concater, iter_pipes.MultiplexerLongest])(
        *_unequal(rng, pipe.demux(3, users.remainder))
    ),
    "unzip": lambda rng, pipe: iter_pipes.ZipperLongest(*_unequal(rng, pipe.enumerate().unzip(2))),
    "round_robin": lambda rng, pipe: iter_pipes.Concater(*_unequal(rng, pipe.round_robin_demux(3))),
    "split": lambda rng, pipe: iter_pipes.Concater(
        *pipe.random_split({"a": 1, "b": 2}, seed=rng.choice([None, 1]), total_length=1000)
    ),
    "twice": lambda rng, pipe: iter_pipes.Concater(pipe, pipe),
    "sharded": lambda rng, pipe: _sharded(rng, pipe),
}

OVER_SEVERAL: dict[str, Callable[[Draws, list[Pipe]], Pipe]] = {
    "concat": lambda rng, pipes: iter_pipes.Concater(*pipes),
    "zip": lambda rng, pipes: iter_pipes.Zipper(*pipes),
    "zip_longest": lambda rng, pipes: iter_pipes.ZipperLongest(*pipes),
    "mux": lambda rng, pipes: iter_pipes.Multiplexer(*pipes),
    "mux_longest": lambda rng, pipes: iter_pipes.MultiplexerLongest(*pipes),
    "sample": lambda rng, pipes: iter_pipes.SampleMultiplexer({pipe: 1 + n for n, pipe in enumerate(pipes)}),
    "sample_seeded": lambda rng, pipes: iter_pipes.SampleMultiplexer(dict.fromkeys(pipes, 1), seed=5),
}

GLOBAL: dict[str, Callable[[Draws, Pipe], Pipe]] = {
    "drawn": lambda rng, pipe: pipe.map(users.drawn),
    "drawn_by_numpy": lambda rng, pipe: pipe.map(users.drawn_by_numpy),
    "drawn_by_torch": lambda rng, pipe: pipe.map(users.drawn_by_torch if "torch" in sys.modules else users.drawn),
    "some": lambda rng, pipe: pipe.flatmap(users.some),
    "kept": lambda rng, pipe: pipe.filter(users.kept),
}

THREADED: dict[str, Callable[[Draws, Pipe], Pipe]] = {
    "prefetch": lambda rng, pipe: pipe.prefetch(rng.choice([1, 3, 20])),
    "threadpool": lambda rng, pipe: pipe.threadpool_map(small, scheduled_tasks=3, max_workers=2),
}

_THREADED_ROWS = {row.name for row in ROWS if "prefetch" in row.name or "threadpool" in row.name or "ahead" in row.name}
_ENDLESS = {"cycle_for_ever"}

for _row in ROWS:
    if _row.name not in _ENDLESS:
        _into = THREADED if _row.name in _THREADED_ROWS else OVER_ONE
        _into["row " + _row.name] = lambda rng, pipe, row=_row: row.build(lambda: pipe, **row.example)


def torch_stages() -> dict[str, Callable[[Draws, Pipe], Pipe]]:
    from torch.utils.data.datapipes import iter as torchs

    return {
        "torch_map": lambda rng, pipe: torchs.Mapper(pipe, small),
        "torch_filter": lambda rng, pipe: torchs.Filter(pipe, users.is_odd),
        "torch_batch": lambda rng, pipe: torchs.Batcher(pipe, 2),
        "torch_concat": lambda rng, pipe: torchs.Concater(pipe, iter_pipes.IterableWrapper(range(3))),
        "torch_zip": lambda rng, pipe: torchs.Zipper(pipe, iter_pipes.IterableWrapper(range(30))),
    }


def _unequal(rng: Draws, pipes: list[Pipe]) -> list[Pipe]:
    changed = []
    for pipe in pipes:
        choice = rng.randrange(5)
        if choice == 0:
            pipe = pipe.header(rng.randrange(4))
        elif choice == 1:
            pipe = pipe.map(small).batch(2)
        elif choice == 2:
            pipe = pipe.map(small).shuffle(buffer_size=3)
        elif choice == 3 and rng.random() < 0.4:
            pipe = users.Unstated(pipe.map(small))
        elif choice == 4 and "torch" in sys.modules and rng.random() < 0.3:
            pipe = torch_stages()["torch_map"](rng, pipe)
        changed.append(pipe)
    return changed


def _by_map(children: list[Pipe]) -> Pipe:
    left, right = children
    return iter_pipes.Concater(left.to_map_datapipe().to_iter_datapipe(indices=[0]).header(1), right)


def _sharded(rng: Draws, pipe: Pipe) -> Pipe:
    pipe = pipe.sharding_filter()
    pipe.apply_sharding(2, rng.randrange(2))
    return pipe
