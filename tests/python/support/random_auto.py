"""Random loaders whose number of workers changes between epochs, against one whose number is fixed.

    python -m random_auto --seconds 600 --seed 1          # in tests/python/support; runs seeds 1, 2, 3, …
    python -m random_auto --seed 17 --runs 1              # one of them again

What `"auto"` chooses is drawn, and so is when. The pipelines are those of `random_elastic`. Now and then a state is
saved, of some items ago, from which another loader goes on: with a fixed number, or with `"auto"` again.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

from random_elastic import Differs, Plan, main
from torchdata._engine import snapshots
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.dataloader2.services import choosing, steering

MOST = 5


@contextlib.contextmanager
def drawn_choices(dice: random.Random, each: float) -> Iterator[None]:
    """Makes the number of workers change at random: before each epoch with such a probability."""

    def choose(stats: Any, *_: Any) -> choosing.Choice:
        return choosing.Choice(dice.randint(1, MOST), "it was drawn")

    def ripe(_stats: Any) -> bool:
        return dice.random() < each

    with (
        mock.patch.multiple(steering, PATIENCE=0.0, MOST_CHANGES=6, _is_ripe=ripe, say=lambda line: None),
        mock.patch.object(choosing, "choose_workers", choose),
        mock.patch.object(choosing, "GAIN", 0.0),
        mock.patch.object(steering.Steering, "_decide", return_value=None),
        mock.patch.object(steering.machine, "cores", return_value=MOST),
    ):
        yield


class AutoPlan(Plan):
    """What is done, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.dice = random.Random(f"auto {seed}")
        self.kind = self.dice.choice(["filter", "filter", "batch", "dispatch"])
        self.items = self.dice.choice([9, 47, 60, 150])
        self.method = self.dice.choice(["fork"] * 7 + ["spawn"])
        self.each = self.dice.choice([0.3, 0.6, 1.0])
        self.epochs = self.dice.choice([2, 3, 4])

    def depends(self) -> bool:
        """Whether something in the pipeline keeps the number of workers as it is."""
        return False  # what the plans are made of stands before the division, or is one to one

    def loader_of(self, workers: Any, state: Any = None) -> DataLoader2[Any]:
        adapters = [ShardingPolicy(self.batch)] if self.kind == "batch" else []
        loader = DataLoader2(self.pipe(), adapters, MultiProcessingReadingService(workers, self.method))
        if state is None:
            loader.seed(self.seed)
        else:
            loader.load_state_dict(state)
        return loader


def check(plan: AutoPlan) -> int:
    """Runs a plan; returns how often the number of workers has changed."""
    snapshots.SECONDS, snapshots.FACTOR = plan.cadence
    with plan.loader_of(2) as loader:
        expected = [list(loader) for _ in range(plan.epochs)]
    with drawn_choices(plan.dice, plan.each), plan.loader_of("auto") as loader:
        for number, epoch in enumerate(expected):
            _check_epoch(plan, loader, epoch, number)
        choices = loader.stats().choices
    if any("keeps" in choice for choice in choices) != plan.depends():
        raise Differs(f"the order depends on the number of workers: {plan.depends()}, but it said {choices}")
    return sum("instead of" in choice for choice in choices)


def _check_epoch(plan: AutoPlan, loader: DataLoader2[Any], epoch: list[Any], number: int) -> None:
    saved_at = plan.dice.randrange(len(epoch)) if epoch and plan.dice.random() < 0.6 else -1
    got, state, ago = [], None, 0
    for place, item in enumerate(loader):
        got.append(item)
        if place == saved_at:
            ago = plan.dice.choice([0, 0, 1, 2, place + 1])
            ago = min(ago, place + 1)
            state = pickle.loads(pickle.dumps(loader.state_dict(items_ago=ago)))
    _compare(f"epoch {number}", got, epoch)
    if state is not None:
        workers = plan.dice.choice(["auto", "auto", 1, 2, 3])
        with plan.loader_of(workers, state) as other:
            _compare(f"epoch {number}, from item {saved_at + 1 - ago} on", list(other), epoch[saved_at + 1 - ago :])


def _compare(where: str, got: list[Any], expected: list[Any]) -> None:
    if got != expected:
        pairs = enumerate(zip(got, expected, strict=False))
        place = next((i for i, (mine, its) in pairs if mine != its), min(len(got), len(expected)))
        raise Differs(f"{where}: {len(got)} items instead of {len(expected)}, others from item {place} on")


if __name__ == "__main__":
    sys.exit(main(AutoPlan, check, __doc__))
