"""Nodes at the beginning of a graph: IterableWrapper, SamplerWrapper, MapStyleWrapper."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from torch.utils.data import Sampler, SequentialSampler

from torchdata._observe.observed import ObservedLoader
from torchdata._stateful import give, is_stateful
from torchdata.datapipes._pipe.checks import check_callable, check_int, check_iterable
from torchdata.datapipes._pipe.datasets import has_fixed_order, in_fixed_order
from torchdata.datapipes._pipe.seeking import is_stream
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.nodes._fields import StateFields
from torchdata.nodes._iterating import IteratingNode
from torchdata.nodes._pipe_position import PipePosition
from torchdata.nodes.base_node import BaseNode, T
from torchdata.nodes.map import ParallelMapper

__all__ = ["IterableWrapper", "MapStyleWrapper", "SamplerWrapper"]

K = TypeVar("K", covariant=True)


class IterableWrapper(IteratingNode[T]):
    """Creates a node from an iterable, such as a list, an `IterableDataset` or a pipe.

    A state contains the position of the iterable if the iterable is `Stateful`, or a pipe of `torchdata.datapipes` (see
    `from_pipe`). Any other iterable is reread when a state is loaded, and the items that were already yielded are
    dropped. If some of these items differ from the first reading, for example in an unseeded random order, a
    `RuntimeWarning` is issued. If the iterable's iterators have a state, this state is saved as well. `state_dict` of
    the iterable and its iterator is also called once at the beginning of each epoch.

    A set of strings, numbers, paths, Enum members, or tuples and frozensets of such values, is read in sorted order,
    which is the same in every process. For any other set, a state that was saved within an epoch cannot be loaded.

    The node has a length if the iterable has a length.

    Args:
        iterable: the iterable, which is read once per epoch.

    Raises:
        TypeError: `iterable` is not iterable.

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

    ITERABLE_KEY = STATE_KEY = "iterable"

    def __init__(self, iterable: Iterable[T]) -> None:
        super().__init__()
        check_iterable("IterableWrapper", "iterable", iterable)
        self.iterable = iterable
        if isinstance(iterable, IterDataPipe):
            self._read_by(PipePosition(iterable))
        elif is_stateful(iterable):
            self._stateful, self._is_exact = iterable, isinstance(iterable, ObservedLoader)

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begins an epoch or resumes from a state; see `BaseNode.reset`.

        Raises:
            TypeError: the state was saved within an epoch of a set with an order that differs between processes.
            ValueError: a field of the state is missing or out of range.
        """
        if initial_state is None:
            self._begin_epoch()
        else:
            self._go_to(StateFields("IterableWrapper", initial_state))
            if self._num_yielded:
                in_fixed_order(self.iterable)
        super().reset(initial_state)

    def _source(self) -> Any:
        return in_fixed_order(self.iterable) if has_fixed_order(self.iterable) else self.iterable

    def _is_sampled(self) -> bool:
        return is_stream(self.iterable)

    def _read_by(self, position: PipePosition) -> None:
        """Reads the pipe through its adapter."""
        self._stateful, self._is_exact = position, True

    def __len__(self) -> int:
        return self._length(self.iterable)

    def _repeats(self) -> bool:
        return not isinstance(self._stateful, PipePosition) or self._stateful.is_repeatable()

    def shutdown(self) -> None:
        """See `BaseNode.shutdown`. Also ends the threads of pipes."""
        if isinstance(self._stateful, PipePosition):
            self._stateful.shutdown()


class SamplerWrapper(IteratingNode[T]):
    """Creates a node from a sampler, and calls the sampler's `set_epoch`, if it exists, with the epoch.

    A sampler that is not `Stateful` is reread when a state is loaded, so the epoch must determine its order. If the
    order differs from the first reading, a `RuntimeWarning` is issued. A state contains the number of the epoch.
    `set_epoch` is called with this number before the state of the sampler is loaded.

    The node has a length if the sampler has a length.

    Args:
        sampler: the sampler, which is read once per epoch.
        initial_epoch: the number of the first epoch; 0 by default.
        epoch_updater: a function that takes the number of an epoch, and returns the number of the next epoch. The
            function is called only if an item of the epoch was requested. By default, the function adds one. If the
            function is `Stateful`, its state is part of the node's state.

    Raises:
        TypeError: `sampler` is not iterable, `initial_epoch` is not an integer, or `epoch_updater` is not a function.

    Example:
        >>> from torch.utils.data import SequentialSampler
        >>> from torchdata.nodes import SamplerWrapper
        >>> list(SamplerWrapper(SequentialSampler(range(3))))
        [0, 1, 2]
    """

    EPOCH_KEY = "_epoch"
    SAMPLER_KEY = STATE_KEY = "_sampler"
    UPDATER_KEY = "_epoch_updater"

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
        if is_stateful(sampler):
            self._stateful = sampler

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begins an epoch or resumes from a state; see `BaseNode.reset`.

        Raises:
            ValueError: a field of the state is missing or out of range.
        """
        if initial_state is None:
            if self._started:
                self.epoch = self.epoch_updater(self.epoch)
            self._begin_epoch()
        else:
            fields = StateFields("SamplerWrapper", initial_state)
            self.epoch = fields.integer(self.EPOCH_KEY, least=-sys.maxsize)
            if self.UPDATER_KEY in fields and is_stateful(self.epoch_updater):
                give(self.epoch_updater, fields[self.UPDATER_KEY])
            self._go_to(fields)
        super().reset(initial_state)

    def _prepare(self) -> None:
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(self.epoch)

    def _is_sampled(self) -> bool:
        return is_stream(self.sampler) and type(self.sampler) is not SequentialSampler

    def _source(self) -> Any:
        return in_fixed_order(self.sampler) if has_fixed_order(self.sampler) else self.sampler

    def get_state(self) -> dict[str, Any]:
        """Returns the position; see `BaseNode.get_state`."""
        state = {**super().get_state(), self.EPOCH_KEY: self.epoch, self.STARTED_KEY: self._started}
        if is_stateful(self.epoch_updater):
            state[self.UPDATER_KEY] = self.epoch_updater.state_dict()
        return state

    def __len__(self) -> int:
        return self._length(self.sampler)

    @staticmethod
    def _default_epoch_updater(epoch: int) -> int:
        return epoch + 1


def MapStyleWrapper(map_dataset: Mapping[Any, T], sampler: Sampler[Any], **parallel_mapper_kwargs: Any) -> BaseNode[T]:
    """Creates a node from an indexable dataset, and a sampler of its indices.

    The result is a `ParallelMapper` over a `SamplerWrapper`, by default without workers.

    Args:
        map_dataset: the dataset: a list, a dict, a `torch.utils.data.Dataset`, or a map-style pipe.
        sampler: an iterable of indices.
        **parallel_mapper_kwargs: arguments of `ParallelMapper`, such as `num_workers` and `method`.

    Raises:
        TypeError: `map_dataset` cannot be read by index, `sampler` is not iterable, or `ParallelMapper` does not accept
            an argument.

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
    arguments = {"num_workers": 0, **parallel_mapper_kwargs}
    return ParallelMapper(SamplerWrapper(sampler), map_dataset.__getitem__, **arguments)
