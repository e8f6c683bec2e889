"""Map pipes that join several pipes, or split a pipe into its columns: Concater, Zipper, UnZipper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from torchdata.datapipes._pipe.checks import check_int, check_map_pipe, check_sources, length_of
from torchdata.datapipes._pipe.item_by_item import SameLength
from torchdata.datapipes.datapipe import MapDataPipe, R, T, T_co

__all__ = ["Concater", "UnZipper", "Zipper"]


class Concater(MapDataPipe[T_co]):
    """Joins pipes: the second pipe's indices follow the first pipe's indices, and so on.

    Args:
        *datapipes: the pipes or datasets to join, each with a length and the indices 0, 1, …

    Raises:
        ValueError: no pipe is given.
        TypeError: an argument is neither a map pipe nor a dataset with `__getitem__`.

    Example:
        >>> from torchdata.datapipes.map import SequenceWrapper
        >>> list(SequenceWrapper("ab").concat(SequenceWrapper("cd")))
        ['a', 'b', 'c', 'd']
    """

    def __init__(self, *datapipes: MapDataPipe[T_co]) -> None:
        self.datapipes: tuple[MapDataPipe[T_co], ...] = check_sources("Concater", datapipes, MapDataPipe)

    def __getitem__(self, index: Any) -> T_co:
        position = index if index >= 0 else index + len(self)
        if position >= 0:
            for datapipe in self.datapipes:
                length = len(datapipe)
                if position < length:
                    return datapipe[position]
                position -= length
        raise IndexError(f"Index {index} is out of range.")

    def __len__(self) -> int:
        return sum(length_of(self, datapipe) for datapipe in self.datapipes)


class Zipper(MapDataPipe[T_co]):
    """Combines pipes: the item at an index is a tuple of the items that the pipes have at this index.

    Args:
        *datapipes: the pipes or datasets to combine. The shortest pipe determines the length.

    Raises:
        ValueError: no pipe is given.
        TypeError: an argument is neither a map pipe nor a dataset with `__getitem__`.

    Example:
        >>> from torchdata.datapipes.map import SequenceWrapper
        >>> SequenceWrapper("ab").zip(SequenceWrapper([1, 2]))[1]
        ('b', 2)
    """

    @overload
    def __init__(self: Zipper[tuple[T]], source: MapDataPipe[T], /) -> None: ...

    @overload
    def __init__(self: Zipper[tuple[T, R]], source: MapDataPipe[T], other: MapDataPipe[R], /) -> None: ...

    @overload
    def __init__(self: Zipper[tuple[Any, ...]], *datapipes: Any) -> None: ...

    def __init__(self, *datapipes: MapDataPipe[Any]) -> None:
        self.datapipes = check_sources("Zipper", datapipes, MapDataPipe)

    def __getitem__(self, index: Any) -> Any:
        items = []
        for datapipe in self.datapipes:
            try:
                items.append(datapipe[index])
            except IndexError as error:
                raise IndexError(
                    f"Index {index} is out of range for one of the input MapDataPipes {datapipe}."
                ) from error
        return tuple(items)

    def __len__(self) -> int:
        return min(length_of(self, datapipe) for datapipe in self.datapipes)


class UnZipper(MapDataPipe[Any]):
    """Splits a pipe of sequences: returns a list of pipes, one for each column.

    Args:
        source_datapipe: the pipe of sequences.
        sequence_length: the number of members of each sequence, at least 1.
        columns_to_skip: the numbers of columns to leave out; with None (the default), no column is left out.

    Raises:
        TypeError: `source_datapipe` is not a map pipe, or `sequence_length` is not an integer.
        ValueError: `sequence_length` is less than 1, or a column is out of range.
        RuntimeError: all columns are skipped.

    Example:
        >>> from torchdata.datapipes.map import SequenceWrapper
        >>> letters, numbers = SequenceWrapper([("a", 1), ("b", 2)]).unzip(sequence_length=2)
        >>> numbers[1]
        2
    """

    def __new__(  # type: ignore[misc]  # torchdata 0.9 also returns a list of pipes
        cls,
        source_datapipe: MapDataPipe[Sequence[Any]],
        sequence_length: int,
        columns_to_skip: Sequence[int] | None = None,
    ) -> list[MapDataPipe[Any]]:
        check_map_pipe("UnZipper", source_datapipe, "source_datapipe")
        words = f"Expected `sequence_length` larger than 0, but {sequence_length} is found"
        check_int("UnZipper", "sequence_length", sequence_length, least=1, words=words)
        skipped = set(columns_to_skip or ())
        outside = sorted(column for column in skipped if not 0 <= column < sequence_length)
        if outside:
            raise ValueError(
                f"UnZipper: columns_to_skip must be from 0 to {sequence_length - 1}, but got {outside}; leave them out"
            )
        columns = [column for column in range(sequence_length) if column not in skipped]
        if not columns:
            raise RuntimeError(
                "All instances are being filtered out in UnZipper. Please check the input `sequence_length` and "
                "`columns_to_skip`."
            )
        return [_Column(source_datapipe, column) for column in columns]


class _Column(SameLength, MapDataPipe[T_co]):
    def __init__(self, main_datapipe: MapDataPipe[Sequence[T_co]], instance_id: int) -> None:
        self.main_datapipe = main_datapipe
        self.instance_id = instance_id

    def __getitem__(self, index: Any) -> T_co:
        return self.main_datapipe[index][self.instance_id]
