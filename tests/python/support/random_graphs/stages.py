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
Dice = random.Random

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


SOURCES: dict[str, Callable[[Dice, int], Pipe]] = {
    "range": lambda dice, size: iter_pipes.IterableWrapper(range(size)),
    "list": lambda dice, size: iter_pipes.IterableWrapper([dice.randrange(21) for _ in range(size)]),
    "set": lambda dice, size: iter_pipes.IterableWrapper(set(range(size))),
    "generator": lambda dice, size: iter_pipes.IterableWrapper([size]).flatmap(counted),
    "map": lambda dice, size: SequenceWrapper(range(size)).to_iter_datapipe(),
    "map_shuffle": lambda dice, size: SequenceWrapper(range(size)).shuffle(),
    "sampler": lambda dice, size: SequenceWrapper(range(size)).sample_by(Shuffled(size)),
    "lines": lambda dice, size: iter_pipes.FileOpener([_file_of(size)]).readlines(return_path=False),
    "csv": lambda dice, size: iter_pipes.FileOpener([_file_of(size)], mode="b").parse_csv(),
    "arrow": lambda dice, size: iter_pipes.ArrowReader(_table(size)).map(users.first_value),
    "arrow_shuffled": lambda dice, size: _shuffled_parts(size).read_arrow().map(users.first_value),
    "unstated": lambda dice, size: users.UnstatedSource(size),
    "by_hand": lambda dice, size: users.SourceByHand(size),
}

OVER_ONE: dict[str, Callable[[Dice, Pipe], Pipe]] = {
    "unstated": lambda dice, pipe: users.Unstated(pipe),
    "unstated_pairs": lambda dice, pipe: users.UnstatedPairs(pipe),
    "unstated_twice": lambda dice, pipe: users.UnstatedTwice(pipe),
    "unstated_random": lambda dice, pipe: users.UnstatedRandom(pipe),
    "one_to_one": lambda dice, pipe: users.OneToOne(pipe),
    "no_state": lambda dice, pipe: users.NoState(pipe),
    "declared": lambda dice, pipe: users.Declared(pipe),
    "by_hand": lambda dice, pipe: users.ByHand(pipe),
    "shuffle": lambda dice, pipe: pipe.shuffle(buffer_size=dice.choice([1, 3, 10, 100])),
    "shuffle_batches": lambda dice, pipe: pipe.batch(3).in_batch_shuffle().unbatch(),
    "header": lambda dice, pipe: pipe.header(dice.randrange(12)),
    "filter": lambda dice, pipe: pipe.filter(users.is_odd),
    "flatmap": lambda dice, pipe: pipe.flatmap(users.up_to),
    "cycle": lambda dice, pipe: pipe.header(8).cycle(dice.randrange(4)),
    "cache": lambda dice, pipe: pipe.in_memory_cache(),
    "small_cache": lambda dice, pipe: pipe.in_memory_cache(100 / 2**20),
    "map_cache": lambda dice, pipe: pipe.enumerate().to_map_datapipe().in_memory_cache().shuffle(),
    "fork_zip": lambda dice, pipe: iter_pipes.Zipper(*_unequal(dice, pipe.fork(2, buffer_size=1000))),
    "fork_concat": lambda dice, pipe: iter_pipes.Concater(*_unequal(dice, pipe.fork(3, buffer_size=1000))),
    "fork_mux": lambda dice, pipe: iter_pipes.MultiplexerLongest(*_unequal(dice, pipe.fork(2))),
    "fork_to_map": lambda dice, pipe: _by_map(pipe.enumerate().fork(2)),
    "demux": lambda dice, pipe: dice.choice([iter_pipes.Concater, iter_pipes.MultiplexerLongest])(
        *_unequal(dice, pipe.demux(3, users.remainder))
    ),
    "unzip": lambda dice, pipe: iter_pipes.ZipperLongest(*_unequal(dice, pipe.enumerate().unzip(2))),
    "round_robin": lambda dice, pipe: iter_pipes.Concater(*_unequal(dice, pipe.round_robin_demux(3))),
    "split": lambda dice, pipe: iter_pipes.Concater(
        *pipe.random_split({"a": 1, "b": 2}, seed=dice.choice([None, 1]), total_length=1000)
    ),
    "twice": lambda dice, pipe: iter_pipes.Concater(pipe, pipe),
    "sharded": lambda dice, pipe: _sharded(dice, pipe),
}

