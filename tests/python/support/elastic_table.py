"""Every move from some workers and ranks to others, against a run that was never moved.

    python -m elastic_table                                     # in tests/python/support: the whole table
    python -m elastic_table --kinds dispatch --positions start  # a part of it

A topology is (ranks, workers of each). From each to each, the states of all ranks are loaded where the epoch begins, in
the middle of a block and of the workers' round, near the end, behind the last item, behind the end and in the second
epoch. The new ranks must give the rest of the global order, dealt out by their numbers; the next epoch is compared,
too. Ranks are threads of this process.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import multiprocessing
import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from rank_threads import ThreadGroup, in_ranks
from torchdata._engine import snapshots
from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe

Topology = tuple[int, int]

RANKS, WORKERS = (1, 2, 4), (1, 2, 3, 4, 8)
TOPOLOGIES: list[Topology] = list(itertools.product(RANKS, WORKERS))

#: Units of an epoch: neither ranks nor workers divide them.
UNITS = 43
#: Items of a unit where these are batches. The last one has fewer.
BLOCK = 3


def plain(item: Any) -> Any:
    return item, 1


def fixed(item: list[Any]) -> Any:
    return tuple(item)


class Declared(IterDataPipe):
    """A user's pipe that says that it is one to one."""

    one_to_one = True

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            yield "declared", item


