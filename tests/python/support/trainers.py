"""Imitates the loops of public trainers around a StatefulDataLoader: how each trainer uses the loader and its state.
`library_trainers` runs the real trainers of accelerate, transformers and Lightning.

`train` runs a trainer in this process: completely, up to a stop where its checkpoint is saved, or from that checkpoint
on. `train` returns the batches that the trainer's steps received. Each run sets the same seeds at its start.
"""

from __future__ import annotations

import copy
import json
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.utils.data import IterableDataset, get_worker_info

from torchdata.stateful_dataloader import StatefulDataLoader

EPOCHS = 4


class Stream(IterableDataset[Any]):
    """A stream with a state, which is distributed among workers and ranks."""

    def __init__(self, length: int = 14, rank: int = 0, ranks: int = 1) -> None:
        self.length, self.rank, self.ranks = length, rank, ranks
        self.place = self.start = 0

    def __iter__(self) -> Iterator[Any]:
        self.place, self.start = self.start, 0
        info = get_worker_info()
        part, parts = (0, 1) if info is None else (info.id, info.num_workers)
        mine = range(self.rank * parts + part, self.length, self.ranks * parts)
        for number in mine[self.place :]:
            self.place += 1
            yield torch.tensor([float(number)])

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["place"]


class Tokens(IterableDataset[Any]):
    """An endless stream of texts, packed into sequences like torchtitan's stream over a Hugging Face dataset."""

    def __init__(self, texts: int = 9, length: int = 5) -> None:
        self.texts, self.length = texts, length
        self.sample, self.tokens = 0, list[int]()

    def __iter__(self) -> Iterator[Any]:
        while True:
            for text in range(self.sample, self.texts):
                self.tokens += range(100 * text, 100 * text + 3 + text % 3)
                self.sample += 1
                while len(self.tokens) >= self.length:
                    packed, self.tokens = self.tokens[: self.length], self.tokens[self.length :]
                    yield torch.tensor(packed)
            self.sample = 0

    def state_dict(self) -> dict[str, Any]:
        return {"sample": self.sample, "tokens": list(self.tokens)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sample, self.tokens = state["sample"], list(state["tokens"])


def seed_everything(seed: int = 42) -> None:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


@dataclass
class Training:
    """A run of a trainer.

    Args:
        workers: the number of workers of the loader.
        stop: the epoch and step after which a checkpoint is saved and the run ends. Step -1 stands for the epoch's end.
        checkpoint: where the checkpoint is saved.
        resumes: whether the run begins with the checkpoint.
    """

    workers: int
    checkpoint: Path
    stop: tuple[int, int] | None = None
    resumes: bool = False

    def __post_init__(self) -> None:
        self.seen: list[Any] = []
        self.saved: dict[str, Any] = {}
        if self.resumes:
            self.saved = torch.load(self.checkpoint, weights_only=True)

    def options(self) -> dict[str, Any]:
        return {"num_workers": self.workers, **({"multiprocessing_context": "fork"} if self.workers else {})}

    def step(self, batch: Any, dropout: bool = True) -> None:
        """Runs a step of a model. Unless the model is on a GPU, its dropout draws from torch's global generator."""
        self.seen.append(batch.tolist())
        if dropout:
            torch.rand(3)

    def stops(self, epoch: int, step: int) -> bool:
        return self.stop == (epoch, step)

    def save(self, **parts: Any) -> None:
        torch.save(parts, self.checkpoint)


# -- torchtitan --------------------------------------------------------------------------------------------


class ParallelAware(StatefulDataLoader):  # type: ignore[type-arg]
    """A loader whose state is stored by rank, as bytes, like torchtitan's."""

    def __init__(self, dataset: Any, rank: int, ranks: int, **options: Any) -> None:
        self.rank_key, self.ranks = f"dp_rank_{rank}", ranks
        super().__init__(dataset, **options)

    def state_dict(self) -> dict[str, Any]:
        return {self.rank_key: pickle.dumps(super().state_dict()), "world_size": self.ranks}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not state_dict:
            return
        assert state_dict["world_size"] == self.ranks
        super().load_state_dict(pickle.loads(state_dict[self.rank_key]))


def torchtitan(run: Training) -> None:
    """Reads an endless stream step by step. Six steps count as an epoch."""
    seed_everything()
    loader = ParallelAware(Tokens(), 0, 1, batch_size=2, **run.options())
    done = run.saved.get("steps", 0)
    if run.resumes:
        loader.load_state_dict(run.saved["loader"])
    iterator = iter(loader)
    for step in range(done + 1, 6 * EPOCHS + 1):
        run.step(next(iterator))
        epoch, within = divmod(step - 1, 6)
        if run.stops(epoch, within + 1) or (run.stops(epoch, -1) and within == 5):
            run.save(loader=loader.state_dict(), steps=step)
            return


# -- NeMo-RL and VeOmni ------------------------------------------------------------------------------------


def dataset_states(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the dicts with the dataset's state by worker, which public programs read and modify."""
    if "_snapshot" in state:
        workers = state["_snapshot"]["_worker_snapshots"]
        assert state["_snapshot"]["_main_snapshot"]["_num_workers"] == len(workers)
        return [workers[f"worker_{number}"] for number in range(len(workers))]
    assert state["fetcher_state"]["fetcher_ended"] in (False, True)
    return [state]


def nemo_rl(run: Training) -> None:
    """Saves each state in a separate file, and logs the position of the dataset."""
    seed_everything()
    loader = StatefulDataLoader(Stream(), batch_size=2, drop_last=True, **run.options())
    if run.resumes:
        loader.load_state_dict(run.saved["loader"])
    for epoch in range(run.saved.get("epoch", 0), EPOCHS):
        for step, batch in enumerate(loader, 1):
            run.step(batch)
            if run.stops(epoch, step):
                state = loader.state_dict()
                log = [one["dataset_state"] for one in dataset_states(state)]
                assert sum(one["place"] for one in log) == 2 * step, log
                assert "_iterator_finished" in state
                run.save(loader=json.loads(json.dumps(state)), epoch=epoch)
                return
        if run.stops(epoch, -1):
            state = loader.state_dict()
            assert state["_iterator_finished"]
            run.save(loader=state, epoch=epoch + 1)
            return


class DynamicBatches:
    """Imitates VeOmni's wrapper around a loader. The wrapper packs items up to a number of tokens, and its state
    contains items that are not packed yet.
    """

    def __init__(self, loader: Any, limit: int) -> None:
        self.loader, self.limit, self.left = loader, limit, list[Any]()

    def __iter__(self) -> Iterator[Any]:
        for item in self.loader:
            self.left.append(item)
            if len(self.left) >= self.limit:
                batch, self.left = self.left, []
                yield torch.stack(batch)

    def state_dict(self) -> dict[str, Any]:
        return {"left": [item.tolist() for item in self.left], "loader": copy.deepcopy(self.loader.state_dict())}


def veomni(run: Training) -> None:
    """Extracts the datasets' states, distributes them among the ranks, and restores them when a run resumes."""
    seed_everything()
    loader = StatefulDataLoader(Stream(), batch_size=None, **run.options())
    batches = DynamicBatches(loader, 3)
    if run.resumes:
        state = run.saved["loader"]
        for one, taken in zip(dataset_states(state["loader"]), run.saved["ranks"][0], strict=True):
            assert one["dataset_state"] is None
            one["dataset_state"] = taken
        batches.left = [torch.tensor(item) for item in state["left"]]
        loader.load_state_dict(state["loader"])
    for epoch in range(run.saved.get("epoch", 0), EPOCHS):
        ends = True
        for step, batch in enumerate(batches, 1):
            run.step(batch)
            if run.stops(epoch, step):
                ends = False
                break
        if run.stops(epoch, -1) or not ends:
            state = batches.state_dict()
            shares = [copy.deepcopy(one["dataset_state"]) for one in dataset_states(state["loader"])]
            for one in dataset_states(state["loader"]):
                one["dataset_state"] = None
            run.save(loader=state, ranks=[shares], epoch=epoch + ends)
            return


TRAINERS: dict[str, Callable[[Training], None]] = {
    function.__name__: function for function in (torchtitan, nemo_rl, veomni)
}


def train(trainer: str, **options: Any) -> list[Any]:
    """Runs a trainer (see `Training`), and returns the batches of its steps."""
    options["checkpoint"] = Path(options["checkpoint"])
    stop = options.pop("stop", None)
    run = Training(stop=tuple(stop) if stop else None, **options)
    TRAINERS[trainer](run)
    return run.seen
