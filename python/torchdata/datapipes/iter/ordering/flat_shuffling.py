"""The pipe that applies a function to items and mixes the members of the results: ShuffledFlatMapper."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any

from torchdata.datapipes._pipe.checks import (
    check_callable,
    check_input_col,
    check_size,
    check_source,
    no_length,
    on_failure,
)
from torchdata.datapipes._pipe.columns import chosen, on_columns
from torchdata.datapipes._pipe.parts import Parts, is_rest
from torchdata.datapipes._pipe.seeding import Shuffling
from torchdata.datapipes._pipe.state.declared import checked_state, state
from torchdata.datapipes._pipe.streams import with_detached_streams
from torchdata.datapipes.datapipe import IterDataPipe, T_co

__all__ = ["ShuffledFlatMapper"]


class ShuffledFlatMapper(Shuffling, IterDataPipe[T_co]):
    """Applies a function that returns lists to every item, and yields the members of several lists in random order.

    A buffer holds `buffer_size` results. The pipe repeatedly yields the next member of a random result in the buffer,
    so members of one result keep their order. When all members of a result have been yielded, the next result replaces
    it in the buffer. The order depends only on the seed. torchdata 0.9 yields the same order for the same seed.

    Args:
        datapipe: the pipe to read.
        fn: a function from an item (or its columns) to an iterable. If `fn` is None, the items (or their columns
            `input_col`) are themselves the iterables. If `fn` returns a generator, a resumed run calls `fn` again.
        input_col: the parts of an item that `fn` receives, as for `map`.
        buffer_size: number of results in the buffer, 100 by default.

    Raises:
        AssertionError: `buffer_size` is not positive.
        TypeError: `fn` is not a function.
        ValueError: the number of arguments of `fn` differs from the number of input columns.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(["abc", "123"]).shuffled_flatmap(buffer_size=2).set_seed(1))
        ['a', '1', 'b', '2', '3', 'c']
    """

    #: The buffered results, each with its remaining members. If shuffling is turned off, the list contains only the
    #: current result.
    _buffer: list[Any] = state(list, items=True, saved=False)
    #: The index in `_buffer` of the result that yields the next member; None while the buffer is being filled.
    _next: Any = checked_state(lambda pipe: (range(pipe.buffer_size), None))
    _asked: Parts | None = state(items=True, saved=False)
    #: A list that contains the last item that was read, until the item's result is in the buffer.
    _waiting: list[Any] = state(list, items=True)
    #: The results in a loaded state, which the next iteration puts into its buffer.
    _parts: Any = checked_state(([is_rest], None), items=True)

    def __init__(
        self,
        datapipe: Iterable[Any],
        fn: Callable[..., Any] | None = None,
        input_col: Any = None,
        buffer_size: int = 100,
    ) -> None:
        name = "ShuffledFlatMapper"
        self.datapipe = check_source(name, datapipe)
        function = chosen if fn is None else fn
        check_callable(name, "fn", function)
        check_input_col(name, function, input_col)
        self.fn: Callable[..., Any] = function
        self.input_col = input_col
        self.buffer_size = check_size(name, "buffer_size", buffer_size, "buffer_size should be larger than 0")
        self._rng = random.Random()

    def __iter__(self) -> Iterator[T_co]:
        function = on_columns(self.fn, self.input_col)
        if self._parts is not None:
            self._buffer = [Parts.restored(function, state) for state in self._parts]
            self._parts = None
        source = iter(self.datapipe)
        if self._shuffling:
            return self._mixed(source, function)
        return chain.from_iterable(self._in_turn(source, function))

    def _in_turn(self, source: Iterator[Any], function: Callable[[Any], Any]) -> Iterator[Iterator[Any]]:
        buffer = self._buffer
        with on_failure(partial(self._detach_buffered, buffer)):
            for parts in buffer:
                yield parts.left
            for item in source:
                buffer.clear()
                buffer.append(Parts(function, item))
                yield buffer[0].left

    def _mixed(self, source: Iterator[Any], function: Callable[[Any], Any]) -> Iterator[Any]:
        buffer, waiting, size, below = self._buffer, self._waiting, self.buffer_size, self._below
        if self._next is None:
            self._next = below(size)
        with on_failure(partial(self._detach_buffered, buffer)):
            for item in chain(waiting.copy(), source):
                waiting[:] = (item,)
                while len(buffer) == size:
                    index = self._next
                    self._asked = buffer[index]
                    for member in self._asked.left:
                        self._next = below(size)
                        yield member
                        break
                    else:
                        del buffer[index]
                waiting.clear()
                buffer.append(Parts(function, item))
            while buffer:
                index = below(len(buffer))
                self._asked = buffer[index]
                for member in self._asked.left:
                    yield member
                    break
                else:
                    del buffer[index]

    def _drop_broken(self) -> None:
        """Drops the result of the function that raised an exception while it was iterated."""
        if self._shuffling:
            self._buffer[:] = [parts for parts in self._buffer if parts is not self._asked]
        else:
            self._buffer.clear()

    def _detach_buffered(self, buffer: list[Parts]) -> None:
        """Closes the files and generators of buffered results, unless a newer iteration has begun."""
        if self._buffer is buffer:
            for parts in buffer:
                parts.detach()
            self._waiting[:] = map(with_detached_streams, self._waiting)

    def _below(self, limit: int) -> int:
        """Draws the random integer below `limit` that `random.Random.randint` would draw, with fewer function calls."""
        getrandbits, width = self._rng.getrandbits, limit.bit_length()
        index = getrandbits(width)
        while index >= limit:
            index = getrandbits(width)
        return index

    #: Computing the length reads the source, which may take long, so loaders of this pipe do not compute a length.
    _length_reads_items = True

    def __len__(self) -> int:
        if self.fn is not chosen:
            raise no_length(self, "ShuffledFlatMapper's length relies on the output of its function")
        # Iterating over the source would change its state and seed, so a copy of the source is read.
        return sum(map(len, map(on_columns(self.fn, self.input_col), copy.deepcopy(self.datapipe))))

    def state_dict(self) -> dict[str, Any]:
        left = self._parts
        if left is None:
            # Results without remaining members are saved, too, because `_next` is an index in the whole buffer.
            left = [parts.state_dict() for parts in self._buffer]
        return {**self._declared_state(), "parts": left}
