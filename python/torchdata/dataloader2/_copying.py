"""Copies of a loader, by `copy` or pickle, which are independent loaders that have not begun.

Role: collects the parts of such a copy. Runs in the thread that copies.

A copy has the parts and the seed of the loader. If the loader has not begun, the copy also has its loaded
state. The copy and the loader share no object that either of them changes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchdata._observe.stats.recorder import Recorder
from torchdata.dataloader2._checkpointing import StateKeeper
from torchdata.dataloader2._epochs import EpochRun
from torchdata.dataloader2._pipeline import Pipeline
from torchdata.dataloader2._rank_states import SavedPlaces
from torchdata.dataloader2._seeds import Seeds
from torchdata.dataloader2.graph.serialization import Snapshot
from torchdata.dataloader2.state.position import LoaderState, Position


@dataclass(frozen=True)
class Loaded:
    """A state that was loaded into a loader which has not begun."""

    service_state: bytes | None
    place: tuple[Position, bool] | None
    saved_places: SavedPlaces | None
    state: LoaderState | None


@dataclass(frozen=True)
class MadeOf:
    """The parts of a copy of a loader.

    Args:
        graph: the graph after the adapters.
        adapters: the adapters.
        service: the service before the adapters.
        recorder: the recorder of the copy's statistics.
        seeds: the seeds.
        loaded: the state that was loaded; None if the loader has begun.
    """

    graph: Snapshot
    adapters: list[Any] | None
    service: Snapshot
    recorder: Recorder
    seeds: Seeds
    loaded: Loaded | None

    def parts(self, serialize: Callable[[Snapshot], bytes]) -> tuple[Pipeline, Seeds, Recorder]:
        """Returns the pipeline, the seeds and the recorder of the copy."""
        pipeline = Pipeline(self.graph, self.adapters, self.service, serialize, is_adapted=True)
        return pipeline, copy.copy(self.seeds), self.recorder

    def load_into(self, run: EpochRun, keeper: StateKeeper) -> None:
        """Loads the loader's loaded state into the copy, if there is one."""
        if self.loaded is not None:
            run.pipeline.service_state, keeper.loaded = self.loaded.service_state, self.loaded.state
            run.place, run.saved_places = self.loaded.place, self.loaded.saved_places


def made_of(run: EpochRun, keeper: StateKeeper, has_begun: bool) -> MadeOf:
    """Returns the parts of a copy of a loader.

    Args:
        run: the epochs of the loader.
        keeper: the states of the loader.
        has_begun: whether the loader has begun, so that the copy does not resume from the loaded state.
    """
    pipeline, recorder, seeds, loaded = run.pipeline, run.recorder, run.seeds, None
    if has_begun:
        seeds = Seeds()
        seeds.seed = run.seeds.seed
    else:
        loaded = Loaded(pipeline.service_state, run.place, run.saved_places, keeper.loaded)
    return MadeOf(pipeline.snapshot, pipeline.adapters, pipeline.given_service, recorder.copied(), seeds, loaded)
