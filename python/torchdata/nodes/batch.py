"""Batcher, Collator, Unbatcher: combine items into batches, and split batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch.utils.data import default_collate

from torchdata._handlers import FailuresSuppressed
from torchdata._stateful import copied
from torchdata.datapipes._pipe.checks import check_callable, check_int
from torchdata.datapipes._pipe.explaining import not_the_end
from torchdata.datapipes.utils.collate import note_remedy
from torchdata.nodes._fields import StateFields, position_of, state_at
from torchdata.nodes.base_node import BaseNode, T, advance_of, check_node, is_repeatable

__all__ = ["Batcher", "Collator", "Unbatcher"]


class Batcher(BaseNode[list[T]]):
    """Groups every `batch_size` items into a list.

    If the source raises an error in the middle of a batch, the items before the error are kept for the next call.

    Args:
        source: the node to read.
        batch_size: the number of items per batch.
        drop_last: whether to drop a shorter last batch; True by default.

    Raises:
        TypeError: `source` is not a node, or `batch_size` is not an integer.
        ValueError: `batch_size` is not positive.

    Example:
        >>> from torchdata.nodes import Batcher, IterableWrapper
        >>> list(Batcher(IterableWrapper(range(5)), 2, drop_last=False))
        [[0, 1], [2, 3], [4]]
    """

    SOURCE_KEY = "source"
    PARTIAL_KEY = "partial"

    _of_a_run: ClassVar[frozenset[str]] = frozenset({"_advance", "_partial"})

    _partial: list[Any] = []  # noqa: RUF012 - never changed in place

    def __init__(self, source: BaseNode[T], batch_size: int, drop_last: bool = True) -> None:
        super().__init__()
        self.source = check_node("Batcher", "source", source)
        self.batch_size = check_int("Batcher", "batch_size", batch_size, least=1)
        self.drop_last = drop_last

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        fields = StateFields("Batcher", initial_state)
        self._advance = fields.reset(self.source, self.SOURCE_KEY)
        self._partial = fields.list_of(self.PARTIAL_KEY)
        super().reset(initial_state)

    def next(self) -> list[T]:
        batch: list[T] = []
        if self._partial:
            batch, self._partial = list(self._partial), []
        advance, append = self._advance, batch.append
        try:
            for _ in range(self.batch_size - len(batch)):
                append(advance())
        except StopIteration:
            if self.drop_last or not batch:
                raise
        except BaseException:
            self._partial = batch
            raise
        return batch

    def get_state(self) -> dict[str, Any]:
        state = {self.SOURCE_KEY: self.source.state_dict()}
        if self._partial:
            state[self.PARTIAL_KEY] = list(self._partial)
        return state

    def __len__(self) -> int:
        """Returns the number of batches per epoch.

        Raises:
            TypeError: the length of the source is unknown.
        """
        items = len(self.source)
        return items // self.batch_size if self.drop_last else -(-items // self.batch_size)


class Collator(Batcher[Any]):
    """Combines every `batch_size` items by a collate function, like a `Batcher` followed by a `Mapper`.

    If Ctrl-C interrupts `collate_fn`, the batch is kept for the next call.

    Args:
        source: the node to read.
        batch_size: the number of items per batch.
        collate_fn: a function of a list of items; None (the default) for `torch.utils.data.default_collate`.
        drop_last: whether to drop a shorter last batch; True by default.

    Raises:
        TypeError: `source` is not a node, `batch_size` is not an integer, or `collate_fn` is not a function.
        ValueError: `batch_size` is not positive.

    Example:
        >>> from torchdata.nodes import Collator, IterableWrapper
        >>> list(Collator(IterableWrapper(range(4)), 2))
        [tensor([0, 1]), tensor([2, 3])]
    """

    def __init__(
        self,
        source: BaseNode[Any],
        batch_size: int,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = True,
    ) -> None:
        super().__init__(source, batch_size, drop_last)
        self.collate_fn: Callable[[list[Any]], Any] = default_collate if collate_fn is None else collate_fn
        check_callable("Collator", "collate_fn", self.collate_fn)

    def next(self) -> Any:
        batch = super().next()
        try:
            return self.collate_fn(batch)
        except StopIteration as error:
            raise not_the_end("collate_fn of Collator", error) from error
        except Exception as error:
            if self.collate_fn is default_collate:
                note_remedy(error, batch)
            raise
        except BaseException:
            self._partial = batch
            raise


class Unbatcher(BaseNode[T]):
    """Yields the members of the source's items, one by one.

    If a state is saved within a batch, it contains the position before this batch, and loading the state rereads the
    batch. If the order of the batches is not fixed, the state contains the unread members of the batch instead of this
    position.

    Args:
        source: the node to read, with items that have a length and support indexing, as lists, tuples, arrays and
            tensors do.

    Raises:
        TypeError: `source` is not a node.

    Example:
        >>> from torchdata.nodes import IterableWrapper, Unbatcher
        >>> list(Unbatcher(IterableWrapper([[1, 2], [], [3]])))
        [1, 2, 3]
    """

    SOURCE_KEY = "source"
    BATCH_IDX_KEY = "batch_idx"
    REST_KEY = "rest"

    _of_a_run: ClassVar[frozenset[str]] = frozenset({"_advance", "_batch", "_before", "_skipped"})

    _batch: Any = ()
    #: The source's state before the current batch; None if states contain the unread members of the batch instead.
    _before: Any = None
    #: The number of yielded members of the current batch, and the length of this batch.
    _index = _length = 0
    #: Whether a new batch is in `_batch`, but `_length` is still the length of the previous batch.
    _is_new = False
    #: The number of members of the next batch to skip, because they were yielded before the loaded state was saved.
    _skipped = 0
    #: Whether the source yields the same batch again after it is reset to the position before the batch.
    _rereads = True

    def __init__(self, source: BaseNode[Sequence[T]]) -> None:
        super().__init__()
        self.source = check_node("Unbatcher", "source", source)

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        if self._skipped and initial_state is None:
            # If a loaded position was not used, the node first moves to this position, because the source's next epoch
            # may depend on the position.
            with FailuresSuppressed():
                self._advance()
        fields = StateFields("Unbatcher", initial_state)
        before = fields[self.SOURCE_KEY]
        self._skipped = fields.integer(self.BATCH_IDX_KEY, least=0)
        self._batch = fields.list_of(self.REST_KEY)
        self._index, self._length, self._is_new = 0, len(self._batch), False
        self._before = None if self._batch else before
        self.source.reset(copied(before))  # `reset` may modify its argument
        self._advance = advance_of(self.source)
        self._rereads = is_repeatable(self.source)
        super().reset(initial_state)

    def next(self) -> T:
        if self._index == self._length:
            self._read_batch()
        item: T = self._batch[self._index]
        self._index += 1
        return item

    def _read_batch(self) -> None:
        while self._index >= self._length:
            if not self._is_new:
                before = self._before
                if not self._skipped:
                    before = position_of(self.source) if self._rereads else None
                try:
                    batch = self._advance()
                except Exception:
                    self._skipped = 0
                    raise
                # Python raises KeyboardInterrupt only at calls and in loops, so it cannot interrupt the following
                # lines.
                self._index = self._length = self._skipped
                self._batch, self._before, self._skipped, self._is_new = batch, before, 0, True
            index, length = self._index, len(self._batch)
            self._length, self._is_new = length, False
            if index > length:
                self._index = length
                raise ValueError(
                    f"Unbatcher: {self.BATCH_IDX_KEY!r} in the state is {index}, but the reread batch has only "
                    f"{length} members; load the state with the data that it was saved with"
                )

    def get_state(self) -> dict[str, Any]:
        if self._is_new:
            self._length, self._is_new = len(self._batch), False
        if self._index < self._length and self._before is None:
            rest = [self._batch[index] for index in range(self._index, self._length)]
            return {self.SOURCE_KEY: self.source.state_dict(), self.BATCH_IDX_KEY: 0, self.REST_KEY: rest}
        is_inside = self._index < self._length
        index = self._skipped or (self._index if is_inside else 0)
        before = state_at(self._before) if index or is_inside else self.source.state_dict()
        return {self.SOURCE_KEY: before, self.BATCH_IDX_KEY: index}
