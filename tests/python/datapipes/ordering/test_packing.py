"""Pipes that pack sequences into rows fill the rows, and keep the sequences whole."""

import random
from collections import UserDict
from typing import Any

import numpy as np
import pytest

from stream_checks import check_restore
from torchdata._native import row_bounds
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.state import save_state

METHODS = ["first_fit", "in_order", "cut"]


def sequences(number: int, longest: int = 90, seed: int = 1) -> list[list[int]]:
    rng = random.Random(seed)
    tokens = iter(range(number * longest))
    return [[next(tokens) for _ in range(rng.randint(0, longest))] for _ in range(number)]


def test_rows_are_of_the_kind_of_the_items() -> None:
    (row,) = IterableWrapper([np.arange(3, dtype=np.uint16)], deepcopy=False).pack(4, pad_value=9)
    assert [(values.dtype, values.tolist()) for values in row.values()] == [
        (np.uint16, [0, 1, 2, 9]),
        (np.int64, [0, 1, 2, 0]),
        (np.int32, [0, 3, 4]),
    ]
    (row,) = IterableWrapper([(1, 2), [3]]).pack(4)
    assert row == {"input_ids": [1, 2, 3], "position_ids": [0, 1, 0], "cu_seqlens": [0, 2, 3]}
    item = UserDict({"input_ids": [5, 6], "labels": [1, 1], "position_ids": [0, 1], "text": "five six"})
    (row,) = IterableWrapper([item]).pack(2, columns=["input_ids", "labels"])
    assert row == {"input_ids": [5, 6], "labels": [1, 1], "position_ids": [0, 1], "cu_seqlens": [0, 2]}


def test_a_row_of_2_to_the_31_tokens_has_no_bounds() -> None:
    for sizes in ([1 << 30, 1 << 30], [(1 << 32) - 1]):
        with pytest.raises(OverflowError, match="int32 bounds"):
            row_bounds(sizes)


def test_tensors_are_packed_into_tensors() -> None:
    torch = pytest.importorskip("torch")
    items = [torch.arange(6), torch.arange(3)]
    for method in METHODS:
        rows = list(IterableWrapper(items).pack(4, method=method, pad_value=9, first_value={"input_ids": -1}))
        arrays = list(
            IterableWrapper([item.numpy() for item in items]).pack(
                4, method=method, pad_value=9, first_value={"input_ids": -1}
            )
        )
        dtypes = {name: values.dtype for name, values in rows[0].items()}
        assert dtypes == {"input_ids": torch.int64, "position_ids": torch.int64, "cu_seqlens": torch.int32}
        assert [{name: values.tolist() for name, values in row.items()} for row in rows] == [
            {name: values.tolist() for name, values in row.items()} for row in arrays
        ]


def test_the_rows_are_those_of_transformers_collator_for_sequences_without_padding() -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    items = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}, {"input_ids": [4, 5], "labels": [4, 5]}]
    collator = transformers.DataCollatorWithFlattening(return_tensors="np", return_flash_attn_kwargs=True)
    theirs = collator(items)
    (ours,) = IterableWrapper(items).pack(5, first_value={"labels": -100})
    for name, theirs_name in (
        ("input_ids", "input_ids"),
        ("labels", "labels"),
        ("position_ids", "position_ids"),
        ("cu_seqlens", "cu_seq_lens_q"),
    ):
        assert ours[name] == np.asarray(theirs[theirs_name]).reshape(-1).tolist()


@pytest.mark.parametrize(
    ("items", "error", "message"),
    [
        ([[1], np.array([2])], TypeError, "column 'input_ids' has several types: list, ndarray"),
        ([{"a": [1]}, {"b": [2]}], ValueError, r"has the columns \['b'\], and one before it \['a'\]"),
    ],
)
def test_items_of_several_kinds_are_an_error(items: list[Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        list(IterableWrapper(items).pack(4))


@pytest.mark.parametrize("method", METHODS)
def test_a_state_is_exact_at_every_row_and_contains_only_the_open_rows(method: Any) -> None:
    def pipe() -> Any:
        return IterableWrapper([np.array(one) for one in sequences(16)]).pack(32, method=method, buffer_size=4)

    check_restore(pipe, keep=lambda row: {name: values.tolist() for name, values in row.items()})
    packer = pipe()
    for row in packer:
        assert len(row["input_ids"]) <= 32
        held = sum(sum(map(len, pieces)) for _, pieces in packer._rows)
        assert held <= 32 * 4
        assert len(str(save_state(packer))) < 30_000


def test_a_small_piece_of_a_long_array_does_not_keep_it() -> None:
    packer = IterableWrapper([np.arange(1_000_003)], deepcopy=False).pack(1000, method="cut")
    rows = list(packer)
    assert len(rows) == 1001
    iterator = iter(packer)
    for _ in range(1000):
        next(iterator)
    (row,) = [piece for _, pieces in packer._rows for piece in pieces] or packer._waiting
    assert row.base is None
    assert len(row) == 3


def test_first_fit_pads_less_than_packing_in_order() -> None:
    data = [one for one in sequences(400, 100) if one]

    def padding(**options: Any) -> float:
        rows = list(IterableWrapper(data).pack(128, **options))
        return 1 - sum(len(row["input_ids"]) for row in rows) / (128 * len(rows))

    assert padding(buffer_size=32) < padding(buffer_size=4) < padding(method="in_order")
    assert padding(method="cut") < 1 / 100
