"""Names of torchdata 0.11 that public programs import or override exist, and behave as in torchdata 0.11."""

import pickle
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from node_sources import numbers
from resumed import loaded
from torchdata.nodes import Header, Loader, MultiNodeWeightedSampler, StopCriteria
from torchdata.nodes.constants import QUEUE_TIMEOUT
from torchdata.nodes.exception_wrapper import StartupExceptionWrapper
from torchdata.nodes.samplers.multi_node_weighted_sampler import _WeightedSampler
from torchdata.nodes.samplers.utils import _get_rank_seed
from torchdata.nodes.snapshot_store import MonotonicIndex, QueueSnapshotStore
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

WEIGHTS = {"a": 1.0, "b": 3.0}


def sources() -> dict[str, Any]:
    return {"a": numbers(40), "b": numbers(40)}


def test_constants_have_the_values_of_torchdata_0_11() -> None:
    assert QUEUE_TIMEOUT == 0.1
    index = MonotonicIndex(3)
    assert [index.get(), index.get(), MonotonicIndex().get()] == [3, 4, 0]
    assert StatefulDistributedSampler._YIELDED == "yielded"
    sampler = StatefulDistributedSampler(range(4), num_replicas=1, rank=0)
    assert sampler.state_dict() == {StatefulDistributedSampler._YIELDED: 0}


def test_choices_follow_from_seed_rank_and_epoch_and_resume_from_a_state() -> None:
    choices = _WeightedSampler(WEIGHTS, seed=3, rank=1, world_size=2, epoch=4)
    generator = torch.Generator().manual_seed(_get_rank_seed(3, torch.Generator(), 1, 2, 4))
    drawn = torch.multinomial(torch.tensor([1.0, 3.0], dtype=torch.float64), 1000, True, generator=generator).tolist()
    assert [next(choices) for _ in range(999)] == ["ab"[index] for index in drawn[:999]]
    state = pickle.loads(pickle.dumps(choices.state_dict()))
    assert state.keys() == {"g_state", "offset"}
    again = _WeightedSampler(WEIGHTS, 3, 1, 2, 4, random_tensor_batch_size=1000, initial_state=state)
    assert [next(again) for _ in range(1500)] == [next(choices) for _ in range(1500)]


class Alternating(MultiNodeWeightedSampler[Any]):
    class Turns:
        def __init__(self, names: list[str], position: int) -> None:
            self.names, self.position = names, position

        def __next__(self) -> str:
            self.position += 1
            return self.names[(self.position - 1) % len(self.names)]

        def state_dict(self) -> dict[str, Any]:
            return {"position": self.position}

    def _validate(self) -> None:
        super()._validate()
        if len(self.weights) > 2:
            raise ValueError("too many")

    def _get_new_weighted_sampler(self, initial_state: dict[str, Any] | None = None) -> Any:
        state = {"position": 0} if initial_state is None else initial_state[self.WEIGHTED_SAMPLER_STATE_KEY]
        return self.Turns(self.dataset_names, state["position"])


def test_a_subclass_of_the_weighted_sampler_checks_and_chooses_in_its_own_way() -> None:
    with pytest.raises(ValueError, match="too many"):
        Alternating(
            {"a": numbers(1), "b": numbers(1), "c": numbers(1)}, dict.fromkeys("abc", 1.0), rank=0, world_size=1
        )
    with pytest.raises(ValueError, match="keys of source_nodes and weights must be the same"):
        Alternating(sources(), {"a": 1.0}, rank=0, world_size=1)
    with pytest.raises(ValueError, match="weights must be a 1d sequence, non-negative, and non-zero"):
        Alternating(sources(), dict.fromkeys(WEIGHTS, 0.0), rank=0, world_size=1)

    def make() -> Loader[Any]:
        sampler = Alternating(sources(), WEIGHTS, rank=0, world_size=1, tag_output=True)
        return Loader(Header(sampler, 9))

    whole = [item["dataset_key"] for item in make()]
    assert "".join(whole) == "ababababa"
    loader = make()
    iterator = iter(loader)
    seen = [next(iterator)["dataset_key"] for _ in range(3)]
    other = loaded(make(), pickle.loads(pickle.dumps(loader.state_dict())))
    assert seen + [item["dataset_key"] for item in other] == whole


