"""Pipes that form batches or unpack them: Batcher, UnBatcher, Grouper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, overload

from torchdata._native import BatchIterator
from torchdata.datapipes._pipe.checks import BATCH_SIZE, check_callable, check_int, check_size, check_source, length_of
from torchdata.datapipes._pipe.state.declared import state
from torchdata.datapipes._pipe.unfolding import Unfolding
from torchdata.datapipes.datapipe import DataChunk, IterDataPipe, R, T, T_co

__all__ = ["Batcher", "Grouper", "UnBatcher"]


class Batcher(IterDataPipe[T_co]):
    """Groups consecutive items into batches.

    Args:
        datapipe: the pipe to read.
        batch_size: the number of items per batch (the last batch may have fewer).
        drop_last: whether an incomplete last batch is left out; False by default.
        wrapper_class: a function from a list of items to the batch; `DataChunk`, a list, by default.

    Raises:
        AssertionError: `batch_size` is not positive.
        TypeError: `batch_size` is not an integer or `wrapper_class` cannot be called.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(5)).batch(2))
        [[0, 1], [2, 3], [4]]
    """

    iteration_state = ()

    @overload
    def __init__(
        self: Batcher[DataChunk[T]], datapipe: Iterable[T], batch_size: int, drop_last: bool = False
    ) -> None: ...

    @overload
    def __init__(
        self: Batcher[R],
        datapipe: Iterable[T],
        batch_size: int,
        drop_last: bool = False,
        wrapper_class: Callable[[list[T]], R] = ...,
    ) -> None: ...

    def __init__(
        self,
        datapipe: Iterable[Any],
        batch_size: int,
        drop_last: bool = False,
        wrapper_class: Callable[[list[Any]], Any] = DataChunk,
    ) -> None:
        self.datapipe = check_source("Batcher", datapipe)
        check_callable("Batcher", "wrapper_class", wrapper_class)
        self.batch_size = check_size("Batcher", "batch_size", batch_size, BATCH_SIZE)
        self.drop_last = drop_last
        self.wrapper_class = wrapper_class

    def __iter__(self) -> Iterator[Any]:
        # creating an empty chunk without `__init__` saves a call of a Python function per batch
        new_list = partial(DataChunk.__new__, DataChunk) if self.wrapper_class is DataChunk else list
        batches = BatchIterator(iter(self.datapipe), self.batch_size, bool(self.drop_last), new_list)
        return map(self.wrapper_class, batches) if new_list is list else batches

    def __len__(self) -> int:
        items = length_of(self, self.datapipe)
        return items // self.batch_size if self.drop_last else -(-items // self.batch_size)


class UnBatcher(Unfolding, IterDataPipe[Any]):
    """Yields the members of batches, which are lists.

    Args:
        datapipe: the pipe to read.
        unbatch_level: number of levels of lists to remove, 1 by default; -1 for all levels, 0 for none.

    Raises:
        ValueError: `unbatch_level` is less than -1.
        IndexError: while iterating, an item has fewer levels than `unbatch_level`.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([[[0, 1], [2]], [[3]]]).unbatch(unbatch_level=2))
        [0, 1, 2, 3]
    """

    def __init__(self, datapipe: Iterable[Any], unbatch_level: int = 1) -> None:
        self.datapipe = check_source("UnBatcher", datapipe)
        words = "unbatch_level must be -1 or >= 0"
        self.unbatch_level = check_int("UnBatcher", "unbatch_level", unbatch_level, least=-1, words=words)

    def __iter__(self) -> Iterator[Any]:
        members = self._members if self.unbatch_level == 1 else partial(self._members, level=self.unbatch_level)
        return self._unfold(iter(self.datapipe), members)

    def _members(self, element: Any, level: int = 1) -> Iterable[Any]:
        if level == 1 and isinstance(element, list):
            return element
        if level != 0 and isinstance(element, list):
            return chain.from_iterable(map(partial(self._members, level=max(level - 1, -1)), element))
        if level <= 0:
            return (element,)
        raise IndexError(
            f"UnBatcher: unbatch_level {self.unbatch_level} exceeds the depth of the DataPipe: expected a list, "
            f"but found {element!r} of type {type(element).__name__}"
        )


class Grouper(IterDataPipe[Any]):
    """Collects items with equal keys into groups and yields each group when it is full.

    When all incomplete groups together contain `buffer_size` items, the largest group is yielded if it has at least
    `guaranteed_group_size` items. If the largest group has fewer than `guaranteed_group_size` items, it is dropped or,
    if `drop_remaining` is False, an error is raised. At the end of the source, all remaining groups are yielded,
    regardless of their size.

    Args:
        datapipe: the pipe to read.
        group_key_fn: a function from an item to its (hashable) key.
        keep_key: whether to yield `(key, group)` instead of the group; False by default.
        buffer_size: maximum number of items in incomplete groups, 10,000 by default; None for no limit.
        group_size: number of items after which a group is yielded; None (the default) for no limit.
        guaranteed_group_size: minimum number of items of a group that is yielded because the buffer is full;
            `group_size` by default.
        drop_remaining: whether the largest group is dropped if the buffer is full and the group is smaller than
            `guaranteed_group_size`. If `drop_remaining` is False (the default), an error is raised instead of dropping
            the group.

    Raises:
        TypeError: `group_key_fn` is not a function or a size is not an integer.
        AssertionError: the sizes do not satisfy `0 < guaranteed_group_size <= group_size <= buffer_size`.
        RuntimeError: while iterating, the buffer is full of groups that are too small and `drop_remaining` is False.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(["a1", "b1", "a2"]).groupby(lambda name: name[0]))
        [['a1', 'a2'], ['b1']]
    """

    _groups: dict[Any, list[Any]] = state(dict, items=True)  # the buffered items, by key
    _buffered: int = state(0)

    def __init__(
        self,
        datapipe: Iterable[T_co],
        group_key_fn: Callable[[T_co], Any],
        *,
        keep_key: bool = False,
        buffer_size: int | None = 10000,
        group_size: int | None = None,
        guaranteed_group_size: int | None = None,
        drop_remaining: bool = False,
    ) -> None:
        self.datapipe = check_source("Grouper", datapipe)
        check_callable("Grouper", "group_key_fn", group_key_fn)
        sizes = {"buffer_size": buffer_size, "group_size": group_size, "guaranteed_group_size": guaranteed_group_size}
        for argument, value in sizes.items():
            if value is not None:
                words = "group_size must be > 0 and <= buffer_size" if argument == "group_size" else ""
                check_size("Grouper", argument, value, words)
        if group_size is not None and buffer_size is not None and group_size > buffer_size:
            raise AssertionError(
                f"Grouper: group_size must be > 0 and <= buffer_size, but got group_size={group_size} with "
                f"buffer_size={buffer_size}"
            )
        if guaranteed_group_size is not None and (group_size is None or guaranteed_group_size > group_size):
            raise AssertionError(
                "Grouper: guaranteed_group_size must be > 0 and <= group_size and group_size must be set, but got "
                f"guaranteed_group_size={guaranteed_group_size} with group_size={group_size}"
            )
        self.group_key_fn = group_key_fn
        self.keep_key = keep_key
        self.max_buffer_size = buffer_size
        self.group_size = group_size
        self.guaranteed_group_size = group_size if guaranteed_group_size is None else guaranteed_group_size
        self.drop_remaining = drop_remaining
        self.wrapper_class = DataChunk

    def __iter__(self) -> Iterator[Any]:
        return self._grouped(iter(self.datapipe))

    def _grouped(self, source: Iterator[Any]) -> Iterator[Any]:
        key_of, groups = self.group_key_fn, self._groups
        for item in source:
            key = key_of(item)
            group = groups.setdefault(key, [])
            group.append(item)
            self._buffered += 1
            if len(group) == self.group_size:
                yield self._take(key)
            elif self._buffered == self.max_buffer_size:
                biggest = max(groups, key=lambda candidate: len(groups[candidate]))
                if self._may_yield(len(groups[biggest])):
                    yield self._take(biggest)
                else:
                    self._take(biggest)
        while groups:
            yield self._take(next(iter(groups)))

    def _may_yield(self, size: int) -> bool:
        if self.guaranteed_group_size is None or size >= self.guaranteed_group_size:
            return True
        if self.drop_remaining:
            return False
        raise RuntimeError(
            f"Grouper: Failed to group items: the buffer of {self.max_buffer_size} items is full, and its largest "
            f"group has {size} items of the guaranteed {self.guaranteed_group_size}; enlarge buffer_size, lower "
            "guaranteed_group_size or set drop_remaining=True"
        )

    def _take(self, key: Any) -> Any:
        group = self._groups.pop(key)
        self._buffered -= len(group)
        chunk = self.wrapper_class(group)
        return (key, chunk) if self.keep_key else chunk
