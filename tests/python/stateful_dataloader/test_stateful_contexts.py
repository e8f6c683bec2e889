"""A user-defined multiprocessing context may have its own name and process class. The context's process class
determines how workers start.
"""

from __future__ import annotations

from multiprocessing.context import BaseContext, ForkProcess, SpawnProcess

import pytest

pytest.importorskip("torch", reason="StatefulDataLoader needs PyTorch")

from torchdata.stateful_dataloader import StatefulDataLoader


class Spawned(SpawnProcess):
    """A process class that allows workers to have children, like the processes of RETURNN."""

    @property
    def daemon(self):
        return False

    @daemon.setter
    def daemon(self, value):
        pass


class Own(BaseContext):
    _name = "own"

    def __init__(self, kind):
        super().__init__()
        self.Process = kind


@pytest.mark.parametrize(
    ("kind", "exits", "workers"),
    [
        (ForkProcess, "error", 2),
        (ForkProcess, "restart", 2),
        # This case uses one worker and one epoch, because each spawned process imports torch.
        (SpawnProcess, "error", 1),
        (Spawned, "restart", 1),
    ],
)
def test_a_multiprocessing_context_of_the_program_starts_workers(kind, exits, workers):
    loader = StatefulDataLoader(range(9), num_workers=workers, multiprocessing_context=Own(kind), on_worker_exit=exits)
    for _ in range(workers):
        assert [int(number) for number in loader] == [*range(9)]
