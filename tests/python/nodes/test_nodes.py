"""All nodes follow the same rules for their methods and states, and raise clear errors for wrong arguments."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchdata.nodes as tn
from node_sources import numbers
from refusals import refuses
from resumed import loaded
from torchdata.datapipes.iter import IterableWrapper as PipeOf


class Bare(tn.BaseNode[int]):
    def __init__(self, calls_init: bool = True, calls_reset: bool = True) -> None:
        if calls_init:
            super().__init__()
        self.calls_reset = calls_reset

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        if self.calls_reset:
            super().reset(initial_state)
        self.position = 0 if initial_state is None else initial_state["position"]

    def next(self) -> int:
        self.position += 1
        return self.position

    def get_state(self) -> dict[str, Any]:
        return {"position": self.position}


def test_a_new_node_is_reset_when_it_is_first_read_or_asked_for_its_state() -> None:
    assert next(Bare()) == 1
    assert Bare().state_dict() == {"position": 0}
    node = Bare()
    node.reset({"position": 5})
    assert next(node) == 6
    assert iter(node) is node


@pytest.mark.parametrize("use", [next, tn.BaseNode.state_dict, lambda node: tn.Batcher(node, 2).reset()])
def test_a_node_that_does_not_call_its_base_s_init_or_reset_gets_an_error(use: Callable[[Any], Any]) -> None:
    with pytest.raises(NotImplementedError, match=r"Bare was not set up: call super\(\).__init__\(\)"):
        use(Bare(calls_init=False, calls_reset=False))
    with pytest.raises(NotImplementedError, match=r"Bare was not reset: call super\(\).reset\(initial_state\)"):
        use(Bare(calls_reset=False))


def test_methods_that_a_subclass_must_define_raise_an_error() -> None:
    class Empty(tn.BaseNode[int]):
        pass

    with pytest.raises(NotImplementedError, match=r"Empty must define next\(\)"):
        next(Empty())
    with pytest.raises(NotImplementedError, match=r"Empty must define get_state\(\)"):
        Empty().state_dict()


@pytest.mark.parametrize(
    "make",
    [
        lambda: numbers(3),
        lambda: tn.SamplerWrapper(range(3)),
        lambda: tn.Mapper(numbers(3), str),
        lambda: tn.Batcher(numbers(3), 2),
        lambda: tn.Filter(numbers(3), bool),
        lambda: tn.Cycler(numbers(3)),
        lambda: tn.Header(numbers(3), 2),
        lambda: tn.Prefetcher(numbers(3), 2),
        lambda: tn.ParallelMapper(numbers(3), str, 2),
    ],
)
def test_next_before_reset_raises_an_error_that_names_the_node(make: Callable[[], tn.BaseNode[Any]]) -> None:
    node = make()
    with pytest.raises(RuntimeError, match=rf"{type(node).__name__}.next\(\) was called before reset\(\)"):
        node.next()


def test_a_copy_of_a_partly_read_node_starts_from_the_beginning() -> None:
    node = tn.Batcher(tn.Prefetcher(tn.Mapper(numbers(6), str), 2), 2)
    assert next(node) == ["0", "1"]
    for duplicate in (copy.deepcopy(node), pickle.loads(pickle.dumps(node))):
        assert list(duplicate) == [["0", "1"], ["2", "3"], ["4", "5"]]
    assert list(node) == [["2", "3"], ["4", "5"]]


def test_next_and_dunder_next_that_a_subclass_of_a_node_overrides_are_called() -> None:
    class Louder(tn.Prefetcher[int]):
        def next(self) -> int:
            return 100 + super().next()

    class Loudest(Louder):
        def __next__(self) -> int:
            return 1000 + super().__next__()

    class Mapping(tn.ParallelMapper[int]):
        def next(self) -> int:
            return -super().next()

    assert list(tn.Batcher(Louder(numbers(2), 2), 2)) == [[100, 101]]
    assert list(tn.Batcher(Loudest(numbers(2), 2), 2)) == [[1100, 1101]]
    assert list(tn.Batcher(Mapping(numbers(3), abs, 0), 3)) == [[0, -1, -2]]


def test_states_have_the_layout_of_torchdata_0_11() -> None:
    pairs = [
        (tn.Batcher(numbers(9), 2), {"source": {"_num_yielded": 4}}, [[4, 5], [6, 7]]),
        (tn.Mapper(numbers(9), abs), {"it_state": {"source": {"_num_yielded": 7}}}, [7, 8]),
        (tn.Prefetcher(numbers(9), 2), {"snapshot": {"_num_yielded": 5}, "steps_since_snapshot": 2}, [7, 8]),
        (
            tn.ParallelMapper(numbers(9), abs, 2),
            {"it_state": {"snapshot": {"_num_yielded": 5}, "steps_since_snapshot": 2}},
            [7, 8],
        ),
        (
            tn.ParallelMapper(numbers(9), abs, 2, prebatch=3),
            {
                "it_state": {
                    "source": {"snapshot": {"source": {"_num_yielded": 3}}, "steps_since_snapshot": 0},
                    "batch_idx": 2,
                }
            },
            [5, 6, 7, 8],
        ),
        (tn.SamplerWrapper(range(9)), {"_num_yielded": 7, "_epoch": 0}, [7, 8]),
        (
            tn.Unbatcher(tn.Batcher(numbers(9), 3)),
            {"source": {"source": {"_num_yielded": 3}}, "batch_idx": 2},
            [5, 6, 7, 8],
        ),
    ]
    for node, state, rest in pairs:
        loader = loaded(tn.Loader(node), {"root": state, "num_yielded": 1})
        assert list(loader) == rest
        loader.shutdown()


test_a_wrong_argument_raises_an_error_that_names_node_and_argument = refuses(
    (lambda: tn.Batcher([1], 2), TypeError, r"Batcher: source must be a node.*IterableWrapper"),
    (lambda: tn.Batcher(PipeOf([1]), 2), TypeError, r"Batcher: source must be a node.*from_pipe"),
    (lambda: tn.Batcher(numbers(1), 0), ValueError, "Batcher: batch_size must be at least 1"),
    (lambda: tn.Batcher(numbers(1), 1.5), TypeError, "Batcher: batch_size must be an integer"),
    (lambda: tn.Unbatcher([1]), TypeError, "Unbatcher: source must be a node"),
    (lambda: tn.Mapper(numbers(1), 3), TypeError, "map_fn must be a function"),
    (lambda: tn.Filter(numbers(1), 3), TypeError, "Filter: filter_fn must be a function"),
    (lambda: tn.Header(numbers(1), -1), ValueError, "Header: n must be at least 0"),
    (lambda: tn.Cycler(numbers(1), 0), ValueError, "Cycler: max_cycles must be at least 1"),
    (lambda: tn.Prefetcher(numbers(1), 0), ValueError, "Prefetcher: prefetch_factor must be at least 1"),
    (lambda: tn.Prefetcher(numbers(1), 1, -1), ValueError, "snapshot_frequency must be at least 0"),
    (lambda: tn.ParallelMapper(numbers(1), abs, -1), ValueError, "num_workers must be at least 0"),
    (lambda: tn.ParallelMapper(numbers(1), abs, 1, method="fiber"), ValueError, "method must be .* but got 'fiber'"),
    (lambda: tn.ParallelMapper(numbers(1), abs, 1, max_concurrent=2), ValueError, "max_concurrent must be at most"),
    (lambda: tn.ParallelMapper(numbers(1), abs, 1, prebatch=0), ValueError, "prebatch must be at least 1"),
    (lambda: tn.IterableWrapper(3), TypeError, "IterableWrapper: iterable must be iterable"),
    (lambda: tn.SamplerWrapper(3), TypeError, "SamplerWrapper: sampler must be iterable"),
    (lambda: tn.MapStyleWrapper({1}, [1]), TypeError, "map_dataset must be read by index"),
    (lambda: tn.Loader([1]), TypeError, "Loader: root must be a node"),
    (lambda: tn.MultiNodeRoundRobinSampler({}), ValueError, "source_nodes must be a dict of nodes"),
    (lambda: tn.MultiNodeRoundRobinSampler({"a": [1]}), TypeError, r"source_nodes\['a'\] must be a node"),
    (lambda: tn.MultiNodeRoundRobinSampler({"a": numbers(1)}, "SOON"), ValueError, "stop_criteria must be one of"),
    (lambda: tn.MultiNodeWeightedSampler({"a": numbers(1)}, {"b": 1.0}), ValueError, "the names of source_nodes"),
    (lambda: tn.MultiNodeWeightedSampler({"a": numbers(1)}, {"a": 0.0}), ValueError, "positive finite numbers"),
    (lambda: tn.MultiNodeWeightedSampler({"a": numbers(1)}, {"a": [1.0]}), ValueError, "positive finite numbers"),
)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the test needs a machine without a CUDA device")
def test_pinning_without_cuda_raises_an_error_at_once() -> None:
    with pytest.raises(RuntimeError, match="PinMemory needs a CUDA device"):
        tn.PinMemory(numbers(1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the test needs a CUDA device")
def test_tensors_are_pinned_and_the_structure_is_kept() -> None:
    loader = tn.Loader(tn.PinMemory(tn.Mapper(numbers(4), lambda number: {"x": torch.full((2,), number)})))
    iterator = iter(loader)
    assert next(iterator)["x"].is_pinned()
    loader.load_state_dict(loader.state_dict())
    assert [int(item["x"][0]) for item in loader] == [1, 2, 3]
    loader.shutdown()
