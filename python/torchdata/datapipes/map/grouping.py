"""The map-style pipe that creates batches: Batcher."""

from __future__ import annotations

from typing import Any

from torchdata.datapipes._pipe.checks import BATCH_SIZE, check_callable, check_map_pipe, check_size, length_of
from torchdata.datapipes.datapipe import DataChunk, MapDataPipe, T

__all__ = ["Batcher"]


class Batcher(MapDataPipe[DataChunk[T]]):
    """Groups items with consecutive indices: batch `i` contains the items from `i * batch_size` on.

    Args:
        datapipe: the pipe to read, with the indices 0, 1, …
        batch_size: the number of items per batch.
        drop_last: whether an incomplete last batch is left out; False by default.
        wrapper_class: a function from a list of items to the batch; `DataChunk`, a list, by default.

    Raises:
        AssertionError: `batch_size` is not positive.

    Example:
        >>> from torchdata.datapipes.map import SequenceWrapper
        >>> list(SequenceWrapper(range(5)).batch(2))
        [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        datapipe: MapDataPipe[T],
        batch_size: int,
        drop_last: bool = False,
        wrapper_class: type[DataChunk[Any]] = DataChunk,
    ) -> None:
        check_map_pipe("Batcher", datapipe)
        check_callable("Batcher", "wrapper_class", wrapper_class)
        self.datapipe = datapipe
        self.batch_size = check_size("Batcher", "batch_size", batch_size, BATCH_SIZE)
        self.drop_last = drop_last
        self.wrapper_class = wrapper_class

    def __getitem__(self, index: Any) -> DataChunk[T]:
        if index < 0:
            index += len(self)
        batch: list[T] = []
        try:
            for position in range(index * self.batch_size, (index + 1) * self.batch_size) if index >= 0 else ():
                batch.append(self.datapipe[position])
        except IndexError:
            if len(batch) < self._items_from(index * self.batch_size):
                raise  # code inside the pipe raised the error, so the item exists
        if not batch or (self.drop_last and len(batch) < self.batch_size):
            raise IndexError(f"Index {index} is out of bound.")
        return self.wrapper_class(batch)

    def _items_from(self, start: int) -> int:
        try:
            return len(self.datapipe) - start
        except (TypeError, NotImplementedError):
            return 0

    def __len__(self) -> int:
        items = length_of(self, self.datapipe)
        return items // self.batch_size if self.drop_last else -(-items // self.batch_size)
