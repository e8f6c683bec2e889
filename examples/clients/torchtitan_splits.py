"""A text loader for torchtitan that resumes at another data-parallel degree. See docs/guides/ranks-changed.md.

In a configuration, use `dataloader=SplitsDataLoader.Config(dataset_path="documents.txt", num_workers=4)`."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from torchdata.datapipes.map import SequenceWrapper

try:
    from torchtitan.components.dataloader import BaseDataLoader
except ImportError:  # the loader only needs these base classes

    class BaseDataLoader:
        @dataclass(kw_only=True, slots=True)
        class Config:
            dataset_path: str | None = None


def lines(path: str | None) -> Sequence[str]:
    """Returns the documents of a text file with one document per line. Replace this function with your own reader."""
    assert path is not None, "give dataset_path"
    return Path(path).read_text().splitlines()


def tokenized(tokenizer: Any, document: str) -> dict[str, torch.Tensor]:
    """Returns the tokens of a document, and for each token the next token as its label."""
    tokens = torch.tensor(tokenizer.encode(document, add_bos=True, add_eos=True))
    return {"input": tokens[:-1], "labels": tokens[1:]}


def collated(rows: list[dict[str, torch.Tensor]]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Returns a batch in the format that torchtitan's trainer expects."""
    tokens, positions, labels = (
        torch.stack([torch.as_tensor(row[name]) for row in rows]) for name in ("input", "position_ids", "labels")
    )
    return {"input": tokens, "positions": positions}, labels


class SplitsDataLoader(BaseDataLoader):
    """Tokenizes and packs documents in worker processes. A state can be loaded with any number of ranks.

    Args:
        config: the settings.
        dp_world_size: the data-parallel degree.
        dp_rank: the number of this rank. Ranks with the same number get the same batches.
        tokenizer: an object with `encode(text, add_bos, add_eos)`.
        seq_len: the number of tokens per row.
        local_batch_size: the number of rows per batch.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        documents: Callable[[str | None], Sequence[Any]] = lines
        num_workers: int = 2
        #: The number of splits: at least the largest data-parallel degree, and preferably a multiple of all degrees.
        splits: int = 64
        seed: int = 42
        #: Whether the documents are repeated endlessly, in a different order each time.
        infinite: bool = True

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: Any,
        seq_len: int,
        local_batch_size: int,
        **_: Any,
    ) -> None:
        self.group: Any = None
        service: Any = MultiProcessingReadingService(config.num_workers)
        if dp_world_size > 1:
            numbers: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(numbers, dp_rank)
            by_number = [[rank for rank, dp in enumerate(numbers) if dp == number] for number in range(dp_world_size)]
            replicas = [list(ranks) for ranks in zip(*by_number, strict=True)]
            self.group, _ = dist.new_subgroups_by_enumeration(replicas, backend="gloo")
            service = SequentialReadingService(DistributedReadingService(process_group=self.group), service)
        pipe: Any = SequenceWrapper(config.documents(config.dataset_path)).shuffle().sharding_filter()
        pipe = (pipe.cycle() if config.infinite else pipe).map(partial(tokenized, tokenizer))
        pipe = pipe.pack(seq_len, method="cut", add=["position_ids"], drop_last=True)
        pipe = pipe.batch(local_batch_size, drop_last=True).map(collated)
        self.loader: DataLoader2[Any] = DataLoader2(pipe, reading_service=service, splits=config.splits)
        self.loader.seed(config.seed)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Begins or resumes an epoch. All ranks end the epoch after the same number of batches."""
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of all ranks. All ranks must call this method after the same step."""
        states = [self.loader.state_dict(with_pipe=False)]
        if self.group is not None:
            own, states = states[0], [None] * self.group.size()
            dist.all_gather_object(states, own, self.group)
        return {"ranks": pickle.dumps(dict(enumerate(states)))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resumes from the states of all ranks, which may have been saved with another number of ranks."""
        if state_dict:
            self.loader.load_state_dict(pickle.loads(state_dict["ranks"]))
