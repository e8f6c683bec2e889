"""The statistics of a `Loader` over nodes contain counts, times by node, the users' functions, and the progress."""

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest

from counted_causes import CAUSES, stats_of
from resumed import loaded
from torchdata._observe.stats.diagnosis import diagnose
from torchdata._observe.stats.model import NODES, LoaderStats, PipeStats
from torchdata._users_code import code_location
from torchdata.nodes import BaseNode, Batcher, IterableWrapper, Loader, Mapper, ParallelMapper, Prefetcher, Unbatcher


def decode(item: int) -> int:
    return item


class Passing(BaseNode[int]):
    def __init__(self, source: BaseNode[int]) -> None:
        super().__init__()
        self.source = source

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        self.source.reset(None if initial_state is None else initial_state["source"])

    def next(self) -> int:
        return next(self.source)

    def get_state(self) -> dict[str, Any]:
        return {"source": self.source.state_dict()}


def graph() -> BaseNode[Any]:
    return Unbatcher(Batcher(Passing(Prefetcher(Mapper(IterableWrapper(range(12)), decode), 2)), 4))


def rows_of(loader: Loader[Any]) -> dict[str, tuple[str | None, int | None, int]]:
    return {pipe.name: (pipe.location, pipe.items_in, pipe.items_out) for pipe in loader.stats().pipes}


def test_each_node_is_counted_with_the_users_function_and_its_line() -> None:
    loader = Loader(graph(), stats="full")
    for epoch in (1, 2):
        assert list(loader) == list(range(12))
        count = 12 * epoch
        assert rows_of(loader) == {
            "IterableWrapper": (None, None, count),
            "ParallelMapper(decode)": (code_location(decode.__code__), count, count),
            "Prefetcher": (None, count, 0),  # The statistics do not time the reads of a user-defined node.
            "Passing": (code_location(Passing.next.__code__), 0, count),
            "Batcher": (None, count, 3 * epoch),
            "Unbatcher": (None, 3 * epoch, count),
            NODES: (None, count, count),
        }
        assert (loader.stats().epoch, loader.stats().running) == (epoch, False)
    assert [pipe.name for pipe in loader.stats().pipes if pipe.waits] == ["Prefetcher"]


def test_only_the_items_of_the_loader_are_counted_by_default() -> None:
    loader = Loader(graph())
    assert (list(loader), rows_of(loader)) == (list(range(12)), {NODES: (None, None, 12)})
    assert 'Loader(…, stats="full")' in str(loader.diagnose()) or loader.diagnose().kind != "loading"
    assert len(list(loader.progress())) == 12


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_counts_for_itself(make: Any) -> None:
    loader = Loader(graph(), stats="full")
    list(loader)
    copied = make(loader)
    assert (copied.stats().items, copied.stats().full) == (0, True)
    list(copied)
    list(copied)
    assert rows_of(copied)["Batcher"] == (None, 24, 6)
    assert rows_of(loader)["Batcher"] == (None, 12, 3)


def test_counting_does_not_change_states(monkeypatch: pytest.MonkeyPatch) -> None:
    states = []
    for level in ("counts", "full"):
        monkeypatch.setenv("TORCHDATA_STATS", level)
        loader = Loader(graph())
        items = iter(loader)
        assert [next(items) for _ in range(5)] == list(range(5))
        states.append(loader.state_dict())
        assert list(loaded(Loader(graph()), states[0])) == list(range(5, 12))
    assert states[0] == states[1]


def test_counts_remain_after_a_shutdown_until_the_next_epoch_begins() -> None:
    with Loader(graph(), stats="full") as loader:
        list(loader)
    assert loader.stats().items == 12
    assert list(loader) == list(range(12))
    assert loader.stats().items == 12


def test_a_node_with_workers_is_blamed_unless_its_source_is_as_slow() -> None:
    example = stats_of(CAUSES["no workers"], "StatefulDataLoader")

    def stats(source: float, waiting: float) -> LoaderStats:
        main = example.main
        assert main is not None
        base = replace(main.pipes[0], items_out=example.items, items_in=example.items, process=main.name)

        def row(name: str, each: float | None, **more: Any) -> PipeStats:
            own = None if each is None else each * example.items
            return replace(base, name=name, own_seconds=own, seconds_per_item=each, **more)

        rows = (
            row("source", source / 2, share=0.5, items_in=None),
            row("cut", source / 2, share=0.5),
            row("ParallelMapper(decode)", waiting, share=None, waits=True, location="train.py:7"),
            row(NODES, None),
        )
        return replace(example, processes=(replace(main, pipes=rows),))

    verdict = diagnose(stats(source=0.001, waiting=0.02))
    assert (verdict.kind, verdict.pipe, verdict.location) == ("loading", "ParallelMapper(decode)", "train.py:7")
    assert "main waits for `ParallelMapper(decode)` (train.py:7)" in str(verdict)
    assert "times the workers" in str(verdict)
    verdict = diagnose(stats(source=0.02, waiting=0.021))
    assert verdict.pipe in ("source", "cut")
    assert "ParallelMapper(…, num_workers=" in str(verdict)


def test_arguments_without_effect_are_refused() -> None:
    with pytest.raises(ValueError, match='stats must be "counts" or "full"'):
        Loader(IterableWrapper(range(3)), stats="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="wait_warning must be a share from 0 to 1 or None"):
        Loader(ParallelMapper(IterableWrapper(range(3)), decode, num_workers=1), wait_warning=0)
