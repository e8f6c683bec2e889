"""Pipes that process columns, rows, lines and names emit warnings, refuse wrong arguments, and accept unusual items."""

import warnings
from collections import deque, namedtuple
from typing import Any

import pytest

from torchdata.datapipes.iter import IterableWrapper, IterDataPipe, Slicer

Point = namedtuple("Point", ["x", "y"])


def over(*items: Any) -> Any:
    return IterableWrapper(items, deepcopy=False)


def with_warnings(pipe: Any) -> tuple[list[Any], list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        items = list(pipe)
    assert all(warning.category is UserWarning for warning in caught)
    assert all(warning.filename == __file__ for warning in caught), "warnings name the line that iterates"
    return items, [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("pipe", "expected"),
    [
        (over((1, 2, 3)).drop([0, 2]), [(2,)]),
        (over({"a": 1, "b": 2}).drop(["a"]), [{"b": 2}]),
        (over(Point(1, 2)).drop(0), [(2,)]),
        (over((1,), (1, 2), [1, 2, 3]).drop(0), [(), (2,), [2, 3]]),
        (over({(0, 1): 5, 1: 3}).drop((0, 1)), [{1: 3}]),
        (over([0, 1, 2, 3]).slice(-2), [[2, 3]]),
        (over([0, 1, 2, 3]).slice(None, None, 2), [[0, 2]]),
        (over([0, 1, 2, 3]).slice([3, 1, 1]), [[1, 3]]),
        (over((0, 1), (0, 1, 2)).slice([]), [(), ()]),
        (over({"a": 1, "b": 2}).slice("a"), [{"a": 1}]),
        (over((0, (1, 2), [3, (4,)])).flatten(), [(0, 1, 2, 3, (4,))]),
        (over([0, (1, 2), [3]]).flatten([]), [[0, 1, 2, 3]]),
        (over(((0,), (1, 2), [3])).flatten([2, 0]), [(0, (1, 2), 3)]),
        (over(((0,), (1, 2))).flatten(0), [(0, (1, 2))]),
        (over("ab").flatten(), [["a", "b"]]),
        (over({"a": 1, "b": {"c": 2, "d": {"e": 3}}}).flatten(), [{"a": 1, "c": 2, "d": {"e": 3}}]),
        (over({"a": {"x": 1}, "b": {"c": 2}}).flatten("b"), [{"a": {"x": 1}, "c": 2}]),
    ],
)
def test_columns_of_tuples_lists_and_dicts_are_chosen_without_a_warning(pipe: Any, expected: list[Any]) -> None:
    items, messages = with_warnings(pipe)
    assert items == expected
    assert [type(item) for item in items] == [type(item) for item in expected]
    assert messages == []


@pytest.mark.parametrize(
    ("pipe", "expected", "message"),
    [
        (over((1, 2)).drop(5), (1, 2), "not present"),
        (over({"a": 1}).drop(["a", "b"]), {}, "not present"),
        (over("ab").drop(0), "ab", "not a tuple, list or dict"),
        (over([0, 1]).slice([0, 9]), [0], "not present"),
        (over({"a": 1}).slice("c"), {"a": 1}, "no key 'c'"),
        (over({"a": 1}).slice(0, 1), {"a": 1}, "not sliced by position"),
        (over(5).slice(0, 2), 5, "not a tuple, list or dict"),
        (over((0, (1, 2))).flatten(7), (0, (1, 2)), "not present"),
        (over({"x": {"a": 2}}).flatten("z"), {"x": {"a": 2}}, "not present"),
        (over({"a": 1, "b": {"a": 2, "d": 3}}).flatten(), {"a": 1, "d": 3}, "key 'a' already"),
    ],
)
def test_missing_columns_cause_a_warning_and_items_pass_without_them(pipe: Any, expected: Any, message: str) -> None:
    for count in (1, 2):
        items, messages = with_warnings(pipe.cycle(count))
        assert items == [expected] * count
        assert len(messages) == count
        assert message in messages[0]


@pytest.mark.parametrize("form", [lambda pipe: pipe.slice([0], 1), lambda pipe: Slicer(pipe, [0], None, 2)])
def test_stop_and_step_next_to_a_list_of_columns_cause_a_warning_at_the_construction_of_the_pipe(form: Any) -> None:
    with pytest.warns(UserWarning, match="A list of indices was passed as well as a stop or step") as caught:
        pipe = form(over([1, 2]))
    assert [warning.filename for warning in caught] == [__file__]
    assert list(pipe) == [[1]]


@pytest.mark.parametrize(
    ("pipe", "error", "message"),
    [
        (over((1, 2)).drop("a"), TypeError, "Dropper: an item of type tuple has no column 'a'"),
        (over((1, 2)).drop((0, 1)), TypeError, "pass several columns as a list"),
        (over((1, 2)).slice("a"), TypeError, "Slicer: an item of type tuple cannot be sliced from 'a'"),
        (over((1, 2)).slice([None]), TypeError, "Slicer: an item of type tuple has no column None"),
        (over((1, 2)).flatten("a"), TypeError, "Flattener: an item of type tuple has no column 'a'"),
        (over(5).flatten(), TypeError, "not iterable"),
        (over([[1, 2]]).rows2columnar(["a"]), IndexError, "Rows2Columnar: a row has more than the 1 columns"),
        (over([{"a": 1}]).rows2columnar(["b"]), KeyError, "Rows2Columnar: a row has no column 'b'"),
        (over(5).rows2columnar(), TypeError, "not iterable"),
        (over({"a": 1}, 5).add_index(), NotImplementedError, "IndexAdder: We only support .* in dict type, but got 5"),
        (over(5).lines_to_paragraphs(), TypeError, "ParagraphAggregator expects pairs"),
        (over(5).shard_expand(), TypeError, "ShardExpander expects names"),
        (over(5).map_batches(lambda batch: None, 2), TypeError, "BatchMapper: fn must return an iterable"),
    ],
)
def test_items_that_cannot_have_the_columns_are_an_error_and_the_pipe_is_usable_afterwards(
    pipe: Any, error: type[Exception], message: str
) -> None:
    for _ in range(2):
        with pytest.raises(error, match=message) as caught:
            list(pipe)
        assert any(type(pipe).__name__ in note for note in caught.value.__notes__)


def test_dicts_are_numbered_in_place_and_again_in_each_epoch() -> None:
    item = {"index": 7}
    pipe = over({}, item).add_index()
    assert list(pipe) == [{"index": 0}, {"index": 1}]
    assert item == {"index": 1}
    assert list(pipe.header(1)) == [{"index": 0}]


def test_the_joiner_determines_the_text_of_a_paragraph() -> None:
    pipe = IterableWrapper([("a", "1"), ("a", "2"), ("b", "3")]).lines_to_paragraphs(joiner=tuple)
    assert list(pipe) == [("a", ("1", "2")), ("b", ("3",))]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain.tar", ["plain.tar"]),
        ("a{00..02}b", ["a00b", "a01b", "a02b"]),
        ("{007..010}", ["007", "008", "009", "010"]),
        ("{0..10}", [str(number) for number in range(11)]),
        ("{0..1}-{08..09}", ["0-08", "0-09", "1-08", "1-09"]),
        ("{{0..1}{a..b}}", ["{0{a..b}}", "{1{a..b}}"]),
        ("{a..b}{1,2}{-1..3}{0..", ["{a..b}{1,2}{-1..3}{0.."]),
    ],
)
def test_ranges_in_names_are_expanded_and_other_braces_stay(name: str, expected: list[str]) -> None:
    assert list(over(name).shard_expand()) == expected
    iterator = iter(over("{0..999999999999}-{0..999999}.tar").shard_expand())
    assert [next(iterator), next(iterator)] == ["0-0.tar", "0-1.tar"], "names are expanded one by one"


