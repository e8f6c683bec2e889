"""Test cases for Packer over lists, arrays and columns."""

import itertools
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pipes_table.row import BadArgument, Row, Source, ints
from torchdata.datapipes.iter import IterableWrapper, Packer

Pieces = list[list[int]]


def repeated(item: int) -> list[int]:
    return [10 * item + index for index in range(item % 7)]


def array(item: int) -> Any:
    return np.array(repeated(item), np.int16)


def columns(item: int) -> dict[str, Any]:
    tokens = repeated(item)
    return {"input_ids": tokens, "labels": [-token for token in tokens], "attention_mask": [1] * len(tokens)}


def as_lists(row: dict[str, Any]) -> dict[str, list[int]]:
    return {name: values.tolist() for name, values in row.items()}


def pieces_of(sequences: Pieces, most: int, long: str) -> Pieces:
    cut = [[sequence[start : start + most] for start in range(0, len(sequence), most)] for sequence in sequences]
    if long == "truncate":
        return [pieces[0] for pieces in cut if pieces]
    return [piece for pieces in cut for piece in pieces if long == "split" or len(pieces) == 1]


def fitted(pieces: Pieces, most: int, rows: int) -> list[Pieces]:
    done: list[Pieces] = []
    waiting: list[Pieces] = []

    def tokens(row: Pieces) -> int:
        return sum(map(len, row))

    for piece in pieces:
        with_room = [row for row in waiting if tokens(row) + len(piece) <= most]
        row = with_room[0] if with_room else []
        if not with_room:
            waiting.append(row)
        row.append(piece)
        if tokens(row) == most:
            waiting.remove(row)
            done.append(row)
        elif len(waiting) > rows:
            done.append(max(waiting[:-1], key=tokens))
            waiting.remove(done[-1])
    return done + waiting


def in_order(pieces: Pieces, most: int) -> list[Pieces]:
    rows: list[Pieces] = []
    for piece in pieces:
        if rows and sum(map(len, rows[-1])) + len(piece) <= most:
            rows[-1].append(piece)
        else:
            rows.append([piece])
    return rows


def cut(sequences: Pieces, most: int) -> list[Pieces]:
    tokens = [(number, token) for number, sequence in enumerate(sequences) for token in sequence]
    rows = [tokens[start : start + most] for start in range(0, len(tokens), most)]
    return [[[t for n, t in row if n == number] for number in dict.fromkeys(n for n, _ in row)] for row in rows]


def packed(
    items: list[int], most: int, method: str, long: str, rows: int, pad: int | None, drop: bool = False
) -> list[dict[str, list[int]]]:
    sequences = list(map(repeated, items))
    if method == "cut":
        made = cut(sequences, most)
    elif method == "in_order":
        made = in_order(pieces_of(sequences, most, long), most)
    else:
        made = fitted(pieces_of(sequences, most, long), most, rows)
    if drop and method == "cut":
        made = [row for row in made if sum(map(len, row)) == most]
    return [_row(row, most, pad) for row in made]


def _row(pieces: Pieces, most: int, pad: int | None) -> dict[str, list[int]]:
    room = most - sum(map(len, pieces))
    if pad is not None and room:
        pieces = [*pieces, [pad] * room]
    bounds = [0]
    for piece in pieces:
        bounds.append(bounds[-1] + len(piece))
    return {
        "input_ids": [token for piece in pieces for token in piece],
        "position_ids": [index for piece in pieces for index in range(len(piece))],
        "cu_seqlens": bounds,
    }


def _columns_packed(items: list[int], most: int, rows: int) -> list[dict[str, list[int]]]:
    made = []
    for row in packed(items, most, "first_fit", "split", rows, 0):
        tokens, bounds = row["input_ids"], row["cu_seqlens"]
        used = sum(len(piece) for piece in fitted_row(tokens, bounds, most))
        labels = [-token for token in tokens[:used]] + [-100] * (most - used)
        for start in bounds[:-1]:
            labels[start] = -100
        made.append(
            {
                "input_ids": tokens,
                "labels": labels,
                "attention_mask": [1] * used + [0] * (most - used),
                "position_ids": row["position_ids"],
            }
        )
    return made