OVER_SEVERAL: dict[str, Callable[[Dice, list[Pipe]], Pipe]] = {
    "concat": lambda dice, pipes: iter_pipes.Concater(*pipes),
    "zip": lambda dice, pipes: iter_pipes.Zipper(*pipes),
    "zip_longest": lambda dice, pipes: iter_pipes.ZipperLongest(*pipes),
    "mux": lambda dice, pipes: iter_pipes.Multiplexer(*pipes),
    "mux_longest": lambda dice, pipes: iter_pipes.MultiplexerLongest(*pipes),
    "sample": lambda dice, pipes: iter_pipes.SampleMultiplexer({pipe: 1 + n for n, pipe in enumerate(pipes)}),
    "sample_seeded": lambda dice, pipes: iter_pipes.SampleMultiplexer(dict.fromkeys(pipes, 1), seed=5),
}

GLOBAL: dict[str, Callable[[Dice, Pipe], Pipe]] = {
    "drawn": lambda dice, pipe: pipe.map(users.drawn),
    "drawn_by_numpy": lambda dice, pipe: pipe.map(users.drawn_by_numpy),
    "drawn_by_torch": lambda dice, pipe: pipe.map(users.drawn_by_torch if "torch" in sys.modules else users.drawn),
    "some": lambda dice, pipe: pipe.flatmap(users.some),
    "kept": lambda dice, pipe: pipe.filter(users.kept),
}

THREADED: dict[str, Callable[[Dice, Pipe], Pipe]] = {
    "prefetch": lambda dice, pipe: pipe.prefetch(dice.choice([1, 3, 20])),
    "threadpool": lambda dice, pipe: pipe.threadpool_map(small, scheduled_tasks=3, max_workers=2),
}

_THREADED_ROWS = {row.name for row in ROWS if "prefetch" in row.name or "threadpool" in row.name or "ahead" in row.name}
_ENDLESS = {"cycle_for_ever"}

for _row in ROWS:
    if _row.name not in _ENDLESS:
        _into = THREADED if _row.name in _THREADED_ROWS else OVER_ONE
        _into["row " + _row.name] = lambda dice, pipe, row=_row: row.build(lambda: pipe, **row.example)


def torch_stages() -> dict[str, Callable[[Dice, Pipe], Pipe]]:
    from torch.utils.data.datapipes import iter as torchs

    return {
        "torch_map": lambda dice, pipe: torchs.Mapper(pipe, small),
        "torch_filter": lambda dice, pipe: torchs.Filter(pipe, users.is_odd),
        "torch_batch": lambda dice, pipe: torchs.Batcher(pipe, 2),
        "torch_concat": lambda dice, pipe: torchs.Concater(pipe, iter_pipes.IterableWrapper(range(3))),
        "torch_zip": lambda dice, pipe: torchs.Zipper(pipe, iter_pipes.IterableWrapper(range(30))),
    }


def _unequal(dice: Dice, pipes: list[Pipe]) -> list[Pipe]:
    changed = []
    for pipe in pipes:
        choice = dice.randrange(5)
        if choice == 0:
            pipe = pipe.header(dice.randrange(4))
        elif choice == 1:
            pipe = pipe.map(small).batch(2)
        elif choice == 2:
            pipe = pipe.map(small).shuffle(buffer_size=3)
        elif choice == 3 and dice.random() < 0.4:
            pipe = users.Unstated(pipe.map(small))
        elif choice == 4 and "torch" in sys.modules and dice.random() < 0.3:
            pipe = torch_stages()["torch_map"](dice, pipe)
        changed.append(pipe)
    return changed


def _by_map(children: list[Pipe]) -> Pipe:
    left, right = children
    return iter_pipes.Concater(left.to_map_datapipe().to_iter_datapipe(indices=[0]).header(1), right)


def _sharded(dice: Dice, pipe: Pipe) -> Pipe:
    pipe = pipe.sharding_filter()
    pipe.apply_sharding(2, dice.randrange(2))
    return pipe
