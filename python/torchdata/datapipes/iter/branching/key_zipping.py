"""Pipes that join items by key: IterKeyZipper, MapKeyZipper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torchdata._reporting import warn_outside
from torchdata.datapipes._pipe.checks import check_callable, check_optional_int, check_pipe, check_source, on_failure
from torchdata.datapipes._pipe.item_by_item import ItemByItem, SameLength
from torchdata.datapipes._pipe.state.declared import state
from torchdata.datapipes._pipe.streams import close_dropped, with_detached_streams
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe

__all__ = ["IterKeyZipper", "MapKeyZipper"]

_NOTHING: Any = object()

_BUFFER_SIZE = "'buffer_size' is required to be either None or a positive integer."


class IterKeyZipper(SameLength, IterDataPipe[Any]):
    """Joins each item of a pipe with the item of a second pipe that has the same key.

    The results are in the order of `source_datapipe`. Items of `ref_datapipe` that do not match the current item are
    kept in a buffer for later items. If an item is never joined, the streams in the item are closed.

    Args:
        source_datapipe: the pipe to read.
        ref_datapipe: the pipe to search for an item with the key; it is read only until the item is found.
        key_fn: a function from an item of `source_datapipe` to its (hashable) key.
        ref_key_fn: a function from an item of `ref_datapipe` to its key; `key_fn` by default.
        keep_key: whether to yield `(key, result)` instead of the result; False by default.
        buffer_size: maximum number of buffered items of `ref_datapipe`, 10,000 by default. If the buffer is full, its
            oldest item is dropped, with a warning. None for no limit.
        merge_fn: a function from the two joined items to the result; by default, the result is a tuple of both items.

    Raises:
        TypeError: `ref_datapipe` is not an IterDataPipe, a function cannot be called, or `buffer_size` is not an
            integer.
        ValueError: `buffer_size` is not positive; or, while iterating, two buffered items of `ref_datapipe` have the
            same key.
        BufferError: while iterating, no item of `ref_datapipe` has the key, or the item with the key was dropped from
            the full buffer.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> numbers = IterableWrapper([("b", 2), ("a", 1)])
        >>> list(IterableWrapper(["a1", "b1"]).zip_with_iter(numbers, lambda name: name[0], lambda pair: pair[0]))
        [('a1', ('a', 1)), ('b1', ('b', 2))]
    """

    _waiting: dict[Any, Any] = state(dict, items=True)  # by key, oldest first
    _dropped: int = state(0)  # the number of items that were dropped because the buffer was full

    def __init__(
        self,
        source_datapipe: Iterable[Any],
        ref_datapipe: IterDataPipe[Any],
        key_fn: Callable[[Any], Any],
        ref_key_fn: Callable[[Any], Any] | None = None,
        keep_key: bool = False,
        buffer_size: int | None = 10000,
        merge_fn: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        name = "IterKeyZipper"
        self.source_datapipe = check_source(name, source_datapipe, "source_datapipe")
        check_callable(name, "key_fn", key_fn)
        for argument, function in (("ref_key_fn", ref_key_fn), ("merge_fn", merge_fn)):
            check_callable(name, argument, function, optional=True)
        self.ref_datapipe = check_pipe(name, "ref_datapipe", ref_datapipe, IterDataPipe)
        self.key_fn = key_fn
        self.ref_key_fn = key_fn if ref_key_fn is None else ref_key_fn
        self.keep_key = keep_key
        self.buffer_size = check_optional_int(name, "buffer_size", buffer_size, least=1, words=_BUFFER_SIZE)
        self.merge_fn = merge_fn

    def __iter__(self) -> Iterator[Any]:
        reference = iter(self.ref_datapipe)
        return self._joined(iter(self.source_datapipe), reference)

    def _joined(self, source: Iterator[Any], reference: Iterator[Any]) -> Iterator[Any]:
        key_of, merge, waiting = self.key_fn, self.merge_fn, self._waiting
        # If the iteration fails or is abandoned, a state may still need the buffered items, so only their files are
        # closed.
        with on_failure(lambda: waiting.update({key: with_detached_streams(match) for key, match in waiting.items()})):
            for item in source:
                key = key_of(item)
                if key not in waiting:
                    self._read_until(key, reference)
                match = waiting.pop(key)
                result = (item, match) if merge is None else merge(item, match)
                yield (key, result) if self.keep_key else result
        while waiting:
            close_dropped(waiting.popitem()[1])

    def _read_until(self, key: Any, reference: Iterator[Any]) -> None:
        key_of, waiting, limit = self.ref_key_fn, self._waiting, self.buffer_size
        while True:
            item = next(reference, _NOTHING)
            if item is _NOTHING:
                raise self._no_match(key)
            found = key_of(item)
            if found in waiting:
                close_dropped(item)
                raise ValueError(
                    f"IterKeyZipper: Duplicate key is found in ref_datapipe: {found!r} is the key of an item that "
                    "still waits for its match; keys of ref_datapipe must differ"
                )
            if limit is not None and len(waiting) > limit:
                self._drop_oldest()
            waiting[found] = item
            if found == key:
                return

    def _drop_oldest(self) -> None:
        if not self._dropped:
            warn_outside(
                f"IterKeyZipper: Buffer reaches the upper limit of {self.buffer_size} items, so items of ref_datapipe "
                "that wait longest for their match are dropped from now on; enlarge buffer_size, or bring the two "
                "pipes into similar orders."
            )
        self._dropped += 1
        close_dropped(self._waiting.pop(next(iter(self._waiting))))

    def _no_match(self, key: Any) -> BufferError:
        dropped = (
            f"; {self._dropped} items were dropped because the buffer of {self.buffer_size} items was full, so "
            "enlarge buffer_size"
            if self._dropped
            else "; every key of source_datapipe must be there, once for each item that has it"
        )
        return BufferError(
            f"IterKeyZipper: No matching key can be found from reference DataPipe for the data {key!r}{dropped}"
        )


class MapKeyZipper(ItemByItem[Any]):
    """Joins each item with the value that a map pipe contains for the item's key.

    Args:
        source_iterdatapipe: the pipe to read.
        map_datapipe: the map pipe that contains the values.
        key_fn: a function from an item to its key in `map_datapipe`.
        merge_fn: a function from the two joined items to the result; by default, the result is a tuple of both items.
        keep_key: whether to yield `(key, result)` instead of the result; False by default.

    Raises:
        TypeError: `map_datapipe` is not a MapDataPipe, or a function cannot be called.
        KeyError: while iterating, the map pipe does not contain the key.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> from torchdata.datapipes.map import SequenceWrapper
        >>> prices = SequenceWrapper({"tea": 2, "pie": 5})
        >>> list(IterableWrapper(["pie", "tea"]).zip_with_map(prices, key_fn=str))
        [('pie', 5), ('tea', 2)]
    """

    def __init__(
        self,
        source_iterdatapipe: Iterable[Any],
        map_datapipe: MapDataPipe[Any],
        key_fn: Callable[[Any], Any],
        merge_fn: Callable[[Any, Any], Any] | None = None,
        keep_key: bool = False,
    ) -> None:
        name = "MapKeyZipper"
        self.source_iterdatapipe = check_source(name, source_iterdatapipe, "source_iterdatapipe")
        check_callable(name, "key_fn", key_fn)
        check_callable(name, "merge_fn", merge_fn, optional=True)
        self.map_datapipe = check_pipe(name, "map_datapipe", map_datapipe, MapDataPipe)
        self.key_fn = key_fn
        self.merge_fn = merge_fn
        self.keep_key = keep_key

    def _result(self, item: Any) -> Any:
        key = self.key_fn(item)
        try:
            match = self.map_datapipe[key]
        except (KeyError, IndexError) as error:
            raise KeyError(
                f"MapKeyZipper: key_fn maps {item!r} to {key!r}, which is not a valid key in the given MapDataPipe "
                f"{self.map_datapipe!r}"
            ) from error
        result = (item, match) if self.merge_fn is None else self.merge_fn(item, match)
        return (key, result) if self.keep_key else result
