"""A StatefulDataLoader's state has the keys of torchdata 0.11, and damaged states are refused."""

import copy
import functools
import itertools
import json
import operator
import random
import resource
from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DistributedSampler, get_worker_info

from process_checks import nothing_is_left  # noqa: F401 - a fixture for all tests here
from random_stateful.datasets import Counting
from resumed import Positions, TakesOnce, advanced, loaded, saved
from torchdata.stateful_dataloader import StatefulDataLoader, _cadence, _pool


@pytest.fixture(autouse=True)
def no_state_is_costly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes loaders treat every state as cheap to save, because saving may take long on a busy machine."""
    monkeypatch.setattr(_cadence, "_COSTLY", 60.0)
    monkeypatch.setattr(_pool, "get_context", functools.partial(get_context, "fork"))  # workers inherit the constant


class Stream(TakesOnce):
    length = 40

    def share(self) -> list[int]:
        info = get_worker_info()
        return list(range(self.length) if info is None else range(info.id, self.length, info.num_workers))


def state_after(batches: int, dataset: Any, **options: Any) -> Any:
    loader = StatefulDataLoader(dataset, batch_size=2, **options)
    advanced(loader, batches)
    return loader.state_dict()


def test_with_workers_a_state_has_torchdata_s_keys_for_the_delivered_batches() -> None:
    for batches in (0, 1, 2, 5):
        state = state_after(batches, Stream(), num_workers=2)
        assert state.keys() == {"_snapshot", "_steps_since_snapshot", "_iterator_finished", "_torchdata_rs"}
        snapshot = state["_snapshot"]
        assert (snapshot["_snapshot_step"], state["_steps_since_snapshot"]) == (batches, 0)
        assert snapshot["_last_yielded_worker_id"] == (batches - 1) % 2
        assert snapshot["_main_snapshot"].keys() == {
            "_num_workers", "_sampler_iter_state", "_index_sampler_state", "_sampler_iter_yielded",
            "_IterableDataset_len_called", "_shared_seed", "_dataset_kind", "_base_seed",
        }  # fmt: skip
        assert snapshot["_main_snapshot"]["_sampler_iter_yielded"] == batches
        worker_states = [snapshot["_worker_snapshots"][f"worker_{number}"] for number in range(2)]
        assert [worker_state["worker_id"] for worker_state in worker_states] == [0, 1]
        assert sum(worker_state["dataset_state"]["position"] for worker_state in worker_states) == 2 * batches
        assert worker_states[0]["fetcher_state"] == {"dataset_iter_state": None, "fetcher_ended": False}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_by_index_counts_delivered_batches_and_not_batches_that_were_read_ahead(workers: int) -> None:
    for batches in (0, 1, 4):
        state = state_after(batches, Counting(40), num_workers=workers, shuffle=True)
        if workers:
            snapshot = state["_snapshot"]
            worker_states, main = snapshot["_worker_snapshots"].values(), snapshot["_main_snapshot"]
        else:
            worker_states, main = [state], state
            assert state["_num_yielded"] == batches
        assert sum(worker_state["dataset_state"]["reads"] for worker_state in worker_states) == 2 * batches
        assert all(worker_state["fetcher_state"] is None for worker_state in worker_states)
        assert main["_sampler_iter_yielded"] == batches
        assert main["_sampler_iter_state"]["samples_yielded"] == 2 * batches


def test_the_state_of_a_sampler_counts_delivered_batches() -> None:
    for workers, every in itertools.product([0, 2], [1, 3]):
        options = {"num_workers": workers, "snapshot_every_n_steps": every}
        for batches in (1, 5, 7):
            loader = StatefulDataLoader(range(20), batch_size=3, sampler=Positions(20), **options)
            whole = [batch.tolist() for batch in StatefulDataLoader(range(20), batch_size=3)]
            advanced(loader, batches)
            state = loader.state_dict()
            main = state["_snapshot"]["_main_snapshot"] if workers else state
            if every == 1:
                assert main["_sampler_iter_state"]["sampler_state"] == {"position": min(3 * batches, 20)}
            later = loaded(StatefulDataLoader(range(20), batch_size=3, sampler=Positions(20), **options), state)
            assert [[batch.tolist() for batch in later] for _ in range(2)] == [whole[batches:], whole]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_state_that_was_changed_in_the_saved_state_is_loaded(workers: int) -> None:
    for batches in (1, 4):
        state = json.loads(json.dumps(state_after(batches, Stream(), num_workers=workers)))
        worker_states = list(state["_snapshot"]["_worker_snapshots"].values()) if workers else [state]
        for worker_state in worker_states:
            worker_state["dataset_state"] = {"position": worker_state["dataset_state"]["position"] + 6}
        loader = loaded(StatefulDataLoader(Stream(), batch_size=2, num_workers=workers), state)
        found = sorted(number for batch in loader for number in batch.tolist())
        left = [number for part, worker_state in enumerate(worker_states)
                for number in range(part, 40, workers or 1)[worker_state["dataset_state"]["position"] :]]  # fmt: skip
        assert found == sorted(left)


MAKERS: list[Any] = [
    lambda: {"dataset": range(40), "shuffle": True},
    lambda: {"dataset": range(40), "shuffle": True, "generator": torch.Generator().manual_seed(3)},
    lambda: {"dataset": range(40), "sampler": DistributedSampler(range(40), 2, 0)},
    lambda: {"dataset": range(40), "sampler": torch.utils.data.SubsetRandomSampler(range(20))},
    lambda: {"dataset": Stream()},
    lambda: {"dataset": Counting(40)},
]


def of_json(state: dict[str, Any]) -> dict[str, Any]:
    """Converts a state to JSON and back, and restores the tuple that JSON has changed to a list."""
    state = json.loads(json.dumps(state))
    return {**state, "_torchdata_rs": tuple(state["_torchdata_rs"])}


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}], ids=str)
@pytest.mark.parametrize("number", range(len(MAKERS)))
def test_states_are_json_equal_and_the_same_in_another_run(number: int, options: dict[str, Any]) -> None:
    for batches in (0, 3):
        found = []
        for _ in range(2):
            torch.manual_seed(6)
            random.seed(6)
            numpy.random.seed(6)
            loader = StatefulDataLoader(batch_size=2, **MAKERS[number](), **options)
            before = loader.state_dict()
            assert before == loader.state_dict() == of_json(before)
            advanced(loader, batches)
            state = loader.state_dict()
            assert state == loader.state_dict() == of_json(state)
            found.append(json.dumps(state))
        assert found[0] == found[1]
        generators = state["_torchdata_rs"][0].get("reading", {}).pop("random", {})
        assert list(generators) == (["torch", "python", "numpy"] if batches == 0 and not options else [])


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield from paths(one, (*path, key))


def damaged(state: Any, path: tuple[Any, ...], value: Any) -> Any:
    state = copy.deepcopy(state)
    one = functools.reduce(operator.getitem, path[:-1], state)
    if value is ...:
        del one[path[-1]]
    else:
        one[path[-1]] = value
    return state


def test_counts_out_of_range_are_refused_by_name() -> None:
    workers = state_after(3, Stream(), num_workers=2)
    alone, stream = state_after(3, range(40), shuffle=True), state_after(3, Stream())
    main = ("_snapshot", "_main_snapshot")
    cases: list[tuple[Any, tuple[Any, ...], Any]] = [
        *((workers, ("_steps_since_snapshot",), value) for value in (10**12, -1)),
        (workers, ("_snapshot", "_snapshot_step"), 10**9),
        (workers, ("_snapshot", "_last_yielded_worker_id"), 2),
        (workers, ("_snapshot", "_worker_snapshots", "worker_1", "worker_id"), 0),
        (workers, (*main, "_num_workers"), 10**9),
        (workers, (*main, "_sampler_iter_yielded"), -1),
        (workers, (*main, "_base_seed"), "x"),
        *((alone, ("_num_yielded",), value) for value in (10**12, -1)),
        (alone, ("_torchdata_rs", 0, "generators", "now"), {"own": 5}),
        (alone, ("_sampler_iter_yielded",), 1.5),
        (stream, ("fetcher_state",), None),
        *((stream, path, 1) for path in (("_iterator_finished",), ("fetcher_state", "fetcher_ended"))),
        (workers, ("_snapshot", "_worker_snapshots", "worker_1", "fetcher_state"), None),
    ]
    for state, path, value in cases:
        loader = StatefulDataLoader(range(40) if state is alone else Stream(), batch_size=2)
        with pytest.raises(ValueError, match=str(path[-1])):
            iter(loaded(loader, damaged(state, path, value)))


def test_a_state_that_counts_more_items_than_exist_raises_an_error() -> None:
    state = damaged(state_after(3, range(40), shuffle=True), ("_sampler_iter_state", "samples_yielded"), 10**9)
    loader = StatefulDataLoader(range(40), batch_size=2, shuffle=True)
    loaded(loader, damaged(state, ("_sampler_iter_state", "sampler_iter_state", "yielded"), 10**9))
    with pytest.raises(ValueError, match="become shorter"):
        list(loader)
    after = damaged(state_after(2, Stream(), num_workers=1), ("_steps_since_snapshot",), 10**9)
    del after["_torchdata_rs"]
    loader = loaded(StatefulDataLoader(Stream(), batch_size=2, num_workers=1), after)
    with pytest.raises(ValueError, match="_steps_since_snapshot"):
        list(loader)


VALUES: list[Any] = [-1, 2**31, 10**12, 2**70, 1.5, None, "x", [], {}, True, [1, 2], ["x", 7], float("nan"), ...]


@pytest.mark.filterwarnings("ignore:StatefulDataLoader. rank")
def test_damaged_states_are_refused_or_read_and_never_hang_or_blow_up() -> None:
    makers = [*MAKERS, lambda: {"dataset": Stream(), "snapshot_every_n_steps": 3}]
    draw = random.Random(3)
    tried = refused = 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for make in makers:
        torch.manual_seed(6)
        first = StatefulDataLoader(batch_size=2, **make())
        advanced(first, 4)
        state = saved(first)
        for path in paths(state):
            for value in draw.sample(VALUES, 6):
                if "dataset_state" in path:  # Only the user's dataset can detect damage of its own state.
                    continue
                later = StatefulDataLoader(batch_size=2, **make())
                tried += 1
                try:
                    later.load_state_dict(damaged(state, path, value))
                    assert len(list(later)) <= 40
                except (ValueError, TypeError):
                    refused += 1
    assert tried > 400
    assert refused > tried / 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 256 << 10
