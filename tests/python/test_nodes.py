"""Nodes: what each yields, what its state holds, and what it says of wrong arguments."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="nodes need PyTorch")

from torchdata.datapipes.iter import IterableWrapper as PipeOf  # noqa: E402
from torchdata.nodes import (  # noqa: E402
    BaseNode,
    Batcher,
    Cycler,
    Filter,
    Header,
    IterableWrapper,
    Loader,
    Mapper,
    MapStyleWrapper,
    MultiNodeRoundRobinSampler,
    MultiNodeWeightedSampler,
    ParallelMapper,
    PinMemory,
    Prefetcher,
    SamplerWrapper,
    Stateful,
    StopCriteria,
    Unbatcher,
)
from torchdata.nodes.loader import LoaderIterator  # noqa: E402
from torchdata.nodes.map import MapOverBatch  # noqa: E402


def numbers(count: int) -> IterableWrapper[int]:
    return IterableWrapper(range(count))


def at_odds(number: int) -> int:
    """A function that fails for 2."""
    if number == 2:
        raise ValueError("two")
    return 10 * number


def outcomes(node: BaseNode[Any]) -> list[Any]:
    """What a node yields, with the texts of errors at their places, at most 50."""
    found: list[Any] = []
    while len(found) < 50:
        try:
            found.append(next(node))
        except StopIteration:
            break
        except Exception as error:
            found.append(str(error))
    return found


class Epochs:
    """A sampler that notes the epochs it is told, and yields them."""

    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter([(self.epoch, number) for number in range(self.size)])


class Places:
    """A Stateful iterable that cannot be read anew where its state was loaded."""

    def __init__(self, size: int) -> None:
        self.size, self.place, self.begun, self.loaded = size, 0, 0, False

    def __iter__(self) -> Iterator[int]:
        if not self.loaded:
            self.place = 0
        self.loaded = False
        return self.rest()

    def rest(self) -> Iterator[int]:
        self.begun += self.place == 0
        while self.place < self.size:
            self.place += 1
            yield self.place

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.place, self.loaded = state_dict["place"], True


# -- the contract of nodes ----------------------------------------------------------------------------


class Bare(BaseNode[int]):
    def __init__(self, calls_init: bool = True, calls_reset: bool = True) -> None:
        if calls_init:
            super().__init__()
        self.calls_reset = calls_reset

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        if self.calls_reset:
            super().reset(initial_state)
        self.place = 0 if initial_state is None else initial_state["place"]

    def next(self) -> int:
        self.place += 1
        return self.place

    def get_state(self) -> dict[str, Any]:
        return {"place": self.place}


def test_a_new_node_is_reset_when_it_is_first_read_or_asked_for_its_state() -> None:
    assert next(Bare()) == 1
    assert Bare().state_dict() == {"place": 0}
    node = Bare()
    node.reset({"place": 5})
    assert next(node) == 6
    assert iter(node) is node


@pytest.mark.parametrize("use", [next, BaseNode.state_dict, lambda node: Batcher(node, 2).reset()])
def test_a_node_that_leaves_out_its_bases_init_or_reset_is_told_so(use: Callable[[Any], Any]) -> None:
    with pytest.raises(NotImplementedError, match=r"Bare was not set up: call super\(\).__init__\(\)"):
        use(Bare(calls_init=False, calls_reset=False))
    with pytest.raises(
        NotImplementedError, match=r"Bare was not reset: call super\(\).reset\(initial_state\)"
    ):
        use(Bare(calls_reset=False))


def test_methods_that_a_subclass_owes_say_so() -> None:
    class Empty(BaseNode[int]):
        pass

    with pytest.raises(NotImplementedError, match=r"Empty must define next\(\)"):
        next(Empty())
    with pytest.raises(NotImplementedError, match=r"Empty must define get_state\(\)"):
        Empty().state_dict()


@pytest.mark.parametrize(
    "make",
    [
        lambda: numbers(3),
        lambda: SamplerWrapper(range(3)),
        lambda: Mapper(numbers(3), str),
        lambda: Batcher(numbers(3), 2),
        lambda: Filter(numbers(3), bool),
        lambda: Cycler(numbers(3)),
        lambda: Header(numbers(3), 2),
        lambda: Prefetcher(numbers(3), 2),
        lambda: ParallelMapper(numbers(3), str, 2),
    ],
)
def test_next_before_reset_is_an_error_that_names_the_node(make: Callable[[], BaseNode[Any]]) -> None:
    node = make()
    with pytest.raises(RuntimeError, match=rf"{type(node).__name__}.next\(\) was called before reset\(\)"):
        node.next()


def test_a_copy_of_a_node_in_the_middle_begins_anew() -> None:
    node = Batcher(Prefetcher(Mapper(numbers(6), str), 2), 2)
    assert next(node) == ["0", "1"]
    for duplicate in (copy.deepcopy(node), pickle.loads(pickle.dumps(node))):
        assert list(duplicate) == [["0", "1"], ["2", "3"], ["4", "5"]]
    assert list(node) == [["2", "3"], ["4", "5"]]


def test_a_node_that_overrides_next_or_dunder_next_of_one_of_ours_is_read_by_it() -> None:
    class Louder(Prefetcher[int]):
        def next(self) -> int:
            return 100 + super().next()

    class Loudest(Louder):
        def __next__(self) -> int:
            return 1000 + super().__next__()

    class Mapping(ParallelMapper[int]):
        def next(self) -> int:
            return -super().next()

    assert list(Batcher(Louder(numbers(2), 2), 2)) == [[100, 101]]
    assert list(Batcher(Loudest(numbers(2), 2), 2)) == [[1100, 1101]]
    assert list(Batcher(Mapping(numbers(3), abs, 0), 3)) == [[0, -1, -2]]


# -- Loader -------------------------------------------------------------------------------------------


def test_each_loop_over_a_loader_is_an_epoch() -> None:
    loader = Loader(SamplerWrapper(Epochs(2)))
    assert [list(loader) for _ in range(3)] == [[(epoch, 0), (epoch, 1)] for epoch in range(3)]


def test_a_state_is_asked_for_before_within_and_after_a_loop() -> None:
    loader = Loader(numbers(4))
    beginning = loader.state_dict()
    assert beginning == loader.state_dict()
    iterator = iter(loader)
    assert next(iterator) == 0
    middle = loader.state_dict()
    assert list(iterator) == [1, 2, 3]
    end = loader.state_dict()
    for state, rest in ((beginning, [0, 1, 2, 3]), (middle, [1, 2, 3]), (end, [0, 1, 2, 3])):
        other = Loader(numbers(4))
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert list(other) == rest
        loader.load_state_dict(state)
        assert list(loader) == rest


def test_the_end_of_an_epoch_is_gone_on_from_with_the_next_one_or_stays_the_end() -> None:
    for restarts, expected in ((True, [(1, 0), (1, 1)]), (False, [])):
        loader = Loader(SamplerWrapper(Epochs(2)), restart_on_stop_iteration=restarts)
        list(loader)
        state = loader.state_dict()
        other = Loader(SamplerWrapper(Epochs(2)), restart_on_stop_iteration=restarts)
        other.load_state_dict(state)
        assert list(other) == expected
        assert list(other) == [(1 + restarts, 0), (1 + restarts, 1)]


def test_a_state_loaded_after_one_was_asked_for_is_not_forgotten() -> None:
    loader = Loader(numbers(4))
    loader.state_dict()
    loader.load_state_dict({"root": {"_num_yielded": 3}, "num_yielded": 3})
    assert list(loader) == [3]


def test_an_item_that_is_none_or_false_is_an_item() -> None:
    loader = Loader(IterableWrapper([None, 0, None]))
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    assert list(loader) == [0, None]


def test_looking_whether_there_is_another_item_takes_none() -> None:
    iterator = LoaderIterator(Loader(IterableWrapper([None, 1])))
    state = iterator.state_dict()
    assert iterator.has_next()
    assert iterator.has_next()
    assert iterator.state_dict() == state
    assert list(iterator) == [None, 1]
    assert not iterator.has_next()


def test_a_loader_is_a_context_that_ends_threads_and_can_be_used_again() -> None:
    with Loader(Prefetcher(numbers(5), 2)) as loader:
        next(iter(loader))
    state = loader.state_dict()
    assert list(loader) == [0, 1, 2, 3, 4]
    loader.load_state_dict(state)
    assert list(loader) == [1, 2, 3, 4]
    loader.shutdown()
    loader.shutdown()


# -- beginnings ---------------------------------------------------------------------------------------


def test_a_stateful_iterable_is_restored_by_its_own_state() -> None:
    assert isinstance(Places(1), Stateful)
    loader = Loader(IterableWrapper(Places(4)))
    iterator = iter(loader)
    assert [next(iterator), next(iterator)] == [1, 2]
    state = loader.state_dict()
    assert state["root"] == {"_num_yielded": 2, "iterable": {"place": 2}}
    places = Places(4)
    other = Loader(IterableWrapper(places))
    other.load_state_dict(state)
    assert list(other) == [3, 4]
    assert places.begun == 0


def test_data_that_has_become_shorter_than_the_state_is_an_error() -> None:
    for node in (numbers(2), SamplerWrapper(range(2))):
        node.reset({"_num_yielded": 3, "_epoch": 0})
        with pytest.raises(ValueError, match="saved after 3 items, but there are only 2"):
            next(node)


def test_a_sampler_is_told_the_epoch_from_the_first_number_by_the_updater() -> None:
    loader = Loader(SamplerWrapper(Epochs(1), initial_epoch=5, epoch_updater=lambda epoch: epoch + 10))
    assert [list(loader) for _ in range(3)] == [[(5, 0)], [(15, 0)], [(25, 0)]]


def test_an_epoch_of_which_nothing_was_asked_for_does_not_count() -> None:
    for node in (SamplerWrapper(Epochs(1)), Prefetcher(SamplerWrapper(Epochs(1)), 2)):
        loader = Loader(node)
        iter(loader), iter(loader)
        assert [list(loader), list(loader)] == [[(0, 0)], [(1, 0)]]
        loader.shutdown()


def test_a_loaded_epoch_that_is_left_at_once_counts_where_it_had_begun() -> None:
    saved = Loader(SamplerWrapper(Epochs(2)))
    next(iter(saved))
    loader = Loader(SamplerWrapper(Epochs(2)))
    loader.load_state_dict(saved.state_dict())
    iter(loader)
    assert list(loader) == list(saved) == [(1, 0), (1, 1)]


def test_a_dataset_is_read_by_the_indices_of_a_sampler() -> None:
    dataset = torch.utils.data.TensorDataset(torch.arange(4))
    node = MapStyleWrapper(dataset, torch.utils.data.SequentialSampler(dataset))
    assert [item for (item,) in node] == [0, 1, 2, 3]
    assert list(MapStyleWrapper({"a": 1, "b": 2}, ["b", "a"])) == [2, 1]


# -- batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "size"), [(0, 2), (1, 2), (4, 2), (5, 2), (5, 5), (5, 1), (3, 9)])
def test_batches_are_the_slices_of_the_source(count: int, size: int) -> None:
    slices = [list(range(count))[start : start + size] for start in range(0, count, size)]
    assert list(Batcher(numbers(count), size, drop_last=False)) == slices
    assert list(Batcher(numbers(count), size)) == [one for one in slices if len(one) == size]
    assert list(Unbatcher(IterableWrapper(slices))) == list(range(count))


def test_an_error_in_the_middle_of_a_batch_loses_nothing_of_it_also_not_in_a_state() -> None:
    node = Batcher(Mapper(numbers(5), at_odds), 4, drop_last=False)
    with pytest.raises(ValueError, match="two"):
        next(node)
    state = pickle.loads(pickle.dumps(node.state_dict()))
    assert list(node) == [[0, 10, 30, 40]]
    node.reset(state)
    assert list(node) == [[0, 10, 30, 40]]
    node.reset(state)
    assert node.state_dict() == state


def test_batches_that_are_tensors_are_taken_apart_and_empty_ones_are_passed_over() -> None:
    rows = Unbatcher(IterableWrapper([torch.arange(2), torch.empty(0), torch.arange(1)]))
    assert [int(row) for row in rows] == [0, 1, 0]


def test_a_state_within_a_batch_reads_it_again_and_one_between_two_does_not() -> None:
    read: list[int] = []

    def noted(batch: list[int]) -> list[int]:
        read.append(batch[0])
        return batch

    node = Unbatcher(Mapper(Batcher(numbers(4), 2), noted))
    states = [(next(node), node.state_dict()) for _ in range(4)]
    for item, state in states:
        read.clear()
        node.reset(state)
        assert list(node) == list(range(item + 1, 4))
        assert read == ([0, 2] if item == 0 else [2] if item < 3 else [])


# -- filters, heads, cycles ---------------------------------------------------------------------------


def test_a_filter_counts_what_it_drops() -> None:
    node = Filter(numbers(7), lambda number: number % 3 == 0)
    assert list(node) == [0, 3, 6]
    assert node.state_dict() == {"source": {"_num_yielded": 7}, "_num_filtered": 4, "_num_yielded": 3}


def test_a_head_leaves_the_rest_unread() -> None:
    def never() -> Iterator[int]:
        yield from (1, 2)
        raise AssertionError("read too far")

    assert list(Header(IterableWrapper(never()), 2)) == [1, 2]
    assert list(Header(numbers(1), 2)) == [0]
    assert list(Header(IterableWrapper(never()), 0)) == []


def test_a_cycle_resets_its_source_so_that_epochs_count() -> None:
    assert list(Cycler(SamplerWrapper(Epochs(1)), max_cycles=3)) == [(0, 0), (1, 0), (2, 0)]
    assert list(Header(Cycler(numbers(2)), 5)) == [0, 1, 0, 1, 0]
    node = Cycler(numbers(1), 1)
    assert list(node) == [0]
    assert list(node) == []


def test_a_cycle_over_nothing_ends() -> None:
    assert list(Cycler(numbers(0))) == []
    assert list(Cycler(Filter(numbers(3), lambda number: False))) == []


# -- functions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("prebatch", [None, 1, 2, 4])
def test_an_error_of_a_function_comes_in_the_place_of_its_result(workers: int, prebatch: int | None) -> None:
    node = ParallelMapper(numbers(5), at_odds, workers, prebatch=prebatch)
    assert outcomes(node) == [0, 10, "two", 30, 40]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("prebatch", [None, 2])
def test_a_function_cannot_end_the_data_by_accident(workers: int, prebatch: int | None) -> None:
    def ends(_number: int) -> None:
        raise StopIteration

    for node in (
        ParallelMapper(numbers(1), ends, workers, prebatch=prebatch),
        Filter(ParallelMapper(numbers(1), abs, workers, prebatch=prebatch), ends),
    ):
        with pytest.raises(RuntimeError, match="raised StopIteration, which would end the epoch"):
            next(node)


def test_a_function_of_lists_calls_one_of_items() -> None:
    assert MapOverBatch(str)([1, 2]) == ["1", "2"]


# -- several sources ----------------------------------------------------------------------------------

CRITERIA = [
    StopCriteria.CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED,
    StopCriteria.ALL_DATASETS_EXHAUSTED,
    StopCriteria.FIRST_DATASET_EXHAUSTED,
    StopCriteria.CYCLE_FOREVER,
]


def modelled(
    sizes: dict[str, int], choices: Iterator[str], criterion: str, most: int
) -> list[tuple[str, int]]:
    """What several sources yield, by the words of the criteria."""
    place, ended, found = dict.fromkeys(sizes, 0), set[str](), []
    while len(found) < most:
        name = next(choices)
        if criterion == StopCriteria.ALL_DATASETS_EXHAUSTED and name in ended:
            continue
        if place[name] == sizes[name]:
            ended.add(name)
            if criterion == StopCriteria.FIRST_DATASET_EXHAUSTED:
                break
            if criterion != StopCriteria.CYCLE_FOREVER and len(ended) == len(sizes):
                break
            if criterion == StopCriteria.ALL_DATASETS_EXHAUSTED:
                continue
            place[name] = 0
        found.append((name, place[name]))
        place[name] += 1
    return found


def sources(sizes: dict[str, int]) -> dict[str, BaseNode[Any]]:
    return {name: IterableWrapper([(name, n) for n in range(size)]) for name, size in sizes.items()}


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("sizes", [{"a": 3}, {"a": 4, "b": 1}, {"a": 2, "b": 5, "c": 3}])
def test_sources_take_turns_until_the_criterion_is_met(criterion: str, sizes: dict[str, int]) -> None:
    def turns() -> Iterator[str]:
        while True:
            yield from sizes

    found = list(Header(MultiNodeRoundRobinSampler(sources(sizes), criterion), 30))
    assert found == modelled(sizes, turns(), criterion, 30)


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("rank", [0, 1])
def test_sources_are_chosen_by_weight_as_torch_draws_them(criterion: str, rank: int) -> None:
    sizes, weights = {"a": 3, "b": 9}, {"a": 0.3, "b": 0.7}

    def drawn(epoch: int) -> Iterator[str]:
        of_rank, generator = torch.Generator().manual_seed(7 * 2 + rank), torch.Generator()
        seeds = torch.randint(0, 2**32 - 1, size=(epoch + 1,), generator=of_rank)
        generator.manual_seed(int(seeds[-1]))
        tensor = torch.tensor([0.3, 0.7], dtype=torch.float64)
        while True:
            for index in torch.multinomial(tensor, 1000, replacement=True, generator=generator).tolist():
                yield "ab"[index]

    sampler = MultiNodeWeightedSampler(sources(sizes), weights, criterion, rank=rank, world_size=2, seed=7)
    loader = Loader(Header(sampler, 1500))
    for epoch in range(3):
        assert list(loader) == modelled(sizes, drawn(epoch), criterion, 1500)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_source_without_items_holds_nobody_up(criterion: str) -> None:
    for sizes in ({"a": 0}, {"a": 0, "b": 2}, {"a": 0, "b": 0}):
        for node in (
            MultiNodeRoundRobinSampler(sources(sizes), criterion),
            MultiNodeWeightedSampler(sources(sizes), dict.fromkeys(sizes, 1.0), criterion, 0, 1),
        ):
            found = list(Header(node, 10))
            if criterion == StopCriteria.ALL_DATASETS_EXHAUSTED:
                assert found == [("b", n) for n in range(sizes.get("b", 0))]
            elif criterion == StopCriteria.CYCLE_FOREVER:
                assert len(found) == (10 if sizes.get("b") else 0)
            else:
                assert {name for name, _ in found} <= {"b"}


def test_items_may_tell_the_source_that_they_are_of() -> None:
    node = MultiNodeRoundRobinSampler(
        {"x": IterableWrapper([1, {"n": 2}])}, StopCriteria.FIRST_DATASET_EXHAUSTED, tag_output=True
    )
    assert list(node) == [{"data": 1, "dataset_key": "x"}, {"n": 2, "dataset_key": "x"}]
    taken = MultiNodeWeightedSampler(
        {"x": IterableWrapper([{"dataset_key": 0}])}, {"x": 1.0}, tag_output=True
    )
    with pytest.raises(ValueError, match="has a key 'dataset_key' already"):
        next(taken)


def test_ranks_choose_apart_and_are_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def order(**options: Any) -> list[Any]:
        sampler = MultiNodeWeightedSampler(
            sources({"a": 40, "b": 40}), {"a": 1.0, "b": 1.0}, "ALL_DATASETS_EXHAUSTED", **options
        )
        return list(sampler)

    first, second = order(rank=0, world_size=2), order(rank=1, world_size=2)
    assert first != second
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert order() == second
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(ValueError, match="Invalid rank 2"):
        order()


# -- states of torchdata 0.11 -------------------------------------------------------------------------


def test_states_have_the_layout_of_torchdata_0_11() -> None:
    pairs = [
        (Batcher(numbers(9), 2), {"source": {"_num_yielded": 4}}, [[4, 5], [6, 7]]),
        (Mapper(numbers(9), abs), {"it_state": {"source": {"_num_yielded": 7}}}, [7, 8]),
        (Prefetcher(numbers(9), 2), {"snapshot": {"_num_yielded": 5}, "steps_since_snapshot": 2}, [7, 8]),
        (
            ParallelMapper(numbers(9), abs, 2),
            {"it_state": {"snapshot": {"_num_yielded": 5}, "steps_since_snapshot": 2}},
            [7, 8],
        ),
        (
            ParallelMapper(numbers(9), abs, 2, prebatch=3),
            {
                "it_state": {
                    "source": {"snapshot": {"source": {"_num_yielded": 3}}, "steps_since_snapshot": 0},
                    "batch_idx": 2,
                }
            },
            [5, 6, 7, 8],
        ),
        (SamplerWrapper(range(9)), {"_num_yielded": 7, "_epoch": 0}, [7, 8]),
        (
            Unbatcher(Batcher(numbers(9), 3)),
            {"source": {"source": {"_num_yielded": 3}}, "batch_idx": 2},
            [5, 6, 7, 8],
        ),
    ]
    for node, state, rest in pairs:
        loader = Loader(node)
        loader.load_state_dict({"root": state, "num_yielded": 1})
        assert list(loader) == rest
        loader.shutdown()


# -- wrong arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Batcher([1], 2), TypeError, r"Batcher: source must be a node.*IterableWrapper"),
        (lambda: Batcher(PipeOf([1]), 2), TypeError, r"Batcher: source must be a node.*from_pipe"),
        (lambda: Batcher(numbers(1), 0), ValueError, "Batcher: batch_size must be at least 1"),
        (lambda: Batcher(numbers(1), 1.5), TypeError, "Batcher: batch_size must be an integer"),
        (lambda: Unbatcher([1]), TypeError, "Unbatcher: source must be a node"),
        (lambda: Mapper(numbers(1), 3), TypeError, "map_fn must be a function"),
        (lambda: Filter(numbers(1), 3), TypeError, "Filter: filter_fn must be a function"),
        (lambda: Header(numbers(1), -1), ValueError, "Header: n must be at least 0"),
        (lambda: Cycler(numbers(1), 0), ValueError, "Cycler: max_cycles must be at least 1"),
        (lambda: Prefetcher(numbers(1), 0), ValueError, "Prefetcher: prefetch_factor must be at least 1"),
        (lambda: Prefetcher(numbers(1), 1, -1), ValueError, "snapshot_frequency must be at least 0"),
        (lambda: ParallelMapper(numbers(1), abs, -1), ValueError, "num_workers must be at least 0"),
        (
            lambda: ParallelMapper(numbers(1), abs, 1, method="fiber"),
            ValueError,
            "method must be .* but got 'fiber'",
        ),
        (
            lambda: ParallelMapper(numbers(1), abs, 1, max_concurrent=2),
            ValueError,
            "max_concurrent must be at most",
        ),
        (lambda: ParallelMapper(numbers(1), abs, 1, prebatch=0), ValueError, "prebatch must be at least 1"),
        (lambda: IterableWrapper(3), TypeError, "IterableWrapper: iterable must be iterable"),
        (lambda: SamplerWrapper(3), TypeError, "SamplerWrapper: sampler must be iterable"),
        (lambda: MapStyleWrapper({1}, [1]), TypeError, "map_dataset must be read by index"),
        (lambda: Loader([1]), TypeError, "Loader: root must be a node"),
        (lambda: MultiNodeRoundRobinSampler({}), ValueError, "source_nodes must be a dict of nodes"),
        (lambda: MultiNodeRoundRobinSampler({"a": [1]}), TypeError, r"source_nodes\['a'\] must be a node"),
        (
            lambda: MultiNodeRoundRobinSampler({"a": numbers(1)}, "SOON"),
            ValueError,
            "stop_criteria must be one of",
        ),
        (
            lambda: MultiNodeWeightedSampler({"a": numbers(1)}, {"b": 1.0}),
            ValueError,
            "the names of source_nodes",
        ),
        (
            lambda: MultiNodeWeightedSampler({"a": numbers(1)}, {"a": 0.0}),
            ValueError,
            "positive finite numbers",
        ),
        (
            lambda: MultiNodeWeightedSampler({"a": numbers(1)}, {"a": [1.0]}),
            ValueError,
            "positive finite numbers",
        ),
    ],
)
def test_a_wrong_argument_is_an_error_that_names_node_and_argument(
    make: Callable[[], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this is about machines without a CUDA device")
def test_pinning_without_cuda_says_so_at_once() -> None:
    with pytest.raises(RuntimeError, match="PinMemory needs a CUDA device"):
        PinMemory(numbers(1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_tensors_are_pinned_and_places_kept() -> None:
    loader = Loader(PinMemory(Mapper(numbers(4), lambda number: {"x": torch.full((2,), number)})))
    iterator = iter(loader)
    assert next(iterator)["x"].is_pinned()
    loader.load_state_dict(loader.state_dict())
    assert [int(item["x"][0]) for item in loader] == [1, 2, 3]
    loader.shutdown()


def test_torchs_sampler_for_ranks_goes_on_in_the_order_of_its_epoch() -> None:
    sampler = torch.utils.data.DistributedSampler(range(10), num_replicas=2, rank=1, seed=3)
    loader = Loader(SamplerWrapper(sampler))
    first, second = list(loader), list(loader)
    assert first != second
    assert {*first} <= {*range(10)}
    resumed = Loader(
        SamplerWrapper(torch.utils.data.DistributedSampler(range(10), num_replicas=2, rank=1, seed=3))
    )
    fresh = Loader(SamplerWrapper(sampler))
    next(iter(fresh))
    resumed.load_state_dict(fresh.state_dict())
    assert [list(resumed), list(resumed)] == [first[1:], second]
