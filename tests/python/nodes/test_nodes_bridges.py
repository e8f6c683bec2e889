"""Graphs that combine pipes and nodes yield the expected items, and their states are exact."""

import pickle
import random
from typing import Any

import pytest
import torch

import torchdata.nodes as tn
from node_streams import resumes, run
from pipes_table.core import Doubling
from thread_checks import threads
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper as PipeOf
from torchdata.datapipes.iter import IterDataPipe
from torchdata.datapipes.map import SequenceWrapper
from torchdata.datapipes.state import load_state, save_state
from waiting import wait_for


def check_resumes_exactly(make: Any) -> list[list[Any]]:
    assert resumes(make, [None] * 3, random.Random(0)) > 2
    return run(tn.Loader(make()), [None] * 3)[0]


def test_the_functional_form_is_the_same() -> None:
    node, other = PipeOf(range(9)).shuffle().to_node(seed=4), tn.from_pipe(PipeOf(range(9)).shuffle(), 4)
    assert list(node) == list(other)
    assert list(PipeOf(range(3)).to_node()) == [0, 1, 2]


def test_a_pipe_is_recognized_without_a_seed() -> None:
    check_resumes_exactly(lambda: tn.IterableWrapper(PipeOf(range(7)).map(str).batch(2)))
    pipe = PipeOf(range(20)).shuffle().set_seed(5)
    node = tn.from_pipe(pipe)
    node.reset()
    seen = [next(node) for _ in range(8)]
    again = tn.from_pipe(PipeOf(range(20)).shuffle())
    again.reset(pickle.loads(pickle.dumps(node.state_dict())))
    rest = list(again)
    assert rest == list(node)
    assert sorted(seen + rest) == list(range(20))


@pytest.mark.parametrize("position", [1, 6, 13])
def test_an_epoch_that_reads_a_shuffle_several_times_is_resumed_without_a_seed(position: int) -> None:
    def made() -> tn.BaseNode[int]:
        return tn.from_pipe(PipeOf(range(6)).shuffle().cycle(3))

    node = made()
    node.reset()
    for _ in range(position):
        next(node)
    state = pickle.loads(pickle.dumps(node.state_dict()))
    rest = list(node)
    torch.manual_seed(99)
    again = made()
    again.reset(state)
    assert list(again) == rest


def test_a_pipe_without_a_state_of_its_own_is_replayed() -> None:
    first, *_ = check_resumes_exactly(lambda: tn.Batcher(tn.from_pipe(Doubling(PipeOf(range(4)))), 2))
    assert first == [[0, 2], [4, 6]]


def test_nodes_in_pipes_in_nodes_resume_exactly() -> None:
    class Turned:
        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Any:
            return iter([(number + self.epoch) % 6 for number in range(6)])

    def make() -> tn.BaseNode[Any]:
        inner = tn.ParallelMapper(tn.SamplerWrapper(Turned()), abs, 2)
        return tn.Batcher(tn.Prefetcher(tn.from_pipe(tn.to_pipe(inner).enumerate().map(list), seed=1), 2), 2)

    first, second, _ = check_resumes_exactly(make)
    assert first[0] == [[0, 0], [1, 1]]
    assert second[0] == [[0, 1], [1, 2]]


def test_the_state_of_a_pipeline_holds_that_of_the_nodes_in_it() -> None:
    def make() -> IterDataPipe[Any]:
        return tn.to_pipe(tn.Prefetcher(tn.Mapper(tn.IterableWrapper(range(9)), str), 3)).batch(2)

    pipe = make()
    iterator = iter(pipe)
    assert next(iterator) == ["0", "1"]
    state = pickle.loads(pickle.dumps(save_state(pipe)))
    fresh = make()
    load_state(fresh, state)
    assert save_state(fresh) == state
    assert list(fresh) == list(iterator) == [["2", "3"], ["4", "5"], ["6", "7"], ["8"]]
    assert list(fresh) == list(make())


def test_a_pipe_raises_the_error_of_a_node_and_the_next_item_can_be_read() -> None:
    iterator = iter(tn.to_pipe(tn.Prefetcher(tn.Mapper(tn.IterableWrapper([1, 0, 2]), lambda n: 2 // n), 2)))
    assert next(iterator) == 2
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    assert next(iterator) == 1


def tenfold(number: int) -> int:
    return 10 * number


def shuffled_loader() -> Any:
    loader = DataLoader2(PipeOf(range(6)).shuffle())
    loader.seed(3)
    return loader


def test_a_node_over_a_loader_resumes_at_each_position_of_an_epoch() -> None:
    check_resumes_exactly(lambda: tn.IterableWrapper(shuffled_loader()))


def test_a_pipe_over_nodes_runs_in_the_workers_of_a_loader() -> None:
    pipe = tn.to_pipe(tn.Prefetcher(tn.Mapper(tn.IterableWrapper(range(8)), tenfold), 2)).sharding_filter()
    service = MultiProcessingReadingService(num_workers=2, multiprocessing_context="fork")
    with DataLoader2(pipe, reading_service=service) as loader:
        assert [list(loader) for _ in range(2)] == [[10 * n for n in range(8)]] * 2


def test_a_shutdown_ends_both_a_pipe_over_nodes_and_a_node_over_a_pipe() -> None:
    loader = tn.Loader(
        tn.from_pipe(tn.to_pipe(tn.Prefetcher(tn.IterableWrapper(range(99)), 2)).map(tenfold).prefetch(3))
    )
    assert next(iter(loader)) == 0
    loader.shutdown()
    wait_for(lambda: not threads())


@pytest.mark.parametrize("wrong", [[1, 2], SequenceWrapper([1])])
def test_wrong_arguments_and_states_of_another_pipeline_are_refused_with_the_remedy(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"from_pipe: pipe must be an IterDataPipe.*to_iter_datapipe"):
        tn.from_pipe(wrong)
    with pytest.raises(TypeError, match="to_pipe: source_node must be a node"):
        tn.to_pipe(wrong)
    with pytest.raises(TypeError, match="a seed must be an integer"):
        tn.from_pipe(PipeOf([1]), seed="one")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="saved from another pipeline"):
        tn.from_pipe(PipeOf([1]).batch(1)).reset(tn.from_pipe(PipeOf([1]).map(str)).state_dict())
