"""Pipes that split a pipe: Forker, UnZipper, Demultiplexer, RoundRobinDemultiplexer.

The constructors return *children*, which are pipes that read one main pipe (see `children`).
"""

from __future__ import annotations

import copy as copying
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

from torchdata._reporting import warn_outside
from torchdata.datapipes._pipe.checks import check_callable, check_int, check_source, length_of
from torchdata.datapipes._pipe.explaining import no_fault_of_an_item
from torchdata.datapipes._pipe.state.declared import checked_state
from torchdata.datapipes._pipe.streams import close_dropped
from torchdata.datapipes.datapipe import IterDataPipe, T
from torchdata.datapipes.iter.branching.children import DistributingMain, Main, queues

__all__ = ["Demultiplexer", "Forker", "RoundRobinDemultiplexer", "UnZipper"]


_COPIES: dict[str | None, Callable[[Any], Any] | None] = {None: None, "shallow": copying.copy, "deep": copying.deepcopy}


class _ForkMain(Main):
    """The main pipe of `fork` and `unzip`, with a queue per child for items that another child has read."""

    drawn_as = "Forker"
    _waiting: list[deque[Any]] = queues()

    def __init__(self, datapipe: Any, num_instances: int, buffer_size: int, copy: str | None) -> None:
        if copy not in _COPIES:
            raise ValueError(
                f"{self.name}: Unknown copy method `{copy}` requested, choose one of None, `shallow` or `deep`."
            )
        self.copy_fn = _COPIES[copy]
        super().__init__(datapipe, num_instances, buffer_size)

    def _deliver(self, instance: int) -> Callable[[Any], Any] | None:
        """Returns the function that the child `instance` applies to each item; None if the child yields the source's
        own items."""
        return self.copy_fn

    def read(self, instance: int) -> Iterator[Any]:
        own, source, done = self._waiting[instance], self._source(), self._done
        others = [queue for queue in self._waiting if queue is not own]
        deliver, limit = self._deliver(instance), self.buffer_size
        next_own = own.popleft
        try:
            while True:
                while own:
                    item = next_own()
                    yield item if deliver is None else deliver(item)
                for item in source:
                    for queue in others:
                        queue.append(item)
                        if len(queue) > limit >= 0:
                            raise no_fault_of_an_item(self._overflow(instance))
                    yield item if deliver is None else deliver(item)
                    if own:  # meanwhile, a sibling was read and has buffered items of this child
                        break
                else:
                    self._exhausted = True
                    return
        finally:
            done.add(instance)

    def _overflow(self, instance: int) -> BufferError:
        return BufferError(
            f"{self.name}: buffer overflow, buffer size {self.buffer_size} is insufficient: child {instance} is "
            f"{max(map(len, self._waiting))} items ahead of the slowest child; enlarge buffer_size, or read the "
            "children together"
        )


class Forker(IterDataPipe[Any]):
    """Lets several pipes read one pipe: returns a list of child pipes that each yield all items.

    Args:
        datapipe: the pipe to read; it is read only once for all children.
        num_instances: number of children. If `num_instances` is 1, the pipe itself is returned.
        buffer_size: maximum number of items that a child may be ahead of the slowest child, 1,000 by default; -1 for no
            limit.
        copy: whether all children yield the source's own items (None, the default), or "shallow" or "deep" copies of
            them.

    Raises:
        ValueError: `num_instances` is not positive, or `copy` is unknown.
        BufferError: while iterating, a child is more than `buffer_size` items ahead of the slowest child.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> left, right = IterableWrapper(range(3)).fork(2)
        >>> list(left.zip(right))
        [(0, 0), (1, 1), (2, 2)]
    """

    def __new__(  # type: ignore[misc]  # returns the children, as upstream does
        cls,
        datapipe: Iterable[T],
        num_instances: int,
        buffer_size: int = 1000,
        copy: Literal["shallow", "deep"] | None = None,
    ) -> list[IterDataPipe[T]]:
        _check_instances("fork", num_instances)
        if num_instances == 1:
            return datapipe  # type: ignore[return-value]  # the annotation describes the usual case of several children
        return _ForkMain(datapipe, num_instances, buffer_size, copy).children()


class _UnzipMain(_ForkMain):
    name = "unzip"
    drawn_as = "UnZipper"

    def __init__(self, datapipe: Any, instance_ids: list[int], buffer_size: int) -> None:
        self.instance_ids = instance_ids
        super().__init__(datapipe, len(instance_ids), buffer_size, copy=None)

    def _deliver(self, instance: int) -> Callable[[Any], Any]:
        return operator.itemgetter(self.instance_ids[instance])


class UnZipper(IterDataPipe[Any]):
    """Returns one child pipe per column of the items, which are sequences of equal length.

    Args:
        source_datapipe: the pipe to read; it is read only once for all children.
        sequence_length: number of columns, at least 1.
        buffer_size: maximum number of items that a child may be ahead of the slowest child, 1,000 by default; -1 for no
            limit.
        columns_to_skip: numbers of the columns to leave out; None (the default) returns a child for every column.

    Raises:
        TypeError: `sequence_length` is not an integer, or `source_datapipe` is not iterable.
        ValueError: `sequence_length` is negative.
        RuntimeError: all columns are skipped, or `sequence_length` is 0.
        BufferError: while iterating, a child is more than `buffer_size` items ahead of the slowest child.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> numbers, names = IterableWrapper([(1, "a"), (2, "b")]).unzip(sequence_length=2)
        >>> list(names)
        ['a', 'b']
    """

    def __new__(  # type: ignore[misc]  # returns the children, as upstream does
        cls,
        source_datapipe: Any,
        sequence_length: int,
        buffer_size: int = 1000,
        columns_to_skip: Sequence[int] | None = None,
    ) -> list[IterDataPipe[Any]]:
        check_int("unzip", "sequence_length", sequence_length, least=0)
        skipped = set(columns_to_skip or ())
        columns = [column for column in range(sequence_length) if column not in skipped]
        if not columns:
            raise RuntimeError(
                f"unzip: All instances are being filtered out: sequence_length={sequence_length} with "
                f"columns_to_skip={columns_to_skip} leaves no column"
            )
        return _UnzipMain(source_datapipe, columns, buffer_size).children()


