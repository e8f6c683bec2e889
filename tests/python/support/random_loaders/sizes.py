"""Batches that change their size: loaders of a random graph, each of which goes on from the state of the one before it.

What comes is the same items in the same order: the first batch of each loader begins behind the last item that was
given, and the next epoch is whole. A loader that refuses a graph says so, and its chain ends there.
"""

from __future__ import annotations

import pickle
import random
from dataclasses import dataclass, field
from itertools import islice

from random_loaders import graphs
from random_loaders.items import ids, keys
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.adapter import ShardingPolicy


@dataclass
class Link:
    """A loader of the chain."""

    size: int
    workers: int
    #: Batches that are read, or passed over, before the next one goes on.
    batches: int
    skips: bool
    options: dict


@dataclass
class Chain:
    """Loaders of batches of one graph."""

    graph: graphs.Node
    method: str
    links: list[Link] = field(default_factory=list)

    def describe(self):
        return "\n".join(["batches of changing size:", *map(str, self.links), repr(self.graph)])

    def loader(self, link):
        pipe = self.graph.build().sharding_filter().batch(link.size).map(list)
        service = MultiProcessingReadingService(link.workers, self.method, **link.options) if link.workers else None
        return DataLoader2(pipe, ShardingPolicy(block=link.size), service)


def draw_links(rng: random.Random) -> list[Link]:
    return [
        Link(
            size=rng.choice([1, 2, 3, 4, 7, 16]),
            workers=rng.choice([0, 1, 2, 2, 3]),
            batches=rng.choice([0, 1, 1, 2, 4, 10]),
            skips=rng.random() < 0.25,
            options={
                "worker_prefetch_cnt": rng.choice([0, 1, 3, 10]),
                "main_prefetch_cnt": rng.choice([0, 1, 3, 10]),
                "memory_budget": rng.choice([None, 1 << 16, 16 << 20]),
            },
        )
        for _ in range(rng.choice([2, 2, 3, 4]))
    ]


def run_chain(chain: Chain, say) -> None:
    """Reads an epoch by all loaders of the chain, and the next one by the last of them.

    Raises:
        AssertionError: something else came.
    """
    expected = list(chain.graph.model(graphs.Place()))
    state, given = None, 0
    for number, link in enumerate(chain.links):
        left = expected[given:]
        batches = [left[at : at + link.size] for at in range(0, len(left), link.size)]
        is_last = number == len(chain.links) - 1
        count = len(batches) if is_last else min(link.batches, max(0, len(batches) - 1))
        loader = chain.loader(link)
        try:
            if state is None:
                loader.seed(5)
            else:
                loader.load_state_dict(pickle.loads(state))
            try:
                iterator = iter(loader)
            except ValueError as error:
                if "batches of" not in str(error) and "this state was saved inside an epoch" not in str(error):
                    raise
                say(f"batches of {link.size} are refused")
                return
            if link.skips and not is_last:
                skipped = loader.skip(count)
                assert skipped == count, f"link {number}: {skipped} batches were passed over in place of {count}"
            else:
                found = [keys(ids(batch)) for batch in (iterator if is_last else islice(iterator, count))]
                assert found == batches[:count], f"link {number}: {found} in place of {batches[:count]}"
            given += sum(map(len, batches[:count]))
            if is_last:
                later = [item for batch in loader for item in keys(ids(batch))]
                assert later == expected, f"the next epoch: {later} in place of {expected}"
            else:
                state = pickle.dumps(loader.state_dict())
        finally:
            loader.shutdown()
        say(f"{given} items in batches, the last of {link.size} by {link.workers} workers")
