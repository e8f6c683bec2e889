"""A user-defined multiprocessing context may have any name and process class.

Workers start with the process class of the context.
"""

from __future__ import annotations

from multiprocessing.context import BaseContext, ForkProcess, SpawnProcess

import pytest

pytest.importorskip("torch", reason="StatefulDataLoader needs PyTorch")

from torchdata.stateful_dataloader import StatefulDataLoader


class Spawned(SpawnProcess):
    """A process class that lets workers have children of their own, like the process class of RETURNN."""

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
        # With the process class `Spawned`, the test uses one worker and one epoch, because each spawned process imports
        # torch.
        (SpawnProcess, "error", 1),
        (Spawned, "restart", 1),
    ],
)
def test_a_multiprocessing_context_of_the_program_starts_workers(kind, exits, workers):
    loader = StatefulDataLoader(range(9), num_workers=workers, multiprocessing_context=Own(kind), on_worker_exit=exits)
    for _ in range(workers):
        assert [int(number) for number in loader] == [*range(9)]
