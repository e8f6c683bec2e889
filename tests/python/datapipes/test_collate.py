"""Batches are collated by the package's own rules if torch is missing, and by torch's rules if torch is installed."""

from array import array
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from collections.abc import Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from torchdata.datapipes import DataChunk
from torchdata.datapipes.iter import Collator, IterableWrapper
from torchdata.datapipes.utils.collate import default_collate

Point = namedtuple("Point", ["x", "y"])


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ([1, 2], np.array([1, 2], dtype=np.int64)),
        ([1.5, 2], np.array([1.5, 2.0])),
        ([True, False], np.array([True, False])),
        ([np.float32(1), np.float32(2)], np.array([1, 2], dtype=np.float32)),
        ([np.zeros((2, 3), np.int8)] * 4, np.zeros((4, 2, 3), np.int8)),
        ([np.array(1), np.array(2)], np.array([1, 2])),
        ([np.arange(3, dtype=">i4")] * 2, np.array([[0, 1, 2]] * 2, dtype=np.int32)),
    ],
)
def test_numbers_and_arrays_are_stacked(batch: Any, expected: Any) -> None:
    result = default_collate(batch)
    assert (type(result), result.dtype) == (np.ndarray, expected.dtype)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.usefixtures("no_torch")
def test_structures_are_collated_member_by_member() -> None:
    item = {"point": Point(1, 2.0), "names": ("a", b"b"), "ordered": OrderedDict(z=[1, 2])}
    result = default_collate(DataChunk([item, item]))
    assert type(result["point"]) is Point
    np.testing.assert_array_equal(result["point"].y, [2.0, 2.0])
    assert result["names"] == [("a", "a"), (b"b", b"b")]
    assert type(result["ordered"]) is OrderedDict
    np.testing.assert_array_equal(result["ordered"]["z"], [[1, 1], [2, 2]])


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ([], ValueError, "empty"),
        ([object()], TypeError, "object"),
        ([None, None], TypeError, "NoneType"),
        ([np.zeros(2), np.zeros(3)], ValueError, "equal size"),
        ([(1, 2), (1,)], RuntimeError, "equal size"),
        ([np.array([None])], TypeError, "object"),
        ([2**70], OverflowError, "large"),
    ],
)
def test_an_error_names_what_cannot_be_collated(batch: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        default_collate(batch)


class Items(list[Any]):
    pass


class Pair(tuple[Any, ...]):
    pass


class Table(dict[str, Any]):
    pass


class Name(str):
    pass


class Kind(IntEnum):
    SMALL = 1


VALUES: dict[str, list[Any]] = {
    "numbers": [1, -1, 1.5, True, 1j, Kind.SMALL, 2**70, None],
    "text": ["a", b"a", Name("a"), bytearray(b"a"), memoryview(b"a")],
    "tuples and lists": [
        (1, "a"), [1, b"a"], [(1, "a"), ["b"]], Items([1, "a"]), Pair((1, "a")), Point("a", 2.0), (), [], (1, None),
    ],
    "dicts": [
        {"a": 1, "b": "x"}, Table(a="x"), OrderedDict(a=(1, "x")), defaultdict(int, a="x"), UserDict(a="x"),
        MappingProxyType({"a": "x"}), ChainMap({"a": "x"}, {"b": 1}), Counter("ab"), {},
        {"a": (1, {"b": ["x", 2.5]})},
    ],
    "other collections": [
        UserList([1, "x"]), deque([1, "x"]), range(3), array("i", [1, 2]), {1}, frozenset({"a"}), SimpleNamespace(a=1),
    ],
    "arrays": [
        np.ones(2), np.ones((2, 0)), np.array(1), np.float32(1), np.float64(1), np.int64(1), np.bool_(True),
        np.ones(2, np.uint16), np.ones(2, "c8"), np.str_("a"), np.bytes_(b"a"), np.array(["a"]), np.array([None]),
        np.array("2020-01-01", "M8[s]"), np.zeros(2, "i4,f4"), np.broadcast_to(np.ones(1), (3,)),
        {"a": np.ones(2), "b": ("x", np.float32(2))},
    ],
}  # fmt: skip


def looked_at(value: Any) -> Any:
    if hasattr(value, "requires_grad"):
        return "tensor", value.dtype, value.layout, value.requires_grad, value.detach().to_dense().tolist()
    if isinstance(value, Mapping):
        return type(value), [(key, looked_at(member)) for key, member in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return type(value), [looked_at(member) for member in value]
    return type(value), value


def outcome(collate: Any, batch: Any) -> Any:
    try:
        return looked_at(collate(batch))
    except Exception as error:
        return type(error)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("kind", [*VALUES, "tensors"])
def test_with_torch_each_kind_of_value_is_collated_as_by_torch(kind: str) -> None:
    torch = pytest.importorskip("torch")
    tensors = [
        torch.ones(2), torch.tensor(1), torch.ones(2, dtype=torch.bfloat16), torch.ones(2, requires_grad=True),
        torch.eye(2).to_sparse(), torch.nn.Parameter(torch.ones(2)), ("x", torch.ones(2)),
    ]  # fmt: skip
    values = tensors if kind == "tensors" else VALUES[kind]
    batches = [[value, value] for value in values] + [
        [1, 2.5],
        [1.5, 2],
        [True, 2],
        ["a", 1],
        [1, "a"],
        ("a", "b"),
        (1, 2),
    ]
    batches += [
        [torch.zeros(2), torch.zeros(3)],
        [(1, 2), (1,)],
        [[1], [1, 2]],
        [{"a": 1}, {"b": 1}],
        [{"a": 1}, {"a": 2, "b": 1}],
    ]
    for batch in batches:
        theirs = outcome(torch.utils.data.default_collate, batch)
        assert outcome(default_collate, batch) == theirs, batch


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize("item", [{"a": 1}, {"a", "b"}, 5])
def test_conversions_of_items_that_are_not_batches_are_an_error_with_a_remedy(item: Any) -> None:
    with pytest.raises(TypeError, match=f"need batches, but got {type(item).__name__}; put `.batch"):
        list(IterableWrapper([item]).collate({"a": list}))


def test_conversions_apply_to_columns_and_the_rest_is_collated_by_default() -> None:
    rows = IterableWrapper([{"a": 1, "b": 2}, {"a": 3, "b": 4}]).batch(2)
    (batch,) = rows.collate({"a": sum})
    assert batch["a"] == 4
    np.testing.assert_array_equal(batch["b"], [2, 4])
    (columns,) = IterableWrapper([(1, 2), (3, 4)]).batch(2).collate([max])
    assert columns[0] == 3
    np.testing.assert_array_equal(columns[1], [2, 4])
    with pytest.raises(RuntimeError, match="Conversion keys mismatch"):
        list(rows.collate({"c": sum}))


def test_a_collate_function_takes_precedence() -> None:
    assert list(Collator(IterableWrapper([[1, 2]]), conversion=max, collate_fn=sum)) == [3]
