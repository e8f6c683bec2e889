"""The pipe that packs sequences of different lengths into rows of one length: Packer."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate, chain, pairwise
from typing import Any, Literal

from torchdata._native import row_bounds, row_positions
from torchdata._redacting import shown
from torchdata.datapipes._pipe.checks import check_int, check_source
from torchdata.datapipes._pipe.state.declared import checked_state, state
from torchdata.datapipes.datapipe import IterDataPipe

__all__ = ["Packer"]

#: An item or a part of an item: a sequence of tokens, or a dict from column to sequences of equal length.
Piece = Any

_TOKENS = "input_ids"

_ADDED = ("position_ids", "cu_seqlens")

#: The default padding of columns with a known meaning: -100 is a label that loss functions ignore, and 0 excludes a
#: token from the attention.
_PADDING = {"labels": -100, "attention_mask": 0}

_METHODS = ("first_fit", "in_order", "cut")
_LONG = ("split", "truncate", "drop", "error")


class Packer(IterDataPipe[dict[str, Any]]):
    """Packs sequences of tokens into rows of at most `max_tokens`, and marks where each sequence begins.

    An item is a sequence of tokens (a list, tuple or one-dimensional array or tensor), or a mapping from column to
    sequences of equal length, such as the output of a tokenizer. A single sequence becomes the column `"input_ids"`. A
    row is a dict with the columns of the items (or `"input_ids"` for sequences). Each column contains the sequences in
    order, in the type of the items: a list, an array or a tensor. Two columns are added:

    - `position_ids` counts from 0 within each sequence (int64).
    - `cu_seqlens` contains the start of each sequence in the row, and the end of the last sequence (int32), as
      functions for attention over packed sequences require. Rows contain different numbers of sequences, so leave
      `cu_seqlens` out of `add` if you stack rows into batches.

    `position_ids` and `cu_seqlens` treat the padding at the end of a row as one more sequence.

    The argument `method` determines into which row a sequence is placed:

    - `"first_fit"` puts a sequence into the first incomplete row that has room for the sequence, or into a new row. If
      there are more than `buffer_size` incomplete rows, the row with the most tokens is yielded. `"first_fit"` changes
      the order of the sequences, but rows need little padding.
    - `"in_order"` puts a sequence into the current row, or into a new row if the sequence does not fit into the current
      row.
    - `"cut"` puts a sequence into the current row. A sequence that does not fit into the current row is cut at the end
      of the row, and its remaining tokens begin a new row. With `"cut"`, all rows except the last are full.

    A state contains the rows that were not yielded: up to `buffer_size` rows with `"first_fit"`, otherwise one row.

    Args:
        datapipe: the pipe to read. Empty sequences are left out.
        max_tokens: the maximum number of tokens in a row, at least 1.
        method: how rows are filled: `"first_fit"` (the default), `"in_order"` or `"cut"`.
        long: what happens to a sequence of more than `max_tokens` tokens, unless `method` is `"cut"`. `"split"` (the
            default) packs parts of at most `max_tokens` separately, `"truncate"` keeps the first part, `"drop"` leaves
            the sequence out, and `"error"` raises a ValueError.
        buffer_size: maximum number of incomplete rows with `"first_fit"`, at least 1; 16 by default.
        pad_value: the value that fills up rows to `max_tokens`; None (the default) for rows without padding. A number
            fills the column `input_ids` (or the only column of the items), while `labels` are filled with -100, and
            `attention_mask` with 0. To fill more columns, pass a mapping from column to fill value.
        first_value: numbers by column that replace the first token of each sequence, such as `{"labels": -100}`.
            Without `first_value`, a model that shifts labels by one learns to predict the first token of a sequence
            from the end of the sequence before it.
        columns: the columns to pack if the items are mappings; None (the default) for all columns.
        add: which of the columns `"position_ids"` and `"cu_seqlens"` to add; both by default. Columns `"position_ids"`
            and `"cu_seqlens"` that the items already have are left out.
        drop_last: whether `"cut"` leaves out an incomplete last row; False by default.

    Raises:
        TypeError: an argument has the wrong type; or, while iterating, an item is not a sequence, or a column changes
            its type.
        ValueError: `max_tokens` or `buffer_size` is less than 1, or another argument is invalid; or, while iterating,
            columns of an item have different lengths, are missing or lack padding, a sequence has several dimensions,
            or a sequence is too long and `long` is `"error"`.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> for row in IterableWrapper([[1, 1, 1], [2, 2], [3]]).pack(4, pad_value=0):
        ...     print(row)
        {'input_ids': [1, 1, 1, 3], 'position_ids': [0, 1, 2, 0], 'cu_seqlens': [0, 3, 4]}
        {'input_ids': [2, 2, 0, 0], 'position_ids': [0, 1, 0, 1], 'cu_seqlens': [0, 2, 4]}
    """

    #: The incomplete rows, each as the number of tokens that still fit, and the list of its pieces.
    _rows: list[Any] = checked_state(lambda pipe: ([[range(pipe.max_tokens), list]],), list, items=True)
    _waiting: deque[Piece] = state(deque, items=True)

    def __init__(
        self,
        datapipe: Iterable[Any],
        max_tokens: int,
        *,
        method: Literal["first_fit", "in_order", "cut"] = "first_fit",
        long: Literal["split", "truncate", "drop", "error"] = "split",
        buffer_size: int = 16,
        pad_value: float | Mapping[str, float] | None = None,
        first_value: Mapping[str, float] | None = None,
        columns: Collection[str] | None = None,
        add: Collection[str] = _ADDED,
        drop_last: bool = False,
    ) -> None:
        name = "Packer"
        self.datapipe = check_source(name, datapipe)
        self.max_tokens = check_int(name, "max_tokens", max_tokens, least=1)
        self.method = _one_of("method", method, _METHODS)
        self.long = _one_of("long", long, _LONG)
        self.buffer_size = check_int(name, "buffer_size", buffer_size, least=1)
        if not (pad_value is None or isinstance(pad_value, (int, float, Mapping))):
            raise TypeError(f"{name}: pad_value must be a number or a mapping of numbers, but got {pad_value!r}")
        self.pad_value = dict(pad_value) if isinstance(pad_value, Mapping) else pad_value
        if not (first_value is None or isinstance(first_value, Mapping)):
            raise TypeError(f"{name}: first_value must be a mapping from column to a number, but got {first_value!r}")
        self.first_value = dict(first_value or {})
        self.columns = None if columns is None else _names("columns", columns)
        self.add = _names("add", add)
        for added in self.add:
            _one_of("add", added, _ADDED)
        if drop_last and method != "cut":
            raise ValueError(
                f"{name}: drop_last requires method='cut', with which only the last row may be incomplete; with "
                f"{method!r}, any row may be incomplete: filter rows by the length of a column"
            )
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._packed(iter(self.datapipe))

    def _packed(self, source: Iterator[Any]) -> Iterator[dict[str, Any]]:
        rows, waiting, kinds = self._rows, self._waiting, _KINDS
        longest = 0 if self.method == "cut" else self.max_tokens
        while True:
            while waiting:
                piece = waiting.popleft()
                if (full := self._assigned(piece, _size(piece))) is not None:
                    yield self._row(*full)
            for item in source:
                kind = kinds.get(type(item))
                if kind is _Lists or (kind is not None and item.ndim == 1):
                    piece, size = item, len(item)
                else:
                    piece = self._columns_of(item)
                    size = _size(piece)
                if not 0 < size <= longest:
                    waiting.extend(self._pieces(piece, size))
                    break
                for row in rows:  # most pieces fit here, so no function is called
                    if row[0] >= size:
                        row[0] -= size
                        row[1].append(piece)
                        if not row[0]:
                            yield self._row(*self._filled(row))
                        break
                else:
                    if (full := self._begun(piece, size)) is not None:
                        yield self._row(*full)
            else:
                break
        while rows:
            room, pieces = rows.pop(0)
            if not (room and self.drop_last):
                yield self._row(room, pieces)

    def _pieces(self, piece: Piece, size: int) -> Iterator[Piece]:
        """Divides a piece into pieces of at most `max_tokens` tokens. With the method "cut", the size of the first
        piece is chosen so that this piece fills the current row."""
        most = self.max_tokens
        if self.method == "cut":
            first = self._rows[-1][0] if self._rows else most
            return _cut(piece, [0, *range(first, size, most), size]) if size > first else _not_empty(piece, size)
        if size <= most:
            return _not_empty(piece, size)
        if self.long == "error":
            raise ValueError(
                f"Packer: a sequence has {size} tokens, but a row has {most}; make max_tokens larger, or pass "
                'long="split", "truncate" or "drop"'
            )
        if self.long == "drop":
            return iter(())
        return _cut(piece, [0, *range(most, size, most), size] if self.long == "split" else [0, most])

    def _columns_of(self, item: Any) -> Piece:
        if type(item) in _KINDS or not isinstance(item, Mapping):
            _kind_of(_TOKENS, item)
            return item
        names = self.columns if self.columns is not None else [name for name in item if name not in self.add]
        if not names or (missing := [name for name in names if name not in item]):
            wanted = repr(missing[0]) if names else "to pack"
            raise ValueError(f"Packer: an item has no column {wanted}; it has {list(item)}")
        piece = {name: item[name] for name in names}
        for name, values in piece.items():
            _kind_of(name, values)
        if len(set(map(len, piece.values()))) > 1:
            sizes = {name: len(values) for name, values in piece.items()}
            raise ValueError(
                f"Packer: the columns of an item have different lengths: {sizes}; name the columns to pack, as in "
                f"columns={names[:1]}"
            )
        return piece

    def _assigned(self, piece: Piece, size: int) -> tuple[int, list[Piece]] | None:
        """Adds a piece to a row. If a row is full, or there are too many incomplete rows, returns the row to yield
        next; otherwise None."""
        for row in self._rows:
            if row[0] >= size:
                row[0] -= size
                row[1].append(piece)
                return None if row[0] else self._filled(row)
        return self._begun(piece, size)

    def _filled(self, row: list[Any]) -> tuple[int, list[Piece]]:
        rows = self._rows
        del rows[next(number for number, other in enumerate(rows) if other is row)]
        return 0, row[1]

    def _begun(self, piece: Piece, size: int) -> tuple[int, list[Piece]] | None:
        """Begins a new row with a piece. Returns the new row if it is full. If the number of incomplete rows exceeds
        the limit, returns the row with the most tokens. Otherwise, returns None."""
        rows, any_row = self._rows, self.method == "first_fit"
        if size == self.max_tokens and (any_row or not rows):
            return 0, [piece]
        rows.append([self.max_tokens - size, [piece]])
        if len(rows) <= (self.buffer_size if any_row else 1):
            return None
        rooms = [row[0] for row in rows[:-1]]
        fullest = rooms.index(min(rooms))
        room, pieces = rows.pop(fullest)
        return room, pieces

    def _row(self, room: int, pieces: list[Piece]) -> dict[str, Any]:
        classes = set(map(type, pieces))
        kind = _KINDS.get(classes.pop()) if len(classes) == 1 else None
        if kind is not None:  # sequences of one kind, as in most items
            columns = {_TOKENS: (kind, pieces)}
        else:
            columns = {name: (_kind_of_all(name, parts), parts) for name, parts in _by_column(pieces).items()}
            kind, pieces = next(iter(columns.values()))
        sizes = [*map(len, pieces)]
        row: dict[str, Any] = {}
        added = room if self.pad_value is not None else 0
        for name, (its_kind, parts) in columns.items():
            row[name] = its_kind.joined(parts, added, self._padding(name, len(columns)) if added else 0)
            if name in self.first_value:
                its_kind.put(row[name], [*accumulate(sizes[:-1], initial=0)], self.first_value[name])
        if added:
            sizes.append(added)
        for name in self.add:
            row[name] = kind.counted(sizes) if name == "position_ids" else kind.bounds(sizes)
        return row

    def _padding(self, name: str, columns: int) -> Any:
        value = self.pad_value
        if isinstance(value, dict):
            if name in value:
                return value[name]
        elif name == _TOKENS or columns == 1:
            return value
        elif name in _PADDING:
            return _PADDING[name]
        raise ValueError(
            f"Packer: pad_value has no number for the column {name!r}; add one: pad_value={{{name!r}: 0, …}}"
        )

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} instance doesn't have valid length")


class _Lists:
    @staticmethod
    def cut(values: Any, start: int, end: int) -> Any:
        return values[start:end]

    @staticmethod
    def joined(parts: list[Any], added: int, padding: Any) -> Any:
        return [*chain.from_iterable(parts), *([padding] * added)]

    @staticmethod
    def put(values: Any, indices: list[int], value: Any) -> None:
        for index in indices:
            values[index] = value

    @staticmethod
    def counted(sizes: list[int]) -> Any:
        return [*chain.from_iterable(map(range, sizes))]

    @staticmethod
    def bounds(sizes: list[int]) -> Any:
        return [*accumulate(sizes, initial=0)]


class _Arrays(_Lists):
    @staticmethod
    def cut(values: Any, start: int, end: int) -> Any:
        return values[start:end].copy()

    @staticmethod
    def joined(parts: list[Any], added: int, padding: Any) -> Any:
        import numpy as np

        return np.concatenate([*parts, np.full(added, padding, parts[0].dtype)] if added else parts)

    @staticmethod
    def put(values: Any, indices: list[int], value: Any) -> None:
        values[indices] = value

    @staticmethod
    def counted(sizes: list[int]) -> Any:
        return row_positions(sizes)

    @staticmethod
    def bounds(sizes: list[int]) -> Any:
        return row_bounds(sizes)


class _Tensors(_Arrays):
    @staticmethod
    def cut(values: Any, start: int, end: int) -> Any:
        return values[start:end].clone()

    @staticmethod
    def joined(parts: list[Any], added: int, padding: Any) -> Any:
        import torch

        return torch.cat([*parts, parts[0].new_full((added,), padding)] if added else parts)

    @staticmethod
    def counted(sizes: list[int]) -> Any:
        import torch

        return torch.from_numpy(row_positions(sizes))

    @staticmethod
    def bounds(sizes: list[int]) -> Any:
        import torch

        return torch.from_numpy(row_bounds(sizes))


def _kind_of(name: str, values: Any) -> type[_Lists]:
    kind = _KINDS.get(type(values)) or _kind_of_class(type(values))
    if kind is _Lists:
        return _Lists
    if kind is not None:
        if values.ndim != 1:
            raise ValueError(
                f"Packer: the column {name!r} must have one dimension, but has the shape {tuple(values.shape)}"
            )
        return kind
    raise TypeError(
        f"Packer: the column {name!r} must be a list, a tuple, an array or a tensor of tokens, but is {shown(values)} "
        f"of type {type(values).__name__}; name the columns to pack by columns=…, or convert it first"
    )


_KINDS: dict[type, type[_Lists]] = {list: _Lists, tuple: _Lists, range: _Lists}


def _kind_of_class(cls: type) -> type[_Lists] | None:
    if issubclass(cls, (list, tuple, range)):
        return _Lists
    for module, base, kind in (("numpy", "ndarray", _Arrays), ("torch", "Tensor", _Tensors)):
        its_base = getattr(sys.modules.get(module), base, None)
        if its_base is not None and issubclass(cls, its_base):
            if cls is its_base:
                _KINDS[cls] = kind
            return kind
    return None


def _kind_of_all(name: str, parts: list[Any]) -> type[_Lists]:
    kind = _kind_of(name, parts[0])
    if any(_kind_of(name, part) is not kind for part in parts):
        kinds = sorted({type(part).__name__ for part in parts})
        raise TypeError(f"Packer: column {name!r} has several types: {', '.join(kinds)}; convert them to one first")
    return kind


def _by_column(pieces: list[Piece]) -> dict[str, list[Any]]:
    by_name = [piece if type(piece) is dict else {_TOKENS: piece} for piece in pieces]
    columns = by_name[0].keys()
    for piece in by_name:
        if piece.keys() != columns:
            raise ValueError(f"Packer: an item has the columns {list(piece)}, and one before it {list(columns)}")
    return {name: [piece[name] for piece in by_name] for name in columns}


def _size(piece: Piece) -> int:
    return len(next(iter(piece.values()))) if type(piece) is dict else len(piece)


def _cut(piece: Piece, bounds: list[int]) -> Iterator[Piece]:
    for start, end in pairwise(bounds):
        if type(piece) is dict:
            yield {name: _kind_of(name, values).cut(values, start, end) for name, values in piece.items()}
        else:
            yield _kind_of(_TOKENS, piece).cut(piece, start, end)


def _not_empty(piece: Piece, size: int) -> Iterator[Piece]:
    return iter((piece,) if size else ())


def _one_of(argument: str, value: Any, words: tuple[str, ...]) -> Any:
    if value not in words:
        raise ValueError(f"Packer: {argument} must be one of {', '.join(map(repr, words))}, but got {value!r}")
    return value


def _names(argument: str, value: Any) -> list[str]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Collection):
        raise TypeError(f"Packer: {argument} must be a list of names, but got {value!r}")
    return list(value)
