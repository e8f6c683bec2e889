"""Nodes that stand at the beginning of a graph: IterableWrapper, SamplerWrapper, MapStyleWrapper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from torch.utils.data import Sampler

from torchdata.datapipes._pipe.checks import check_callable, check_int, check_iterable
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.nodes._pipe_place import PipePlace
from torchdata.nodes.base_node import BaseNode, NotReset, T
from torchdata.nodes.map import Mapper
from torchdata.nodes.types import Stateful

__all__ = ["IterableWrapper", "MapStyleWrapper", "SamplerWrapper"]

K = TypeVar("K", covariant=True)


class _Source(BaseNode[T]):
    """A node that reads an iterator, from which it drops first what was yielded before a state was saved.

    That is done when the first item is asked for: a node that is put back to a place only to begin the next epoch from
    there costs nothing.
    """

    NUM_YIELDED_KEY = "_num_yielded"

    _of_a_run: ClassVar[frozenset[str]] = frozenset({"_it", "_num_yielded", "_to_drop"})

    _it: Iterator[Any]
    _num_yielded = 0
    #: How many items are still to be dropped.
    _to_drop = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._it = NotReset(cls.__name__)

    def next(self) -> T:
        """See `BaseNode.next`.

        Raises:
            ValueError: there are fewer items than were yielded when the state was saved.
        """
        if self._to_drop:
            self._drop()
        item: T = next(self._it)
        self._num_yielded += 1
        return item

    def _drop(self) -> None:
        while self._to_drop:
            try:
                next(self._it)
            except StopIteration:
                raise ValueError(
                    f"{type(self).__name__}: the state was saved after {self._num_yielded} items, but there are only "
                    f"{self._num_yielded - self._to_drop}; load it with the data that it was saved with"
                ) from None
            self._to_drop -= 1


class IterableWrapper(_Source[T]):
    """Makes a node of an iterable, such as a list, an `IterableDataset` or a pipe.

    A state holds the place of an iterable that is `Stateful`, or that is a pipe of `torchdata.datapipes` (see
    `from_pipe`). Any other iterable is read anew when a state is loaded, and as many items as it had yielded are
    dropped. The `state_dict` that counts is that of the iterable, not of the iterator that it makes.

    Args:
        iterable: what is iterated over once per epoch.

    Raises:
        TypeError: `iterable` cannot be iterated over.

    Example:
        >>> from torchdata.nodes import IterableWrapper, Loader
        >>> loader = Loader(IterableWrapper(range(4)))
        >>> iterator = iter(loader)
        >>> next(iterator)
        0
        >>> loader.load_state_dict(loader.state_dict())
        >>> list(loader)
        [1, 2, 3]
    """

    ITERABLE_KEY = "iterable"

    def __init__(self, iterable: Iterable[T]) -> None:
        super().__init__()
        check_iterable("IterableWrapper", "iterable", iterable)
        self.iterable = iterable
        self._stateful: Stateful | None = None
        if isinstance(iterable, IterDataPipe):
            self._stateful = PipePlace(iterable)
        elif isinstance(iterable, Stateful):
            self._stateful = iterable

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """See `BaseNode.reset`."""
        self._num_yielded = 0 if initial_state is None else initial_state[self.NUM_YIELDED_KEY]
        iterable: Any = self.iterable
        if self._stateful is None:
            self._to_drop = self._num_yielded
        else:
            iterable = self._stateful
            if initial_state is not None:
                self._stateful.load_state_dict(initial_state[self.ITERABLE_KEY])
        self._it = iter(iterable)
        super().reset(initial_state)

    def get_state(self) -> dict[str, Any]:
        """See `BaseNode.get_state`."""
        state: dict[str, Any] = {self.NUM_YIELDED_KEY: self._num_yielded}
        if self._stateful is not None:
            state[self.ITERABLE_KEY] = self._stateful.state_dict()
        return state

    def _repeats(self) -> bool:
        return not isinstance(self._stateful, PipePlace) or self._stateful.is_repeatable()

    def shutdown(self) -> None:
        """See `BaseNode.shutdown`. Ends the threads of pipes, too."""
        if isinstance(self._stateful, PipePlace):
            self._stateful.shutdown()


class SamplerWrapper(_Source[T]):
    """Makes a node of a sampler, and tells it the epoch by `set_epoch` where it has that.

    A sampler that is not `Stateful` is read anew when a state is loaded, so its order must follow from the epoch.

    Args:
        sampler: what is iterated over once per epoch.
        initial_epoch: number of the first epoch.
        epoch_updater: called with the number of an epoch of which an item was asked for; returns that of the next
            one. By default one more.

    Raises:
        TypeError: `sampler` cannot be iterated over, `initial_epoch` is no integer or `epoch_updater` no function.

    Example:
        >>> from torch.utils.data import SequentialSampler
        >>> from torchdata.nodes import SamplerWrapper
        >>> list(SamplerWrapper(SequentialSampler(range(3))))
        [0, 1, 2]
    """

    EPOCH_KEY = "_epoch"
    SAMPLER_KEY = "_sampler"
    STARTED_KEY = "_started"

    _of_a_run: ClassVar[frozenset[str]] = _Source._of_a_run | {"_started"}

    #: Whether an item of this epoch was asked for.
    _started = False

    def __init__(
        self,
        sampler: Sampler[T] | Iterable[T],
        initial_epoch: int = 0,
        epoch_updater: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__()
        check_iterable("SamplerWrapper", "sampler", sampler)
        if epoch_updater is not None:
            check_callable("SamplerWrapper", "epoch_updater", epoch_updater)
        self.sampler: Any = sampler
        self.epoch = check_int("SamplerWrapper", "initial_epoch", initial_epoch)
        self.epoch_updater = epoch_updater or self._default_epoch_updater
        self._is_stateful = isinstance(sampler, Stateful)

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """See `BaseNode.reset`."""
        if initial_state is None:
            if self._started:
                self.epoch = self.epoch_updater(self.epoch)
            self._num_yielded, self._started = 0, False
        else:
            self._num_yielded, self.epoch = initial_state[self.NUM_YIELDED_KEY], initial_state[self.EPOCH_KEY]
            self._started = initial_state.get(self.STARTED_KEY, self._num_yielded > 0)
        if self._is_stateful and initial_state is not None:
            self.sampler.load_state_dict(initial_state[self.SAMPLER_KEY])
        elif hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(self.epoch)
        self._to_drop = 0 if self._is_stateful else self._num_yielded
        self._it = iter(self.sampler)
        super().reset(initial_state)

    def next(self) -> T:
        """See `BaseNode.next`."""
        self._started = True
        if self._to_drop:
            self._drop()
        item: T = next(self._it)
        self._num_yielded += 1
        return item

    def get_state(self) -> dict[str, Any]:
        """See `BaseNode.get_state`."""
        state = {
            self.NUM_YIELDED_KEY: self._num_yielded,
            self.EPOCH_KEY: self.epoch,
            self.STARTED_KEY: self._started,
        }
        if self._is_stateful:
            state[self.SAMPLER_KEY] = self.sampler.state_dict()
        return state

    @staticmethod
    def _default_epoch_updater(epoch: int) -> int:
        return epoch + 1


def MapStyleWrapper(map_dataset: Mapping[Any, T], sampler: Sampler[Any]) -> BaseNode[T]:
    """Makes a node of a dataset that is read by index, and a sampler of the indices.

    It is a `Mapper` over a `SamplerWrapper`; to read with several threads or processes, put `ParallelMapper` in its
    place.

    Args:
        map_dataset: what is read: a list, a dict, a `torch.utils.data.Dataset`, a map pipe.
        sampler: yields the indices.

    Raises:
        TypeError: `map_dataset` cannot be read by index, or `sampler` cannot be iterated over.

    Example:
        >>> from torch.utils.data import SequentialSampler
        >>> from torchdata.nodes import MapStyleWrapper
        >>> list(MapStyleWrapper("abc", SequentialSampler("abc")))
        ['a', 'b', 'c']
    """
    if not hasattr(type(map_dataset), "__getitem__"):
        raise TypeError(
            f"MapStyleWrapper: map_dataset must be read by index, but got {map_dataset!r} of type "
            f"{type(map_dataset).__name__}, which has no __getitem__"
        )
    return Mapper(SamplerWrapper(sampler), map_dataset.__getitem__)