@pytest.mark.parametrize("name", ["{2..2}", "{0..0}", "{3..1}", "{11..8}", "{08..111}", "{011..12}", "a{1..3}{3..1}"])
def test_an_error_names_an_invalid_range(name: str) -> None:
    with pytest.raises(ValueError, match="ShardExpander: in '.*{.*}'"):
        list(over(name).shard_expand())


class Counting(IterDataPipe[Any]):
    begun = 0

    def __iter__(self) -> Any:
        self.begun += 1
        yield from ([1, 2], [3])


def test_the_length_of_shuffled_flatmap_is_found_without_touching_the_iteration() -> None:
    source = Counting()
    pipe = source.shuffled_flatmap()
    iterator = iter(pipe)
    first = next(iterator)
    assert len(pipe) == 3
    assert sorted([first, *iterator]) == [1, 2, 3]
    assert source.begun == 1


def test_shuffled_flatmap_gives_the_order_of_upstream() -> None:
    source = over([1, 2, 3, 4], "abcd", "ABCD")
    orders = {(0, 2): ["a", "b", 1, "c", "d", "A", "B", "C", 2, 3, "D", 4]}
    for (seed, buffer_size), expected in orders.items():
        assert list(source.shuffled_flatmap(buffer_size=buffer_size).set_seed(seed)) == expected


def test_shuffled_flatmap_buffers_no_more_results_than_its_buffer_size() -> None:
    open_now = most = 0

    def counted(item: int) -> Any:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        yield from range(item % 5)
        open_now -= 1

    assert len(list(IterableWrapper(range(200)).shuffled_flatmap(counted, buffer_size=7))) == 400
    assert most <= 7


def test_batches_reach_the_function_as_plain_lists_of_items_or_columns() -> None:
    seen: list[Any] = []

    def function(batch: list[Any]) -> list[Any]:
        seen.append((type(batch), batch))
        return []

    items = IterableWrapper([(1, 2, 3)] * 3)
    assert list(items.map_batches(function, 2)) == []
    assert list(items.map_batches(function, 2, input_col=1)) == []
    assert list(items.map_batches(function, 5, input_col=(0, 2))) == []
    assert seen == [(list, [(1, 2, 3)] * 2), (list, [(1, 2, 3)]), (list, [2, 2]), (list, [2]), (list, [[1, 3]] * 3)]


@pytest.mark.parametrize(
    "names", [("b", "a"), {"b": 0, "a": 0}.keys(), deque(["b", "a"]), frozenset("ab"), {"a": 1, "b": 2}]
)
def test_any_collection_names_columns(names: Any) -> None:
    [columns] = IterableWrapper([[{"a": 1, "b": 2, "c": 3}]]).rows2columnar(names)
    assert columns == {"a": [1], "b": [2]}
    if not isinstance(names, frozenset):
        [columns] = IterableWrapper([[(1, 2)]]).rows2columnar(names)
        assert list(columns) == list(names)
