"""Reads a dataset that is a pipe of `torchdata.datapipes`, and saves its position as the state of the pipe's graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data.datapipes.datapipe import _IterDataPipeSerializationWrapper, _MapDataPipeSerializationWrapper
from torch.utils.data.graph_settings import apply_random_seed

from torchdata._handlers import FailuresSuppressed
from torchdata._plain_pickles import seal, unseal
from torchdata.dataloader2.graph.settings import random_pipes
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.state.iteration import is_restorable, is_torchs
from torchdata.datapipes._pipe.state.layout import explaining_damage
from torchdata.datapipes._pipe.state.passes import PipePasses
from torchdata.datapipes._pipe.state.record import passed, record_of
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.state import load_state, save_state
from torchdata.stateful_dataloader._generators import GLOBAL, put_back_afterwards, whole

#: PyTorch's `DataLoader` wraps pipes in objects of these classes.
PIPE_WRAPPERS = _IterDataPipeSerializationWrapper, _MapDataPipeSerializationWrapper


def seeded(datapipe: Any, shared_seed: int) -> Any:
    random_pipes(Graph(datapipe))
    return apply_random_seed(datapipe, torch.Generator().manual_seed(shared_seed))


class PipeSource(PipePasses):
    """Reads a pipe, after seeding the pipe's graph from the loader's seed for the epoch.

    The state of the graph is serialized to bytes, which a checkpoint treats as one value. If the graph cannot be saved,
    for example because it holds a stream, the state contains the number of read items, and a resumed reader rereads
    these items.
    """

    PIPE_KEY, INSIDE_KEY, AGAIN_KEY = "pipe", "inside", "again"

    def __init__(self, pipe: IterDataPipe[Any], shared_seed: Callable[[], int | None]) -> None:
        super().__init__(pipe)
        self._shared_seed = shared_seed
        self._again = 0

    def _prepare(self) -> None:
        if (seed := self._shared_seed()) is not None:
            seeded(self.pipe, seed)

    def __iter__(self) -> Iterator[Any]:
        again, self._again = self._again, 0
        iterator = super().__iter__()
        if again:
            with put_back_afterwards(GLOBAL):
                next(islice(iterator, again - 1, None), None)
        return iterator

    def state_dict(self) -> dict[str, Any]:
        record = record_of(self.pipe)
        is_inside = self._loaded or (record.stamp > 0 and record.loaded is None)
        sealed, again = b"", self._again or (passed(self.pipe) if is_inside else 0)
        with FailuresSuppressed():
            sealed, again = self.sealed(), self._again
        return {self.PIPE_KEY: sealed, self.INSIDE_KEY: is_inside, self.AGAIN_KEY: again}

    def sealed(self) -> bytes:
        return seal(save_state(self.pipe, described=False))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        with explaining_damage(type(self.pipe).__name__):
            sealed, is_inside, again = (state_dict[key] for key in (self.PIPE_KEY, self.INSIDE_KEY, self.AGAIN_KEY))
        if sealed:
            load_state(self.pipe, unseal(sealed, "the state of a pipe"))
        self._loaded, self._again = bool(sealed and is_inside), whole(again, self.AGAIN_KEY)


def source_of(dataset: Any, shared_seed: Callable[[], int | None] = lambda: None) -> Any:
    """Returns a `PipeSource` for a pipe if its graph can be saved and restored, and any other dataset unchanged.
    If PyTorch has wrapped a pipe for pickling, the wrapper is removed."""
    pipe = dataset._datapipe if isinstance(dataset, _IterDataPipeSerializationWrapper) else dataset
    if not isinstance(pipe, IterDataPipe) or any(is_torchs(one) or not is_restorable(one) for one in Graph(pipe)):
        return dataset
    source = PipeSource(pipe, shared_seed)
    with FailuresSuppressed():
        source.sealed()
        return source
    return dataset
