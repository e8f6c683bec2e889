"""Adapts a pipe of `torchdata.datapipes` to the protocol `Stateful`. The pipe's state also contains the seed and the
number of the epoch."""

from __future__ import annotations

from typing import Any

from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.random import draw_seed
from torchdata.datapipes._pipe.state.passes import PipePasses
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.state import load_state, save_state
from torchdata.nodes._fields import StateFields
from torchdata.nodes.base_node import BaseNode, is_repeatable


class PipePosition(PipePasses):
    """Saves and restores a pipe's position, and seeds each epoch. If `seed` is None, each epoch draws new seeds."""

    EPOCH_KEY, PIPE_KEY = "epoch", "pipe"

    def __init__(self, pipe: IterDataPipe[Any], seed: int | None = None) -> None:
        super().__init__(pipe)
        self.seed = seed
        self._epoch = 0

    def _prepare(self) -> None:
        if self.seed is not None:
            from torchdata.dataloader2.graph import set_graph_random_seed
            from torchdata.dataloader2.random import SeedGenerator

            # Each epoch needs a generator with a new seed, because `spawn` does not change shared seeds.
            of_epoch = SeedGenerator(self.seed).spawn(self._epoch).generate_seed()
            set_graph_random_seed(self.pipe, SeedGenerator(of_epoch))
        else:
            from torchdata.dataloader2.graph.settings import random_pipes

            for pipe in random_pipes(Graph(self.pipe)):
                if getattr(pipe, "_seed", pipe) is None:
                    pipe.set_seed(draw_seed())
        self._epoch += 1

    def state_dict(self) -> dict[str, Any]:
        return {self.EPOCH_KEY: self._epoch, self.PIPE_KEY: save_state(self.pipe)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a position. The same state can be loaded several times."""
        fields = StateFields("from_pipe", state_dict, begins=False)
        epoch = fields.integer(self.EPOCH_KEY, least=0)
        load_state(self.pipe, fields[self.PIPE_KEY])
        self._epoch = epoch
        self._loaded = True

    def shutdown(self) -> None:
        for pipe in Graph(self.pipe):
            shutdown = getattr(type(pipe), "shutdown", None)
            if isinstance(pipe, IterDataPipe) and shutdown is not None:
                shutdown(pipe)

    def is_repeatable(self) -> bool:
        """Returns whether the pipe yields the same items in the same order whenever it is reset to the same
        position."""
        return all(map(is_repeatable, self.nodes()))

    def nodes(self) -> list[BaseNode[Any]]:
        nodes = (getattr(pipe, "source_node", None) for pipe in Graph(self.pipe))
        return [node for node in nodes if isinstance(node, BaseNode)]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_epoch": 0, "_loaded": False}
