"""The graph tools find, list, replace, remove and seed the pipes of a graph."""

import random
import threading
from collections import deque, namedtuple
from typing import Any

import numpy as np
import pytest

from torchdata.dataloader2.graph import (
    cutting,
    find_dps,
    list_dps,
    remove_dp,
    replace_dp,
    set_datapipes_seed,
    set_graph_random_seed,
    traverse_dps,
)
from torchdata.dataloader2.graph.settings import (
    SHARDING_PRIORITIES,
    apply_random_seed,
    apply_sharding,
    get_all_graph_pipes,
)
from torchdata.dataloader2.linter import _check_shuffle_before_sharding
from torchdata.dataloader2.random import SeedGenerator
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe, Mapper

Pair = namedtuple("Pair", ["left", "right"])


class Reader(IterDataPipe):
    def __init__(self, held: Any) -> None:
        self.held = held

    def __iter__(self):
        return iter(())


class Seeded(Reader):
    def set_seed(self, seed):
        self.seed = seed
        return self


class NotReplicable(Reader):
    def is_replicable(self):
        return False


class Counter:
    def __init__(self) -> None:
        self.shared = 0
        self.own = 1000

    def generate_shared_seed(self) -> int:
        self.shared += 1
        return self.shared

    def generate_seed(self) -> int:
        self.own += 1
        return self.own


def source() -> IterableWrapper:
    return IterableWrapper(range(6))


CONTAINERS = {
    "attribute": lambda p: p,
    "list": lambda p: [1, p],
    "tuple": lambda p: ("a", p),
    "named tuple": lambda p: Pair(p, 0),
    "set": lambda p: {p, 3},
    "frozen set": lambda p: frozenset([p]),
    "deque": lambda p: deque([p], maxlen=4),
    "dictionary value": lambda p: {"a": 1, "b": p},
    "dictionary key": lambda p: {p: 1},
    "nested": lambda p: [{"x": ({p}, [Pair(0, (p,))])}],
}


@pytest.mark.parametrize("wrap", CONTAINERS.values(), ids=CONTAINERS)
def test_a_pipe_is_found_and_replaced_in_every_kind_of_container(wrap):
    old, new = source(), source()
    reader = Reader(wrap(old))
    graph = traverse_dps(reader)
    assert graph == {id(reader): (reader, {id(old): (old, {})})}
    assert replace_dp(graph, old, new) == {id(reader): (reader, {id(new): (new, {})})}
    assert type(reader.held) is type(wrap(old))


def test_a_replaced_dictionary_keeps_its_order_and_data_stays_as_it_is():
    old, new = source(), source()
    rows = [[[n] for n in range(100)] for _ in range(100)]
    reader = Reader({"rows": rows, old: 2, "pipe": (old,)})
    assert list_dps(replace_dp(traverse_dps(reader), old, new)) == [reader, new]
    assert list(reader.held.items()) == [("rows", rows), (new, 2), ("pipe", (new,))]
    assert reader.held["rows"] is rows


def test_all_readers_of_a_pipe_are_rewired():
    old, new = source(), IterableWrapper("ab")
    left, right = old.map(str), old.enumerate()
    graph = replace_dp(traverse_dps(Reader([left, right, old])), old, new)
    assert not [pipe for pipe in list_dps(graph) if pipe is old]
    assert list(left) == ["a", "b"]
    assert list(right) == [(0, "a"), (1, "b")]


def test_pipes_can_be_inserted_replaced_and_removed_anywhere():
    start = source()
    end = start.batch(3)
    replace_dp(traverse_dps(end), start, start.map(str))
    assert list(end) == [["0", "1", "2"], ["3", "4", "5"]]
    assert remove_dp(traverse_dps(end), end.datapipe) == traverse_dps(end)
    assert list(end) == [[0, 1, 2], [3, 4, 5]]
    last, new = start.map(str), start.map(hex)
    assert replace_dp(traverse_dps(last), last, new) == traverse_dps(new)
    around = last.batch(2)
    assert replace_dp(traverse_dps(last), last, around) == traverse_dps(around)
    assert list(around) == [["0", "1"], ["2", "3"], ["4", "5"]]


def test_changes_of_fixed_pipes_are_refused_by_name():
    start = source()
    end = Reader([start, source()])
    graph = traverse_dps(end)
    last = start.map(str)
    for error, words, function, *arguments in (
        (RuntimeError, "Cannot remove the source DataPipe IterableWrapper", remove_dp, graph, start),
        (RuntimeError, "Cannot remove the receiving DataPipe Reader.* 2 pipes", remove_dp, graph, end),
        (RuntimeError, "receiving DataPipe Mapper.* use IterableWrapper", remove_dp, traverse_dps(last), last),
        (ValueError, "not one of the . pipes of this graph", remove_dp, graph, source().map(str)),
        (ValueError, "not one of the . pipes of this graph", replace_dp, graph, source(), source()),
        (TypeError, r"replaced by a pipe, but got \[1\]", replace_dp, graph, start, [1]),
        (ValueError, "one last pipe, but got 0 entries", replace_dp, {}, start, start),
        (TypeError, "but got 'x'", list_dps, graph, ["x"]),
        (TypeError, "but got 3", traverse_dps, 3),
        *((TypeError, f"but got {g}", f, g) for g in (3, {1: 2}) for f in (list_dps, get_all_graph_pipes)),
        *((TypeError, f"but got {g}", f, g, start) for g in (3, {1: 2}) for f in (find_dps, remove_dp)),
        *((TypeError, f"but got {g}", set_graph_random_seed, g, SeedGenerator(0)) for g in (3, {1: 2})),
    ):
        with pytest.raises(error, match=words):
            function(*arguments)