def test_a_subclass_may_read_the_sources_itself_as_torchdata_0_11_did() -> None:
    class Tagging(MultiNodeWeightedSampler[Any]):
        def next(self) -> Any:
            self._started = True
            while True:
                self._check_for_stop_iteration()
                key = next(self._weighted_sampler)
                try:
                    if self._datasets_exhausted[key] and self.stop_criteria == StopCriteria.ALL_DATASETS_EXHAUSTED:
                        continue
                    item = next(self.source_nodes[key])
                except StopIteration:
                    self._datasets_exhausted[key] = True
                    self._check_for_stop_iteration()
                    if self.stop_criteria == StopCriteria.ALL_DATASETS_EXHAUSTED:
                        continue
                    self.source_nodes[key].reset()
                    item = next(self.source_nodes[key])
                break
            self._num_yielded += 1
            return key, item

    for criterion in (StopCriteria.ALL_DATASETS_EXHAUSTED, StopCriteria.FIRST_DATASET_EXHAUSTED):
        ours = MultiNodeWeightedSampler(sources(), WEIGHTS, criterion, rank=0, world_size=1)
        theirs = Tagging(sources(), WEIGHTS, criterion, rank=0, world_size=1)
        for _ in range(2):
            assert [item for _, item in Loader(theirs)] == list(Loader(ours))


def test_after_an_error_of_a_source_the_next_call_has_the_same_choice_even_in_a_state() -> None:
    class FailsOnce:
        failing = True

        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            if self.failing:
                self.failing = False
                raise LookupError("once")
            return 1

    from torchdata.nodes import IterableWrapper

    nodes = {"a": IterableWrapper(FailsOnce()), "b": numbers(40)}
    sampler = MultiNodeWeightedSampler(nodes, {"a": 1.0, "b": 0.01}, rank=0, world_size=1)
    sampler.reset()
    with pytest.raises(LookupError):
        next(sampler)
    assert sampler.state_dict()["chosen"] == "a"
    assert next(sampler) == 1
    assert "chosen" not in sampler.state_dict()


def ended() -> threading.Thread:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    return thread


def test_a_snapshot_is_found_by_its_version_and_older_ones_are_dropped() -> None:
    store = QueueSnapshotStore()
    for version in (0, 2, 5):
        store.append(f"v{version}", version)
    assert store.pop_version(1) is None
    assert store.pop_version(2) == "v2"
    assert store.pop_version(2) is None
    assert store.pop_version(9) is None
    assert store.pop_version(5) is None
    for version in (5, 2):
        with pytest.raises(ValueError, match=f"version {version} of a snapshot must be greater than version 5"):
            store.append("b", version)


def test_the_snapshot_of_the_beginning_is_waited_for() -> None:
    store = QueueSnapshotStore()
    thread = threading.Thread(target=store.append_initial_snapshot, args=({"position": 0},))
    thread.start()
    assert store.get_initial_snapshot(thread, timeout=20) == {"position": 0}
    thread.join()
    with pytest.raises(RuntimeError, match="did not arrive: its thread has ended"):
        store.get_initial_snapshot(ended(), timeout=20)
    with pytest.raises(RuntimeError, match=r"did not arrive within 0.1 s"):
        store.get_initial_snapshot(threading.main_thread(), timeout=0.1)


def test_an_error_that_arrives_instead_of_the_snapshot_is_raised() -> None:
    store = QueueSnapshotStore()
    try:
        raise KeyError("at the start")
    except KeyError:
        store.append_initial_snapshot(StartupExceptionWrapper(sys.exc_info(), where="in a thread"))
    with pytest.raises(KeyError, match="at the start"):
        store.get_initial_snapshot(ended(), timeout=1)