@dataclass(frozen=True)
class Kind:
    """A pipeline, and how its units are shared out.

    Args:
        block: items of a unit.
        dispatches: whether a process of each rank deals its units out to the workers.
        alone: whether one rank knows nothing of ranks.
    """

    block: int = 1
    dispatches: bool = False
    alone: bool = False

    def pipe(self) -> Any:
        pipe = IterableWrapper(range(UNITS * self.block - (self.block > 1))).shuffle().map(plain).sharding_filter()
        pipe = Declared(pipe)
        if self.block > 1:
            pipe = pipe.batch(self.block).map(fixed)
        if self.dispatches:
            pipe = pipe.sharding_round_robin_dispatch().map(plain)
        return pipe.prefetch(2)

    def loader(self, topology: Topology, group: ThreadGroup, state: Any = None) -> DataLoader2[Any]:
        service: Any = MultiProcessingReadingService(topology[1], "fork")
        if not self.alone or topology[0] > 1:
            service = SequentialReadingService(DistributedReadingService(60, process_group=group), service)
        made = DataLoader2(self.pipe(), ShardingPolicy(self.block), service)
        if state is None:
            made.seed(3)
        else:
            made.load_state_dict(state)
        return made

    def dealt(self, units: list[Any], topology: Topology) -> list[list[Any]]:
        """The units that each rank gives of those that are left."""
        ranks, workers = topology[0], 1 if self.dispatches else topology[1]
        shares: list[list[Any]] = [[] for _ in range(ranks)]
        for place, unit in enumerate(units):
            shares[place % (ranks * workers) // workers].append(unit)
        shortest = min(map(len, shares))
        return [share[:shortest] for share in shares]

    def is_agreed(self, topology: Topology) -> bool:
        """Whether ranks agree on the seeds of epochs."""
        return not self.alone or topology[0] > 1


KINDS = {
    "items": Kind(),
    "batches": Kind(block=BLOCK, alone=True),
    "dispatch": Kind(block=BLOCK, dispatches=True),
}

#: Where a state is taken: in which epoch, and after which of so many steps; None stands for the end.
POSITIONS: dict[str, tuple[int, Callable[[int], int] | None]] = {
    "start": (0, lambda steps: 0),
    "in a block": (0, lambda steps: 5),  # a unit may be a batch, and the workers' round is a block of them
    "near the end": (0, lambda steps: steps - 1),
    "behind the last item": (0, lambda steps: steps),
    "behind the end": (0, None),
    "second epoch": (1, lambda steps: 4),
}


class Differs(AssertionError):
    """A loader did not go on as the run that was never moved."""


class Moves:
    """All moves of one kind of pipeline; remembers what each run and each source gave.

    Args:
        kind: the kind's name.
    """

    def __init__(self, kind: str) -> None:
        self.kind = KINDS[kind]
        self._epochs: dict[bool, list[list[Any]]] = {}
        self._states: dict[Topology, dict[str, dict[int, Any]]] = {}

    def epochs(self, agreed: bool) -> list[list[Any]]:
        """The units of three epochs in their global order."""
        if agreed not in self._epochs:
            kind = dataclasses.replace(self.kind, alone=not agreed)

            def body(group: ThreadGroup) -> list[list[Any]]:
                with kind.loader((1, 1), group) as loader:
                    return [list(loader) for _ in range(3)]

            [self._epochs[agreed]] = in_ranks(1, body)
        return self._epochs[agreed]

    def states(self, source: Topology) -> dict[str, dict[int, Any]]:
        """By position and rank, the states of loaders whose items are compared as they come."""
        if source in self._states:
            return self._states[source]
        shares = [self.kind.dealt(epoch, source) for epoch in self.epochs(self.kind.is_agreed(source))]

        def body(group: ThreadGroup) -> dict[str, Any]:
            states: dict[str, Any] = {}
            with self.kind.loader(source, group) as loader:
                for number in range(2):
                    steps = len(shares[number][group.rank])
                    places = {
                        name: -1 if place is None else place(steps)
                        for name, (epoch, place) in POSITIONS.items()
                        if epoch == number
                    }
                    got, reading = [], iter(loader)
                    for step in range(steps + 1):
                        if step:
                            got.append(next(reading))
                        for name in [name for name, place in places.items() if place == step]:
                            states[name] = pickle.loads(pickle.dumps(loader.state_dict()))
                    got += reading
                    for name in [name for name, place in places.items() if place == -1]:
                        states[name] = pickle.loads(pickle.dumps(loader.state_dict()))
                    _compare(f"rank {group.rank}, epoch {number} before the move", got, shares[number][group.rank])
            return states

        found = in_ranks(source[0], body)
        self._states[source] = {name: {rank: each[name] for rank, each in enumerate(found)} for name in POSITIONS}
        return self._states[source]

    def check(self, source: Topology, target: Topology, position: str) -> None:
        """Makes one move.

        Raises:
            Differs: other items came than those that are left, or in another order.
        """
        kind, states = self.kind, self.states(source)[position]
        epochs, (epoch, place) = self.epochs(kind.is_agreed(source)), POSITIONS[position]
        shares = kind.dealt(epochs[epoch], source)
        if place is None:
            epoch, left = epoch + 1, epochs[epoch + 1]
        else:
            given = {unit for share in shares for unit in share[: place(len(share))]}
            left = [unit for unit in epochs[epoch] if unit not in given]
        # Loaders that come to agree on seeds, or cease to, draw those of the next epoch in another way.
        goes_on_alike = kind.is_agreed(source) == kind.is_agreed(target)
        same = source == target and place is not None
        expected = [share[place(len(share)) :] for share in shares] if same else kind.dealt(left, target)
        following = kind.dealt(epochs[epoch + 1], target)

        def body(group: ThreadGroup) -> tuple[list[Any], list[Any]]:
            with kind.loader(target, group, states if source[0] > 1 else states[0]) as loader:
                return list(loader), list(loader)

        for rank, (got, later) in enumerate(in_ranks(target[0], body)):
            if place is not None or goes_on_alike:
                _compare(f"rank {rank}", got, expected[rank])
            if goes_on_alike:
                _compare(f"rank {rank}, next epoch", later, following[rank])


def _compare(where: str, got: list[Any], expected: list[Any]) -> None:
    if got != expected:
        pairs = enumerate(zip(got, expected, strict=False))
        place = next((i for i, (one, other) in pairs if one != other), min(len(got), len(expected)))
        raise Differs(f"{where}: {len(got)} items instead of {len(expected)}, others from number {place} on")


def check_source(kind: str, source: Topology, targets: list[Topology], positions: list[str]) -> tuple[int, list[str]]:
    """Makes moves from one topology; returns how many, and what differs in words."""
    warnings.simplefilter("ignore")
    snapshots.SECONDS = snapshots.FACTOR = 0.0
    moves, count, wrong = Moves(kind), 0, []
    for target, position in itertools.product(targets, positions):
        try:
            moves.check(source, target, position)
        except Exception as error:
            wrong.append(f"{kind}, {source} to {target}, {position}: {type(error).__name__}: {error}")
        count += 1
    return count, wrong


def main() -> int:
    """Makes all moves, or those that were asked for; 1 where one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--positions", default=",".join(POSITIONS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    started, count, wrong = time.monotonic(), 0, []
    positions = options.positions.split(",")
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        found = {
            pool.submit(check_source, kind, source, TOPOLOGIES, positions): f"{kind} from {source}"
            for kind, source in itertools.product(options.kinds.split(","), TOPOLOGIES)
        }
        for each in as_completed(found):
            made, differences = each.result()
            count += made
            wrong += differences
            print(f"{found[each]}: {made} moves, {len(differences)} differ", *differences, sep="\n", flush=True)
    print(f"{count} moves in {time.monotonic() - started:.0f} s; {len(wrong)} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