def test_pipes_that_read_from_each_other_in_a_circle_are_listed_once():
    first = Reader(None)
    second = Reader(first)
    first.held = (second, source())
    start = first.held[1]
    end = Reader([first])
    assert list_dps(traverse_dps(end)) == [end, first, second, start]
    assert traverse_dps(first)[id(first)][1].keys() == {id(second), id(start)}
    new = source()
    replace_dp(traverse_dps(end), second, new)
    assert list_dps(traverse_dps(end)) == [end, first, new, start]


def test_a_long_chain_of_diamonds_is_traversed_in_linear_time():
    pipe = source()
    for _ in range(60):
        pipe = Reader([pipe, Reader(pipe)])
    assert len(list_dps(traverse_dps(pipe))) == 121


def test_list_dps_is_breadth_first_and_leaves_out_a_branch_with_all_it_reads():
    start = source()
    left, right = start.map(str), start.map(hex)
    end = Reader([left, right])
    graph = traverse_dps(end)
    assert list_dps(graph) == [end, left, right, start]
    assert list_dps(graph, exclude_dps=left) == [end, right]
    assert list_dps(graph, exclude_dps=[left, right]) == [end]


def test_find_dps_takes_the_exact_type_only():
    class Special(Mapper):
        pass

    plain = source().map(str)
    end = Special(plain, str)
    graph = traverse_dps(Reader([end, plain]))
    assert find_dps(graph, Mapper) == [plain]
    assert find_dps(graph, Special) == [end]


class Unpicklable:
    def __reduce_ex__(self, protocol):
        raise AssertionError("the graph tools serialised an attribute")


def test_traversal_neither_serializes_nor_copies_data():
    with open("/dev/null") as file:
        end = Reader(source())
        end.more = [threading.Lock(), file, Unpicklable()]
        assert len(list_dps(traverse_dps(end))) == 2


def test_pipes_before_a_sharding_filter_get_shared_seeds_and_others_their_own():
    before = Seeded(source())
    middle = Seeded(before.sharding_filter())
    sibling = Seeded(source())
    end = Seeded([middle, sibling])
    assert set_graph_random_seed(end, Counter()) is end
    assert [before.seed, end.seed, middle.seed, sibling.seed] == [1, 1001, 1002, 1003]


def test_a_pipe_that_two_sharding_filters_read_is_seeded_once_and_pipes_without_a_seed_are_passed_over():
    before = Seeded(source())
    end = Reader([before.sharding_filter(), before.sharding_filter()])
    counter = Counter()
    set_graph_random_seed(end, counter)
    assert (before.seed, counter.shared, counter.own) == (1, 1, 1000)
    first, second = Seeded(None), Seeded(None)
    set_datapipes_seed([first, source(), second], Counter(), distributed_shared=True)
    assert (first.seed, second.seed) == (1, 2)


@pytest.mark.parametrize("make", [lambda: random.Random(3), lambda: np.random.default_rng(3), Counter])
def test_apply_random_seed_draws_from_any_generator(make):
    def seeds():
        inner = Seeded(source())
        outer = Seeded(inner)
        assert apply_random_seed(outer, make()) is outer
        return outer.seed, inner.seed

    assert seeds() == seeds()
    assert len(set(seeds())) == 2
    with pytest.raises(TypeError, match="but got 7"):
        apply_random_seed(Seeded(None), 7)


def test_sharding_is_applied_to_every_branch_once():
    start = source()
    left, right = start.sharding_filter(), IterableWrapper("abcd").sharding_filter()
    apply_sharding(Reader([left, right, left]), 2, 1)
    assert (list(left), list(right)) == ([1, 3, 5], ["b", "d"])


def test_sharding_twice_on_one_branch_is_refused_unless_the_groups_differ():
    with pytest.raises(RuntimeError, match="Sharding twice on a single pipeline"):
        apply_sharding(source().sharding_filter().map(str).sharding_filter(), 2, 0)
    ranks, workers = SHARDING_PRIORITIES.DISTRIBUTED, SHARDING_PRIORITIES.MULTIPROCESSING
    end = source().sharding_filter(ranks).map(str).sharding_filter(workers)
    apply_sharding(end, 2, 1, ranks)
    apply_sharding(end, 3, 1, workers)
    assert list(end) == ["3"]


def test_sharding_reaches_pipes_of_the_two_argument_kind():
    class Old(Reader):
        def apply_sharding(self, num_of_instances, instance_id):
            self.share = num_of_instances, instance_id

    end = Old(source())
    apply_sharding(end, 3, 2, SHARDING_PRIORITIES.MULTIPROCESSING)
    assert end.share == (3, 2)
    with pytest.raises(ValueError, match="instance_id is 3"):
        apply_sharding(end, 3, 3)