class _DemuxMain(DistributingMain):
    name = "demux"
    drawn_as = "Demultiplexer"

    def __init__(
        self, datapipe: Any, num_instances: int, classifier_fn: Callable[[Any], Any], drop_none: bool, buffer_size: int
    ) -> None:
        self.classifier_fn = classifier_fn
        self.drop_none = drop_none
        super().__init__(datapipe, num_instances, buffer_size)

    def _destination(self, item: Any) -> int | None:
        result = self.classifier_fn(item)
        if result is None and self.drop_none:
            close_dropped(item)
            return None
        if result is None or not 0 <= result < self.num_instances:
            raise ValueError(
                f"demux: Output of the classification fn should be between 0 and {self.num_instances - 1}. {result!r} "
                "is returned" + ("; set drop_none=True to drop such items" if result is None else "")
            )
        return operator.index(result)

    def length(self, instance: int) -> int:
        raise TypeError(
            f"The length of demux's child {instance} depends on the classifier. So this instance doesn't have valid "
            "length"
        )


class Demultiplexer(IterDataPipe[Any]):
    """Splits a pipe by a function: returns a list of child pipes, each with the items of one class.

    Args:
        datapipe: the pipe to read; it is read only once for all children.
        num_instances: number of children.
        classifier_fn: a function that returns the number of the child for an item, or None for an item without a child.
        drop_none: whether items without a child are dropped; if False (the default), such an item raises an error.
        buffer_size: maximum total number of items in the buffers of all children, 1,000 by default; -1 for no limit.

    Raises:
        ValueError: `num_instances` is not positive; or, while iterating, a class is out of range.
        TypeError: `classifier_fn` is not a function.
        BufferError: while iterating, the buffers contain more than `buffer_size` items.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> even, odd = IterableWrapper(range(5)).demux(2, lambda n: n % 2)
        >>> list(even), list(odd)
        ([0, 2, 4], [1, 3])
    """

    def __new__(  # type: ignore[misc]  # returns the children, as upstream does
        cls,
        datapipe: Iterable[T],
        num_instances: int,
        classifier_fn: Callable[[T], int | None],
        drop_none: bool = False,
        buffer_size: int = 1000,
    ) -> list[IterDataPipe[T]]:
        _check_instances("demux", num_instances)
        check_callable("demux", "classifier_fn", classifier_fn)
        return _DemuxMain(datapipe, num_instances, classifier_fn, drop_none, buffer_size).children()


class _RoundRobinMain(DistributingMain):
    name = "round_robin_demux"
    drawn_as = "RoundRobinDemultiplexer"
    _turn: int = checked_state(lambda pipe: (range(pipe.num_instances),), 0)

    def _destination(self, item: Any) -> int:
        turn = self._turn
        self._turn = (turn + 1) % self.num_instances
        return turn

    def length(self, instance: int) -> int:
        return (length_of(self, self.main_datapipe) + self.num_instances - 1 - instance) // self.num_instances


class RoundRobinDemultiplexer(IterDataPipe[Any]):
    """Distributes the items to `n` child pipes in turn, and returns a list of these pipes. Child `i` yields the items
    `i`, `i + n`, `i + 2n` and so on.

    Args:
        datapipe: the pipe to read; it is read only once for all children.
        num_instances: number of children. If `num_instances` is 1, the list contains the pipe itself, with a warning.
        buffer_size: maximum total number of items in the buffers of all children, 1,000 by default; -1 for no limit.

    Raises:
        ValueError: `num_instances` is not positive.
        BufferError: while iterating, the buffers contain more than `buffer_size` items.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> first, second = IterableWrapper(range(5)).round_robin_demux(2)
        >>> list(first), list(second)
        ([0, 2, 4], [1, 3])
    """

    def __new__(  # type: ignore[misc]  # returns the children, as upstream does
        cls, datapipe: Iterable[T], num_instances: int, buffer_size: int = 1000
    ) -> list[IterDataPipe[T]]:
        _check_instances("round_robin_demux", num_instances)
        if num_instances == 1:
            warn_outside(
                "round_robin_demux: with num_instances=1 there is nothing to split. The operation of "
                "`round_robin_demux` with `num_instances=1` is an no-op and returns the provided `datapipe` in a list "
                "directly"
            )
            return [check_source("round_robin_demux", datapipe)]  # type: ignore[arg-type]  # wraps plain data
        return _RoundRobinMain(datapipe, num_instances, buffer_size).children()


def _check_instances(name: str, num_instances: int) -> None:
    # The typo of torchdata 0.9 for `round_robin_demux` is kept, because programs may match the message.
    spelled = "num_instaces" if name == "round_robin_demux" else "num_instances"
    words = f"Expected `{spelled}` larger than 0, but {num_instances} is found"
    check_int(name, "num_instances", num_instances, least=1, words=words)
