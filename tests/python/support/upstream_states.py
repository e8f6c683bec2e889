"""Saves states of upstream's StatefulDataLoader, and the items after each state. Run this program in an environment
with torchdata 0.11.0.

    python support/upstream_states.py data/upstream_states.pt

`test_stateful_upstream.py` loads the saved states, and uses the datasets and loader options of this module."""

import itertools
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from kept_state import KeptState
from resumed import Walk, plain


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 21

    def __getitem__(self, index: int) -> int:
        return index


class Counted(KeptState):
    kept = ("reads",)
    reads = 0

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return torch.tensor([index, self.reads])


class CountedNumbers(Counted, Numbers):
    """A dataset with a state. Each worker has its own copy of the dataset, and so its own state."""


def share() -> range:
    info = get_worker_info()
    return range(19) if info is None else range(info.id, 19 - 4 * info.id, info.num_workers)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(share())


class StatefulStream(KeptState, Stream):
    kept = ("done",)
    done = 0

    def __iter__(self) -> Iterator[int]:
        for number in share()[self.done :]:
            self.done += 1
            yield number
        self.done = 0


class WalkedStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return Walk(share())


DATASETS: dict[str, Any] = {
    cls.__name__: cls for cls in (Numbers, CountedNumbers, Stream, StatefulStream, WalkedStream)
}

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"batch_size": 4},
    "dropping": {"batch_size": 4, "drop_last": True},
    "single": {"batch_size": None},
    "shuffled": {"batch_size": 4, "shuffle": True},
    "seeded": {"batch_size": 4, "shuffle": True, "generator": 9},
    "distributed": {"batch_size": 3, "sampler": "distributed"},
    "replacement": {"batch_size": 5, "sampler": "replacement"},
    "sparse": {"batch_size": 2, "snapshot_every_n_steps": 3},
}

CASES = [
    *itertools.product(["Numbers"], OPTIONS, [0, 2], [0, 1, 3, 100]),
    *itertools.product(["CountedNumbers", "Stream", "StatefulStream", "WalkedStream"],
                       ["plain", "single", "sparse"], [0, 2], [0, 1, 4, 100]),
]  # fmt: skip


def loader_of(dataset: str, options: str, workers: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import RandomSampler, StatefulDistributedSampler

    arguments = dict(OPTIONS[options])
    data = DATASETS[dataset]()
    if "generator" in arguments:
        arguments["generator"] = torch.Generator().manual_seed(arguments["generator"])
    if arguments.get("sampler") == "distributed":
        arguments["sampler"] = StatefulDistributedSampler(data, num_replicas=2, rank=1, seed=5)
    if arguments.get("sampler") == "replacement":
        arguments["sampler"] = RandomSampler(data, replacement=True, num_samples=50)
    if workers:
        arguments["multiprocessing_context"] = "fork"
    return StatefulDataLoader(data, num_workers=workers, **arguments)


def main() -> None:
    assert metadata.version("torchdata") == "0.11.0"
    saved = []
    for dataset, options, workers, batches in CASES:
        torch.manual_seed(17)
        loader = loader_of(dataset, options, workers)
        iterator = iter(loader)
        before = [plain(batch) for batch in itertools.islice(iterator, batches)]
        state = loader.state_dict()
        rest = [plain(batch) for batch in iterator]
        saved.append({"case": [dataset, options, workers, batches], "before": before, "state": state, "rest": rest})
    torch.save(saved, sys.argv[1])
    print(len(saved), "states")


if __name__ == "__main__":
    main()