def fitted_row(tokens: list[int], bounds: list[int], most: int) -> Pieces:
    pieces = [tokens[start:end] for start, end in itertools.pairwise(bounds)]
    return [piece for piece in pieces if piece[0] != 0]


small = st.integers(1, 9)
ROWS: list[Row] = [
    Row(
        "pack",
        lambda s, most, method, long, rows, pad, drop: Packer(
            s().map(repeated),
            most,
            method=method,
            long=long,
            buffer_size=rows,
            pad_value=pad,
            drop_last=drop and method == "cut",
        ),
        packed,
        {
            "most": (small, 4),
            "method": (st.sampled_from(["first_fit", "in_order", "cut"]), "first_fit"),
            "long": (st.sampled_from(["split", "truncate", "drop"]), "split"),
            "rows": (st.integers(1, 4), 3),
            "pad": (st.none() | st.just(7), 7),
            "drop": (st.booleans(), False),
        },
        length="valid length",
    ),
    Row(
        "pack_cut",
        lambda s, most: s().map(repeated).pack(most, method="cut"),
        lambda xs, most: packed(xs, most, "cut", "", 1, None),
        {"most": (small, 3)},
        length="valid length",
    ),
    Row(
        "pack_in_order",
        lambda s, most: s().map(array).pack(most, method="in_order", pad_value=3).map(as_lists),
        lambda xs, most: packed(xs, most, "in_order", "split", 1, 3),
        {"most": (small, 5)},
        length="valid length",
    ),
    Row(
        "pack_arrays",
        lambda s, most: s().map(array).pack(most, buffer_size=2).map(as_lists),
        lambda xs, most: packed(xs, most, "first_fit", "split", 2, None),
        {"most": (small, 4)},
        length="valid length",
    ),
    Row(
        "pack_columns",
        lambda s, most: (
            s()
            .filter(bool)
            .map(columns)
            .pack(most, buffer_size=3, pad_value=0, first_value={"labels": -100}, add=["position_ids"])
        ),
        lambda xs, most: _columns_packed([x for x in xs if x], most, 3),
        {"most": (small, 4)},
        length="valid length",
    ),
]


def _row_of(source: Source | Any, **options: Any) -> Any:
    return list(IterableWrapper([source], deepcopy=False).pack(4, **options))


BAD_ARGUMENTS: list[BadArgument] = [
    (lambda: Packer(5, 4), TypeError, "Packer: datapipe must be iterable"),
    (lambda: ints().pack(0), ValueError, "max_tokens must be at least 1"),
    (lambda: ints().pack(4, method="best"), ValueError, "method must be one of 'first_fit'"),
    (lambda: ints().pack(4, long="keep"), ValueError, "long must be one of 'split'"),
    (lambda: ints().pack(4, buffer_size=0), ValueError, "buffer_size must be at least 1"),
    (lambda: ints().pack(4, pad_value="x"), TypeError, "pad_value must be a number"),
    (lambda: ints().pack(4, first_value=3), TypeError, "first_value must be a mapping"),
    (lambda: ints().pack(4, columns="input_ids"), TypeError, "columns must be a list of names"),
    (lambda: ints().pack(4, add=["lengths"]), ValueError, "add must be one of 'position_ids'"),
    (lambda: ints().pack(4, drop_last=True), ValueError, "drop_last requires method='cut'"),
    (lambda: _row_of(5), TypeError, "'input_ids' must be a list"),
    (lambda: _row_of("text"), TypeError, "'input_ids' must be a list"),
    (lambda: _row_of(np.zeros((2, 2))), ValueError, "must have one dimension, but has the shape"),
    (lambda: _row_of([1] * 5, long="error"), ValueError, "has 5 tokens, but a row has 4"),
    (lambda: _row_of({"a": [1], "b": [1, 2]}), ValueError, "have different lengths"),
    (lambda: _row_of({"a": [1]}, columns=["b"]), ValueError, "has no column 'b'"),
    (lambda: _row_of({}), ValueError, "has no column to pack"),
    (lambda: _row_of({"input_ids": [1], "text": "a"}), TypeError, "name the columns to pack"),
    (lambda: _row_of({"a": [1], "b": [1]}, pad_value=0), ValueError, "pad_value has no number for"),
]
