"""Collating batches, with and without torch."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
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
    assert result["names"] == [["a", "a"], [b"b", b"b"]]
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
def test_what_cannot_be_collated_is_named(batch: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        default_collate(batch)


def test_with_torch_batches_become_the_tensors_that_torch_makes() -> None:
    torch = pytest.importorskip("torch")
    reference = torch.utils.data.default_collate
    for batch in (
        [1, 2], [1.5, 2.5], [True, False], [np.float32(1), np.float32(2)], [np.zeros((2, 3), np.int8)] * 2,
        [torch.ones(2)] * 3, [torch.ones(2, dtype=torch.bfloat16)] * 2, [torch.tensor(1), torch.tensor(2)],
        [torch.ones(2, requires_grad=True)] * 2,
    ):  # fmt: skip
        ours, theirs = default_collate(batch), reference(batch)
        assert (ours.dtype, ours.requires_grad) == (theirs.dtype, theirs.requires_grad)
        assert torch.equal(ours, theirs)
    ours = default_collate([{"a": (1, "x"), "b": Point(1, torch.ones(1))}] * 2)
    assert torch.equal(ours["a"][0], torch.tensor([1, 1]))
    assert ours["a"][1] == ["x", "x"]
    assert torch.equal(ours["b"].y, torch.ones(2, 1))
    with pytest.raises(RuntimeError, match="equal size"):
        default_collate([torch.zeros(2), torch.zeros(3)])
    with pytest.raises(TypeError):
        default_collate([np.array(["a"])])


@pytest.mark.usefixtures("no_torch")
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
