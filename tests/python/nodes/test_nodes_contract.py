"""A node receives exactly the calls that the guide describes. The tests use a node that records its calls.

In a record of calls, R means a reset, L a reset to a state, n an item, e the end of an epoch, and g a saved state.
"""

import itertools
import pickle
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

import torchdata.nodes as tn
from node_sources import same

SIZE = 5


class Recorder(tn.BaseNode[Any]):
    def __init__(self, size: int = SIZE) -> None:
        super().__init__()
        self.size = size
        self.notes = ""
        self.saved: list[Any] = []
        self.loaded: list[Any] = []
        self.position: int | None = None
        self.calling = threading.Lock()

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        with self.called("R" if initial_state is None else "L"):
            super().reset(initial_state)
            if initial_state is not None:
                self.loaded.append(initial_state)
            self.position = 0 if initial_state is None else initial_state["position"]

    def next(self) -> Any:
        assert self.position is not None, "an item was requested before reset()"
        with self.called("e" if self.position == self.size else "n"):
            if self.position == self.size:
                raise StopIteration
            self.position += 1
            return self.position - 1

    def get_state(self) -> dict[str, Any]:
        assert self.position is not None, "a state was requested before reset()"
        with self.called("g"):
            self.saved.append({"position": self.position})
            return {"position": self.position}

    def called(self, note: str) -> Any:
        assert self.calling.acquire(blocking=False), "two threads called the node at once"
        self.calling.release()
        self.notes += note
        return self.calling


ASKING: dict[str, Callable[[tn.BaseNode[Any]], tn.BaseNode[Any]]] = {
    "prefetch": lambda node: tn.Prefetcher(node, 2),
    "prefetch, every third": lambda node: tn.Prefetcher(node, 2, snapshot_frequency=3),
    "threads": lambda node: tn.ParallelMapper(node, same, 2),
    "threads out of order": lambda node: tn.ParallelMapper(node, same, 2, in_order=False),
    "threads and batches": lambda node: tn.ParallelMapper(node, same, 2, prebatch=2),
    "unbatcher": lambda node: tn.Unbatcher(tn.Batcher(node, 2, drop_last=False)),
}
STEPS: dict[str, Callable[[tn.BaseNode[Any]], tn.BaseNode[Any]]] = {
    "nothing": same,
    "mapper": lambda node: tn.Mapper(node, same),
    "filter": lambda node: tn.Filter(node, lambda item: item != 1),
    "batcher": lambda node: tn.Batcher(node, 2),
    "header": lambda node: tn.Header(node, 3),
    "cycler": lambda node: tn.Header(tn.Cycler(node, 2), 20),
    "bridge": lambda node: tn.from_pipe(tn.to_pipe(node).map(same)),
    **{
        f"in turn {criterion}": lambda node, c=criterion: tn.Header(tn.MultiNodeRoundRobinSampler({"a": node}, c), 20)
        for criterion in sorted(value for name, value in vars(tn.StopCriteria).items() if name.isupper())
    },
    "weighted": lambda node: tn.MultiNodeWeightedSampler({"a": node}, {"a": 1.0}, rank=0, world_size=1),
    **ASKING,
}
TURNING = ("cycler", "in turn CYCLE")


def epochs_over(loader: tn.Loader[Any], most: int | None = None) -> list[Any]:
    return list(itertools.islice(loader, most))


PAIRS = [
    (inner, outer)
    for first, inner in enumerate(STEPS)
    for second, outer in enumerate(STEPS)
    if (first + second) % 5 == 0 or "nothing" in (inner, outer)
]


@pytest.mark.parametrize(("inner", "outer"), PAIRS)
def test_every_node_calls_its_sources_as_documented_in_the_guide(inner: str, outer: str) -> None:
    turns = any(name.startswith(TURNING) for name in (inner, outer))
    asks = inner in ASKING or outer in ASKING

    def make(recorder: Recorder) -> tn.Loader[Any]:
        return tn.Loader(STEPS[outer](STEPS[inner](recorder)))

    # Only nodes that read ahead, or read a source repeatedly, may request the state of their source.
    recorder = Recorder()
    with make(recorder) as loader:
        whole = [epochs_over(loader) for _ in range(3)]
    resets = recorder.notes.count("R")
    assert resets == 3 if not turns else resets >= 3
    assert recorder.notes.startswith("R")
    assert "L" not in recorder.notes
    assert asks or "g" not in recorder.notes
    assert not re.search("e[ng]*n", recorder.notes.replace("R", "R ")), "the node was read after its end"
    recorder = Recorder()
    with make(recorder) as loader:
        for most in (1, 2, None):
            left = epochs_over(loader, most)
    assert sorted(map(repr, left)) == sorted(map(repr, whole[0]))
    assert "L" not in recorder.notes
    assert asks or "g" not in recorder.notes
    # A node must pass a loaded state to its source exactly once.
    recorder, resumed = Recorder(), Recorder()
    with make(recorder) as loader:
        iterator = iter(loader)
        seen = [*itertools.islice(iterator, 1)]
        state = pickle.loads(pickle.dumps(loader.state_dict()))
    with make(resumed) as loader:
        loader.load_state_dict(state)
        rest, later = epochs_over(loader), epochs_over(loader)
    if seen and len(seen) == len(whole[0]):
        rest, later = [], rest
    assert sorted(map(repr, seen + rest)) == sorted(map(repr, whole[0]))
    assert sorted(map(repr, later)) == sorted(map(repr, whole[1]))
    assert resumed.notes.startswith("L")
    assert resumed.notes.count("L") == 1
    assert all(state in recorder.saved for state in resumed.loaded)


@pytest.mark.parametrize("name", ASKING)
def test_nodes_that_read_ahead_request_states_as_documented_in_the_guide(name: str) -> None:
    recorder = Recorder()
    with tn.Loader(ASKING[name](recorder)) as loader:
        list(loader)
    expected = {
        "prefetch": "Rg" + "ng" * 5 + "e",
        "prefetch, every third": "Rg" + "nnngnn" + "e",
        "threads": "Rg" + "ng" * 5 + "e",
        "threads out of order": "Rg" + "ng" * 5 + "e",
        "threads and batches": "Rg" + "nng" * 2 + "ne" + "ge",
        "unbatcher": "R" + "gnn" * 2 + "gne" + "ge",
    }
    assert recorder.notes == expected[name]


def test_an_end_lasts_until_the_next_reset_for_nodes_that_read_ahead() -> None:
    for name in ("prefetch", "threads"):
        recorder = Recorder(1)
        with tn.Loader(ASKING[name](recorder)) as loader:
            iterator = iter(loader)
            assert list(iterator) == [0]
            for _ in range(3):
                assert next(iterator, "over") == "over"
        assert recorder.notes == "Rgnge"


def test_an_error_passes_through_every_node_and_the_next_call_reads_on() -> None:
    class Fails(Recorder):
        def next(self) -> Any:
            item = super().next()
            if item == 2:
                raise LookupError("two")
            return item

    for name, step in STEPS.items():
        with tn.Loader(step(Fails())) as loader:
            found: list[Any] = []
            iterator = iter(loader)
            while len(found) < 12:
                try:
                    found.append(next(iterator))
                except StopIteration:
                    break
                except LookupError as error:
                    found.append(error.args)
            assert ("two",) in found, name
            if not name.startswith(TURNING) and name not in ("header", "weighted") and name != "batcher":
                assert {3, 4} <= set(found), name
