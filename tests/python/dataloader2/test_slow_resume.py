"""Loaders warn if a pipeline cannot be saved, or if a resume must recompute many items."""

import time
import warnings
from typing import Any

import pytest

from random_graphs.users import Passing
from resuming import continued, resumed, stopped
from torchdata._engine import snapshots
from torchdata.dataloader2 import DataLoader2, _checkpointing
from torchdata.datapipes.iter import IterableWrapper

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("often")]


class Unsaveable(Passing):
    def reset(self) -> None:
        pass

    def state_dict(self) -> Any:
        raise OSError("no state from Unsaveable")

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError("never saved")


def slowly(item: Any) -> Any:
    time.sleep(0.03)
    return item


PIPES = {
    "sharded": lambda: Unsaveable(IterableWrapper(range(40)).shuffle().sharding_filter()),
    "dispatched": lambda: Unsaveable(IterableWrapper(range(40)).shuffle()).sharding_round_robin_dispatch(),
}


@pytest.mark.parametrize(("kind", "workers"), [("sharded", 0), ("sharded", 2), ("dispatched", 2)])
def test_one_warning_names_the_reason_why_a_pipeline_cannot_be_saved_and_resumes_from_the_beginning(
    kind: str, workers: int
) -> None:
    with DataLoader2(PIPES[kind](), num_workers=workers) as loader:
        loader.seed(3)
        reading = iter(loader)
        for _ in range(9):
            next(reading)
        with pytest.warns(RuntimeWarning, match="resume from the beginning.*no state from Unsav"):
            state = loader.state_dict()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loader.state_dict()
        rest, following = list(reading), list(loader)
    assert resumed(DataLoader2(PIPES[kind](), num_workers=workers), state, 2) == [rest, following]


def test_a_pipeline_resumes_from_the_last_moment_at_which_it_could_be_saved() -> None:
    class Later(Unsaveable):
        def __iter__(self) -> Any:
            while self.at < 40:
                yield self.at
                self.at += 1

        at = 0

        def reset(self) -> None:
            self.at = 0

        def state_dict(self) -> Any:
            return {"at": self.at + 1} if self.at < 20 else super().state_dict()

        def load_state_dict(self, state: Any) -> None:
            self.at = state["at"]

    _, state, rest = continued(DataLoader2(Later(None), num_workers=1), 35)
    assert 0 < state["iteration_state"]["workers"]["workers"][0]["snapshot"][0][0] <= 20
    assert resumed(DataLoader2(Later(None), num_workers=1), state) == [rest]


def test_a_worker_takes_no_snapshot_while_it_recomputes_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SECONDS", 1e6)
    _, state, rest = continued(DataLoader2(IterableWrapper(range(60)), num_workers=1), 50)
    monkeypatch.setattr(snapshots, "SECONDS", 0.0)
    monkeypatch.setattr(snapshots, "FACTOR", 0.0)
    with DataLoader2(IterableWrapper(range(60)), num_workers=1) as loader:
        loader.load_state_dict(state)
        assert [*loader] == rest
        assert 0 < loader.stats().snapshots <= len(rest) + 1


@pytest.mark.parametrize("workers", [0, 1])
def test_a_warning_names_what_a_resume_must_recompute_and_how_long_it_takes(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_checkpointing, "_LEAST", 1.0)

    def pipe() -> Any:
        return Passing(IterableWrapper(range(60)).map(slowly)).sharding_filter().map(abs)

    _, state = stopped(DataLoader2(pipe(), num_workers=workers), 40)
    where = " in worker 0" if workers else ""
    with DataLoader2(pipe(), num_workers=workers) as loader:
        before = loader.state_dict()
        with warnings.catch_warnings(action="error"), pytest.raises(RuntimeWarning, match="takes up to"):
            loader.load_state_dict(state)
        assert loader.state_dict() == before
        with pytest.warns(
            RuntimeWarning, match=rf"takes up to \d+ s.*recomputed: \d\d items of Passing{where}.*one_to_one = True"
        ):
            loader.load_state_dict(state)
        assert next(iter(loader)) == 40


def test_a_fast_replay_causes_no_warning() -> None:
    _, state = stopped(DataLoader2(Passing(IterableWrapper(range(9)))), 1)
    assert resumed(DataLoader2(Passing(IterableWrapper(range(9)))), state) == [list(range(1, 9))]
