"""Shuffler: yields the source's items in random order, using a buffer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import repeat
from typing import Any, ClassVar

from torchdata.datapipes._pipe.checks import check_int
from torchdata.nodes._fields import StateFields, position_of, state_at
from torchdata.nodes.base_node import BaseNode, T, check_node, is_repeatable

__all__ = ["Shuffler"]


class Shuffler(BaseNode[T]):
    """Fills a buffer with the source's items, and yields random items of the buffer.

    Args:
        source_node: the node to read.
        buffer_size: the number of items in the buffer; 1,024 by default. `Shuffler` yields an item at most
            `buffer_size` positions earlier than the source does.
        seed: the seed of the order, which is the same in each epoch. By default (None), each epoch has a different
            order.
        store_buffer: whether a state contains the items in the buffer; True by default. If `store_buffer` is False, the
            state contains the source's position at the beginning of the epoch, and all items are reread when the state
            is loaded. If the order of the source may vary, a state always contains the buffer.

    Raises:
        TypeError: `source_node` is not a node, or `buffer_size` is not an integer.
        ValueError: `buffer_size` is not positive.

    Example:
        >>> from torchdata.nodes import IterableWrapper, Loader, Shuffler
        >>> loader = Loader(Shuffler(IterableWrapper(range(5)), buffer_size=3, seed=1))
        >>> sorted(loader) == list(range(5)), list(loader) == list(loader)
        (True, True)
    """

    SOURCE_KEY = "source"
    BUFFER_SIZE_KEY = "buffer_size"
    RNG_STATE_KEY = "rng_state"
    BUFFER_KEY = "buffer"
    NUM_YIELDED_KEY = "num_yielded"
    STORE_BUFFER_KEY = "store_buffer"
    DEFAULT_BUFFER_SIZE: ClassVar[int] = 1024

    _of_a_run: ClassVar[frozenset[str]] = frozenset({"_advance", "_began", "_buffer", "_draws"})

    def __init__(
        self,
        source_node: BaseNode[T],
        buffer_size: int = DEFAULT_BUFFER_SIZE,
        seed: int | None = None,
        store_buffer: bool = True,
    ) -> None:
        super().__init__()
        self.source = check_node("Shuffler", "source_node", source_node)
        self.buffer_size = check_int("Shuffler", "buffer_size", buffer_size, least=1)
        self.seed = None if seed is None else check_int("Shuffler", "seed", seed)
        self.store_buffer = store_buffer

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Moves the node to the beginning of an epoch, or to the position `initial_state`; see `BaseNode.reset`.

        Raises:
            ValueError: a field of the state is missing or out of range, or belongs to another `buffer_size`.
        """
        self._ended, self._random = False, random.Random(self.seed)
        #: Yields random numbers with `_count.bit_length()` bits each. `_count` is the number of items in the buffer.
        self._draws: Iterator[int] = iter(())
        self._count = 0
        fields = StateFields("Shuffler", initial_state)
        fields.integer(self.BUFFER_SIZE_KEY, least=self.buffer_size, most=self.buffer_size)
        count = fields.integer(self.NUM_YIELDED_KEY, least=0)
        stored = fields.flag(self.STORE_BUFFER_KEY, initial_state is not None)
        if initial_state is not None:
            self._restore_random(fields)
        self._advance = fields.reset(self.source, self.SOURCE_KEY)
        self._buffer: list[T] = list(fields.list_of(self.BUFFER_KEY)) if stored else []
        self._num_yielded, repeated = (count, 0) if stored else (0, count)
        #: Whether states contain the buffer. If the loaded state contains a buffer, later states must contain the
        #: buffer, too, because the source does not yield the buffered items again.
        self._stores = self.store_buffer or stored or not is_repeatable(self.source)
        #: The states of the source and of the random generator at the beginning of the epoch; None if states contain
        #: the buffer.
        self._began = None if self._stores else (position_of(self.source), self._random.getstate())
        super().reset(initial_state)
        for number in range(repeated):
            try:
                self.next()
            except StopIteration:
                raise ValueError(
                    f"Shuffler: {self.NUM_YIELDED_KEY!r} in the state is {repeated}, but its source has only {number} "
                    "items now; load it with the data that it was saved with"
                ) from None

    def _restore_random(self, fields: StateFields) -> None:
        saved: Any = fields[self.RNG_STATE_KEY]
        try:
            version, numbers, gauss = saved
            self._random.setstate((version, tuple(numbers), gauss))
        except (TypeError, ValueError, OverflowError):
            raise fields.wrong(self.RNG_STATE_KEY, "must be a state of random.Random") from None

    def next(self) -> T:
        """Returns the next item. If the source raises an error, the items in the buffer are kept for the next calls.

        Raises:
            StopIteration: all items have been returned.
        """
        buffer, size = self._buffer, self.buffer_size
        if not self._ended:
            try:
                while len(buffer) < size:
                    buffer.append(self._advance())
            except StopIteration:
                self._ended = True
        if not buffer:
            raise StopIteration
        count = len(buffer)
        if count != self._count:
            self._count, self._draws = count, map(self._random.getrandbits, repeat(count.bit_length()))
        for index in self._draws:  # the same numbers as `randrange`, which Ctrl-C may interrupt
            if index < count:
                break
        # Python raises KeyboardInterrupt only at calls and in loops, so it cannot interrupt the following lines.
        item, buffer[index] = buffer[index], buffer[-1]
        del buffer[-1]
        self._num_yielded += 1
        return item

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            self.BUFFER_SIZE_KEY: self.buffer_size,
            self.NUM_YIELDED_KEY: self._num_yielded,
            self.STORE_BUFFER_KEY: self._stores,
        }
        if self._began is not None:
            source, numbers = self._began
            return {**state, self.SOURCE_KEY: state_at(source), self.RNG_STATE_KEY: numbers}
        state |= {self.SOURCE_KEY: self.source.state_dict(), self.RNG_STATE_KEY: self._random.getstate()}
        return {**state, self.BUFFER_KEY: list(self._buffer)}

    def __len__(self) -> int:
        """Returns the number of items per epoch.

        Raises:
            TypeError: the length of the source is unknown.
        """
        return len(self.source)