def test_the_linter_s_function_of_0_9_finds_sharding_without_a_shuffle_before_it():
    assert _check_shuffle_before_sharding(Reader([source().shuffle(), source().shuffle()]).sharding_filter())
    assert not _check_shuffle_before_sharding(Reader([source().shuffle(), source()]).sharding_filter())


def dispatched(pipe):
    return pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)


def test_the_dispatching_process_runs_up_to_the_lowest_common_ancestor():
    assert cutting.find_lca_round_robin_sharding_dp(traverse_dps(source().map(str))) is None
    cut = dispatched(source())
    assert cutting.find_lca_round_robin_sharding_dp(traverse_dps(cut.map(str))) is cut
    sibling = cut.zip(source())
    assert cutting.find_lca_round_robin_sharding_dp(traverse_dps(sibling.map(str))) is cut
    both = dispatched(source()).zip(dispatched(source()))
    assert cutting.find_lca_round_robin_sharding_dp(traverse_dps(both.map(str))) is both
    start = source()
    sharing = Reader([dispatched(start.map(str)), start.map(hex)])
    assert cutting.find_lca_round_robin_sharding_dp(traverse_dps(Reader(sharing))) is sharing
    circle = Reader(dispatched(source()))
    circle.back = Reader(circle)
    inner = Reader(circle)
    assert cutting.find_lca_round_robin_sharding_dp(traverse_dps(inner)) is circle.held


def test_branches_without_a_dispatched_source_are_found():
    plain = source().map(str)
    assert cutting.find_non_dispatching_branches(traverse_dps(plain)) == [plain]
    for fed in (cutting.DispatchedSource().map(str), cutting._DummyIterDataPipe().map(str)):
        assert cutting.find_non_dispatching_branches(traverse_dps(fed)) == []
        assert cutting.find_non_dispatching_branches(traverse_dps(Reader([fed, plain, plain]))) == [plain]


def test_pipes_that_read_from_a_non_replicable_pipe_stay_in_the_main_process():
    plain = source().map(str)
    assert cutting.find_replicable_branches(traverse_dps(plain)) == [plain]
    single = NotReplicable(plain)
    assert cutting.find_replicable_branches(traverse_dps(single.map(str))) == [plain]
    assert cutting.find_replicable_branches(traverse_dps(NotReplicable(None))) == []
    other = source()
    assert cutting.find_replicable_branches(traverse_dps(Reader([single, other]))) == [plain, other]
    start = source()
    for order in ([start, start.map(str)], [start.map(str), start]):
        assert cutting.find_replicable_branches(traverse_dps(NotReplicable(order))) == [start]


def circle():
    single = source()
    left, right = source().fork(2)
    forked = left.zip(right)
    start = source()
    following = start.map(str)
    start.following = following
    return single, forked, start, following, single.zip(forked, following)


def test_a_replacement_in_a_circle_is_read_by_the_readers_of_the_old_pipe():
    _, _, start, following, end = circle()
    new = dispatched(start)
    replace_dp(traverse_dps(end), start, new)
    assert following.datapipe is new
    assert new.source_datapipe is start
    assert start.following is following


@pytest.mark.parametrize("cut", ["start", "following", "both"])
def test_a_cycle_that_dispatches_is_cut_at_the_pipe_nearest_to_its_end(cut):
    _, _, start, following, end = circle()
    graph, nearest = traverse_dps(end), following
    if cut in ("start", "both"):
        graph = replace_dp(graph, start, dispatched(start))
    if cut in ("following", "both"):
        nearest = dispatched(following)
        graph = replace_dp(graph, following, nearest)
    assert cutting.find_lca_round_robin_sharding_dp(graph) is nearest


@pytest.mark.parametrize(
    ("lonely", "branches"),
    [
        ("single", ["forked", "following"]),
        ("forked", ["single", "fork", "fork", "following"]),
        ("start", ["single", "forked"]),
        ("following", ["single", "forked"]),
        ("end", ["single", "forked", "following"]),
        (None, ["end"]),
    ],
)
def test_branches_of_circles_may_be_replicated_up_to_the_pipes_that_must_exist_once(lonely, branches):
    pipes = dict(zip(("single", "forked", "start", "following", "end"), circle(), strict=True))
    if lonely is not None:
        pipes[lonely].is_replicable = lambda: False
    names = {id(pipe): name for name, pipe in pipes.items()}
    found = cutting.find_replicable_branches(traverse_dps(pipes["end"]))
    assert sorted(names.get(id(pipe), "fork") for pipe in found) == sorted(branches)


def test_a_class_that_is_registered_as_a_pipe_after_it_was_met_is_found():
    class Foreign:
        def __iter__(self):
            return iter(range(3))

    pipe = IterableWrapper(range(3)).map(str)
    pipe.other = Foreign()
    assert len(list_dps(traverse_dps(pipe))) == 2
    IterDataPipe.register(Foreign)
    assert pipe.other in list_dps(traverse_dps(pipe))
