"""Random graphs of pipes are saved and resume exactly. `make fuzz` runs more random graphs."""

import contextlib
import random
from typing import Any

import pytest

from drivers.frame import Skipped
from pipes_table import ELSEWHERE, ROWS
from random_graphs.check import check_graph
from random_graphs.graphs import Graph
from random_graphs.loaders import Loader
from random_graphs.stages import GLOBAL, OVER_ONE, OVER_SEVERAL, SOURCES, THREADED
from random_loaders.graphs import GraphLoaderPlan
from torchdata._engine import snapshots
from torchdata.datapipes import iter as iter_pipes
from torchdata.datapipes import map as map_pipes
from torchdata.datapipes._pipe.graph.traversal import walk
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe, Prefetcher
from torchdata.datapipes.map import MapDataPipe
from torchdata.datapipes.state import load_state, save_state


def test_random_graphs_resume_from_random_positions_as_if_they_had_not_been_stopped() -> None:
    found = []
    for number in range(1, 11):
        with contextlib.suppress(Skipped):
            found.append(check_graph(Graph(number), most=6))
    assert sum(found) > len(found) >= 5


def test_a_random_graph_resumes_in_another_process() -> None:
    assert check_graph(Graph(21), most=1, away=1) == 1


def test_a_thread_that_waits_for_a_dispatched_item_keeps_no_later_epoch_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Prefetcher, "patience", 1000.0)
    monkeypatch.setattr(snapshots, "SECONDS", 0.0)
    monkeypatch.setattr(snapshots, "FACTOR", 0.0)
    with GraphLoaderPlan(7000026).made() as loader:
        loader.seed(7000026)
        epochs = [[(loader.state_dict(), item)[1] for item in loader] for _ in range(4)]
        assert len(epochs) == 4


@pytest.mark.filterwarnings("ignore:Data from prior DataPipe are read by IterToMapConverter")
def test_a_graph_that_has_failed_resumes_from_a_loaded_state() -> None:
    first_key = 0

    def build() -> Any:
        first, second = IterableWrapper(range(6)).fork(2)
        return first.to_map_datapipe(lambda n: (n + first_key, n)).to_iter_datapipe().zip(second)

    items = list(build())
    begun = build()
    head = [next(iter(begun))]
    state = save_state(begun)
    first_key = 1
    pipe = build()
    with pytest.raises(IndexError):
        list(pipe)
    first_key = 0
    load_state(pipe, state)
    assert head + list(pipe) == items
    assert len(items) == 6


@pytest.mark.filterwarnings("ignore:Data from prior DataPipe are read by IterToMapConverter")
def test_no_pipe_is_missing_from_random_graphs() -> None:
    rng = random.Random(1)

    def source() -> Any:
        return IterableWrapper([3, 1, 4, 1, 5])

    ends = [stage(rng, 5) for stage in SOURCES.values()]
    ends += [stage(rng, source()) for stages in (OVER_ONE, GLOBAL, THREADED) for stage in stages.values()]
    ends += [stage(rng, [source(), source()]) for stage in OVER_SEVERAL.values()]
    ends += [Loader(number, ("workers",)).pipe() for number in range(30)]
    found = {type(pipe).__name__ for end in ends for pipe in walk(end)}
    assert {f"row {row.name}" for row in ROWS} - {"row cycle_for_ever"} <= {*OVER_ONE, *THREADED}
    for base, module in ((IterDataPipe, iter_pipes), (MapDataPipe, map_pipes)):
        forms = {getattr(form, "__wrapped__", form).__name__: name for name, form in base.functions.items()}
        classes = {name: value for name in module.__all__ if isinstance(value := getattr(module, name), type)}
        public = {name for name, value in classes.items() if issubclass(value, base)} - {base.__name__}
        lacking = {name for name in public - found if f"row {forms.get(name)}" not in OVER_ONE | THREADED}
        assert lacking == ({*ELSEWHERE} - {"PinMemory"} if base is IterDataPipe else set())
