"""Holds random graphs whose items are batched against their run without a stop, where batches change their size.

A state that was saved with batches of one size goes on with another one, in other workers, in chains. What comes is the
same items in the same order: each first batch begins behind the last item that was given.
"""

from __future__ import annotations

import pickle
import random
import warnings
from typing import Any

from random_graphs.check import Different, NotComparable, start
from random_graphs.graphs import Graph
from random_graphs.users import small
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.datapipes.iter import Mapper

#: Where the global generators stand when a state is loaded.
OTHER = 17


def loader_of(graph: Graph, size: int, workers: int, state: bytes | None = None) -> DataLoader2[Any]:
    """A loader of a graph in batches; without workers if there are none."""
    start(graph.number)  # some pipes read their sources while they are made, to know a length
    # Behind a pipe of ours, as what reads one of torch's is torch's.
    pipe = Mapper(graph.build(), small).sharding_filter().batch(size).map(list)
    service = MultiProcessingReadingService(workers, "fork", timeout=100.0) if workers else None
    loader: DataLoader2[Any] = DataLoader2(pipe, ShardingPolicy(block=size), service)
    if state is None:
        loader.seed(graph.number)
        return loader
    start(OTHER)
    loader.load_state_dict(pickle.loads(state))
    return loader


def whole(graph: Graph) -> list[list[Any]]:
    """The items of two epochs.

    Raises:
        NotComparable: the graph fails, or does not repeat itself, or its items depend on who reads them.
    """
    runs = []
    for size, workers in ((3, 0), (1, 0), (2, 2)):
        try:
            with loader_of(graph, size, workers) as loader:
                runs.append([[item for batch in loader for item in batch] for _ in range(2)])
        except Exception as error:
            raise NotComparable(repr(error)) from error
        if runs[-1] != runs[0]:
            raise NotComparable("runs differ")
    return runs[0]


def check_sizes(graph: Graph, most: int = 3) -> int:
    """Checks some chains of sizes through a graph; returns how many were gone through.

    Args:
        graph: which.
        most: how many chains.

    Raises:
        Different: one is wrong; a note says which.
        NotComparable: as by `whole`; or no change of size is possible in this graph.
    """
    dice = random.Random(f"sizes {graph.number}")
    ways, refused = 0, ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = whole(graph)
        for _ in range(most):
            chain = [
                (dice.choice([1, 2, 3, 4, 7]), dice.choice([0, 0, 1, 2, 3]), dice.choice([0, 1, 1, 2, 4]))
                for _ in range(dice.choice([2, 2, 3, 4]))
            ]
            try:
                go_through(graph, expected, chain)
                ways += 1
            except Refused as error:
                refused = str(error)
            except Exception as error:
                error.add_note(f"{graph}; sizes, workers and batches that were read: {chain}")
                raise
    if not ways:
        raise NotComparable(refused)
    return ways


class Refused(Exception):
    """The loader says that the graph cannot go on with batches of another size."""


def go_through(graph: Graph, expected: list[list[Any]], chain: list[tuple[int, int, int]]) -> None:
    """Reads an epoch, or passes over parts of it, by a chain of loaders, and the next one by the last of them."""
    state, given, dice = None, 0, random.Random(f"skips {graph.number} {chain}")
    for link, (size, workers, count) in enumerate(chain):
        left = expected[0][given:]
        batches = [left[at : at + size] for at in range(0, len(left), size)]
        is_last = link == len(chain) - 1
        count = len(batches) if is_last else min(count, max(0, len(batches) - 1))
        with loader_of(graph, size, workers, state) as loader:
            try:
                iterator = iter(loader)
            except ValueError as error:
                if "batches of" not in str(error) and "this state was saved inside an epoch" not in str(error):
                    raise
                raise Refused(str(error)) from error
            if dice.random() < 0.3 and not is_last:
                found = batches[: loader.skip(count)]
            else:
                found = list(iterator) if is_last else [next(iterator) for _ in range(count)]
            if found != batches[:count]:
                raise Different(f"link {link}: {found} instead of {batches[:count]}")
            given += sum(map(len, found))
            if not is_last:
                state = pickle.dumps(loader.state_dict())
                continue
            later = [item for batch in loader for item in batch]
            if later != expected[1]:
                raise Different(f"the next epoch: {later} instead of {expected[1]}")
