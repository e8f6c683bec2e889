"""IterableWrapper, SamplerWrapper, MapStyleWrapper: nodes at the beginning of a graph. A resumed node rereads an
iterable that cannot save its position."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from torch.utils.data import Sampler, SequentialSampler

from torchdata._handlers import FailuresSuppressed, is_of_handler
from torchdata._observe.observed import ObservedLoader
from torchdata._reporting import warn_outside
from torchdata._stateful import Stateful, StatefulStream, StreamState, is_stateful, load_into, steps_of
from torchdata.datapipes._pipe.checks import check_callable, check_int, check_iterable, wrong_type
from torchdata.datapipes._pipe.datasets import has_fixed_order, in_fixed_order
from torchdata.datapipes._pipe.explaining import not_the_end
from torchdata.datapipes._pipe.seeking import is_stream, seek
from torchdata.datapipes._pipe.witnessing import SampleDigest
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.nodes._fields import StateFields
from torchdata.nodes._pipe_position import PipePosition
from torchdata.nodes.base_node import BaseNode, T
from torchdata.nodes.map import ParallelMapper

__all__ = ["IterableWrapper", "MapStyleWrapper", "SamplerWrapper"]

K = TypeVar("K", covariant=True)
_NONE: Any = object()


class IteratingNode(BaseNode[T]):
    """Reads an iterable or a sampler. Subclasses set `_stateful`, and define `reset`."""

    NUM_YIELDED_KEY = "_num_yielded"
    STARTED_KEY = "_started"
    DIGEST_KEY = "_digest"
    ENDED_KEY = "_ended"
    STATE_KEY: ClassVar[str]
    ITERATOR_KEY = "_iterator"

    _of_a_run: ClassVar[frozenset[str]] = frozenset(
        {"_digest", "_iterator", "_loaded_digest", "_position", "_saved", "_started", "_steps", "_stream", "_to_drop"}
    )

    #: The current iterator over the iterable. `_steps` yields the same items, for code that reads them in a loop.
    _iterator: Iterator[Any] = iter(())
    _steps: Iterator[Any] = iter(())
    #: The iterable if it is `Stateful`, otherwise None. `_is_exact`: whether the state of the iterable is exact even
    #: before the first item was read.
    _stateful: Stateful | None = None
    _is_exact = False
    _stream: StatefulStream | None = None
    #: Returns the position of `_stream`; None if neither the iterable nor its iterator has a state.
    _position: Callable[[], StreamState] | None = None

    _num_yielded = 0
    _started = False
    _to_drop = 0
    #: For an iterable without a state, a checksum of some of its items. `_loaded_digest` is the checksum in the loaded
    #: state. A warning is issued if `_digest` differs from `_loaded_digest` after the items were reread.
    _digest: SampleDigest | None = None
    _loaded_digest: SampleDigest | None = None

    _saved: dict[str, Any] | None = None

    ITERABLE: ClassVar[str]

    def _use(self, iterator: Iterator[Any]) -> None:
        self._iterator, self._steps = iterator, steps_of(iterator)

    def _prepare(self) -> None:
        """A hook for subclasses, which is called before an iteration begins or a state is loaded."""

    # -- resets -------------------------------------------------------------------------------------

    def _begin_epoch(self) -> None:
        if self._to_drop:  # the next epoch depends on the loaded position, even if no item was read after the load
            with FailuresSuppressed():
                self._arrive()
        self._num_yielded, self._started, self._to_drop = 0, False, 0
        self._digest, self._loaded_digest = self._new_digest(), None
        self._read(None)

    def _read(self, state: StreamState | None) -> bool:
        """Begins an iteration or restores a state. Returns whether the iterable or its iterator has a state."""
        iterable = getattr(self, self.ITERABLE) if self._stateful is None else self._stateful
        if self._stateful is None and has_fixed_order(iterable):
            iterable = in_fixed_order(iterable)
        if self._stream is None or self._stateful is None:
            self._stream = StatefulStream(iterable, self._prepare, is_exact=self._is_exact)
        stream = self._stream
        rest = stream.begin() if state is None else stream.resume_at(state)
        self._position = stream.state if stream.has_state else None
        self._use(stream.iterator if self._position is None else rest)
        return self._position is not None

    def _return_to(self, yielded: int) -> None:
        """Resets the node, and rereads the iterable until `yielded` items of the epoch were read.

        Raises:
            RuntimeError: the iterable cannot be read a second time, or the position of its pipe was never saved.
        """
        iterable = getattr(self, self.ITERABLE)
        self._use(iter(()))
        why = None
        state = self._saved if isinstance(self._stateful, PipePosition) else self.get_state()
        if state is None:
            why = "the position of its pipe was never saved"
        elif self._stateful is None and iter(iterable) is iterable:
            why = f"the {type(iterable).__name__} is a one-shot iterator, so the interrupted item is lost"
        if why is not None:
            raise RuntimeError(f"{type(self).__name__} cannot continue after an interruption, such as Ctrl-C: {why}")
        self.reset(state)
        self._started = True
        self._arrive()
        while self._num_yielded < yielded:
            self.next()

    def _new_digest(self) -> SampleDigest | None:
        """Returns an empty checksum if items that are reread must be compared with the original items; otherwise
        None."""
        iterable = getattr(self, self.ITERABLE)
        is_sampled = self._stateful is None and is_stream(iterable) and type(iterable) is not SequentialSampler
        return SampleDigest() if is_sampled else None

    def _resume_at(self, fields: StateFields) -> None:
        yielded = fields.integer(self.NUM_YIELDED_KEY, least=0)
        started = fields.flag(self.STARTED_KEY, yielded > 0)
        ended = fields.flag(self.ENDED_KEY, False)
        self._digest = self._new_digest()
        self._loaded_digest = self._saved_digest(fields)
        own = None if self._stateful is None else fields[self.STATE_KEY]
        inner = fields.get(self.ITERATOR_KEY)
        has_state = self._read(StreamState(own, inner, started, ended))
        self._num_yielded, self._started = yielded, started
        self._to_drop = 0 if has_state and (self._stateful is not None or inner is not None) else yielded

    def _saved_digest(self, fields: StateFields) -> SampleDigest | None:
        if self.DIGEST_KEY not in fields or self._digest is None:
            return None
        try:
            return SampleDigest.of(fields[self.DIGEST_KEY])
        except (TypeError, ValueError):
            raise fields.wrong(self.DIGEST_KEY, "must be two integers") from None

    def _arrive(self) -> None:
        if self._digest is None and seek(self._iterator, self._to_drop):
            self._to_drop = 0
        while self._to_drop:
            try:
                item = next(self._iterator)
            except StopIteration:
                raise ValueError(
                    f"{type(self).__name__}: the state was saved after {self._num_yielded} items, but there are only "
                    f"{self._num_yielded - self._to_drop} ({self.NUM_YIELDED_KEY!r} in the state); load it with the "
                    "data that it was saved with"
                ) from None
            if self._digest is not None and self._digest.next == self._num_yielded - self._to_drop:
                self._digest.add(item)
            self._to_drop -= 1
        saved, self._loaded_digest = self._loaded_digest, None
        if saved is not None and self._digest is not None and not self._digest.agrees_with(saved):
            warn_outside(
                f"{type(self).__name__}: the first {self._num_yielded} items differ from the items of the saved run. "
                "If their order differs, some items come twice and others never: seed the code that shuffles or draws "
                "them in each epoch, or give the iterable state_dict() and load_state_dict().",
                RuntimeWarning,
            )

    # -- items --------------------------------------------------------------------------------------

    def next(self) -> T:
        """Returns the next item.

        Raises:
            StopIteration: all items have been returned.
            ValueError: the iterable ends before the position in the loaded state.
        """
        if not self._started or self._to_drop:
            if self._stream is None:
                self._advance()
            self._started = True
            self._arrive()
        item: Any = _NONE
        try:
            for read in self._steps:  # Ctrl-C cannot interrupt between reading and storing an item
                item = read
                break
            else:
                raise StopIteration
            if self._digest is not None and self._digest.next == self._num_yielded:
                self._digest.add(item)
        except Exception:
            raise
        except BaseException:
            # An interrupted generator, pipe or call of `add` may have lost an item, so the node rereads its iterable.
            if item is not _NONE or self._stateful is not None or getattr(self._iterator, "gi_frame", self) is None:
                self._use(_Interrupted(self))
            raise
        self._num_yielded += 1
        return item  # type: ignore[no-any-return]

    def get_state(self) -> dict[str, Any]:
        if type(self._iterator) is _Interrupted:
            self._iterator.read_again()
        state: dict[str, Any] = {self.NUM_YIELDED_KEY: self._num_yielded}
        if self._digest is not None and self._num_yielded:
            state[self.DIGEST_KEY] = list((self._loaded_digest or self._digest).as_tuple())
        if self._position is None:
            return state
        own, inner, started, ended = self._position()
        if not self._is_exact:
            if started != (self._num_yielded > 0):
                state[self.STARTED_KEY] = started
            if ended:
                state[self.ENDED_KEY] = True
        if inner is not None:
            state[self.ITERATOR_KEY] = inner
        if self._stateful is not None:
            state[self.STATE_KEY] = own
        if isinstance(self._stateful, PipePosition):
            self._saved = state
        return state

    def __len__(self) -> int:
        iterable: Any = getattr(self, self.ITERABLE)
        try:
            return len(iterable)
        except Exception as error:
            if isinstance(error, TypeError) or is_of_handler(error):
                raise
            raise TypeError(f"{type(self).__name__}: the length of {type(iterable).__name__} is not known") from error


class _Interrupted(Iterator[Any]):
    """Replaces a node's iterator after Ctrl-C has interrupted the iterator. The node rereads its iterable before it
    returns the next item or state."""

    def __init__(self, node: IteratingNode[Any]) -> None:
        self._node, self._yielded = node, node._num_yielded

    def __next__(self) -> Any:
        self.read_again()
        return next(self._node._iterator)

    def read_again(self) -> None:
        node, yielded = self._node, self._yielded
        try:
            node._return_to(yielded)
        except BaseException as error:
            node._use(self)
            node._num_yielded, node._started, node._to_drop = yielded, True, 0
            if isinstance(error, StopIteration):
                raise not_the_end(f"pipe of {type(node).__name__}, when it was read again", error) from error
            raise


class IterableWrapper(IteratingNode[T]):
    """Creates a node from an iterable, such as a list, an `IterableDataset` or a pipe.

    A state contains the position of the iterable if the iterable is `Stateful`, or a pipe of `torchdata.datapipes` (see
    `from_pipe`). When a state is loaded, an iterable that cannot save its position is reread, and the items that were
    already yielded are dropped. If some reread items differ from the first reading, for example in an unseeded random
    order, a `RuntimeWarning` is issued. If the iterable's iterator is `Stateful`, its state is saved as well.

    A set of strings, numbers, paths, Enum members, or tuples and frozensets of such values, is read in sorted order,
    which is the same in every process. A set with members of other types, for example of a user-defined class, has no
    fixed order, so a state that was saved within an epoch cannot be loaded.

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

    ITERABLE = ITERABLE_KEY = STATE_KEY = "iterable"

    def __init__(self, iterable: Iterable[T]) -> None:
        super().__init__()
        check_iterable("IterableWrapper", "iterable", iterable)
        self.iterable = iterable
        if isinstance(iterable, IterDataPipe):
            self._stateful, self._is_exact = PipePosition(iterable), True
        elif is_stateful(iterable):
            self._stateful, self._is_exact = iterable, isinstance(iterable, ObservedLoader)

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Moves the node to the beginning of an epoch, or to the position `initial_state`; see `BaseNode.reset`.

        Raises:
            TypeError: the state was saved within an epoch, and the iterable is a set without a fixed order.
            ValueError: a field of the state is missing or out of range.
        """
        self._saved = initial_state
        if initial_state is None:
            self._begin_epoch()
            if isinstance(self._stateful, PipePosition) and not self._stateful.nodes():
                with FailuresSuppressed():  # the error is raised when the program requests a state
                    self._saved = self.get_state()
        else:
            self._resume_at(StateFields("IterableWrapper", initial_state))
            if self._num_yielded:
                in_fixed_order(self.iterable)
        super().reset(initial_state)

    def _repeats(self) -> bool:
        return not isinstance(self._stateful, PipePosition) or self._stateful.is_repeatable()

    def shutdown(self) -> None:
        """Ends the threads of the pipe that the node reads; see `BaseNode.shutdown`."""
        if isinstance(self._stateful, PipePosition):
            self._stateful.shutdown()


class SamplerWrapper(IteratingNode[T]):
    """Creates a node from a sampler. If the sampler has `set_epoch`, the node calls it with the number of each epoch.

    A sampler that is not `Stateful` is reread when a state is loaded, so its order must depend only on the epoch's
    number. If the order differs when the sampler is reread, a `RuntimeWarning` is issued. A state contains the number
    of the epoch. Loading a state calls `set_epoch` with the saved number of the epoch, and then loads the sampler's
    state.

    The node has a length if the sampler has a length.

    Args:
        sampler: the sampler, which is read once per epoch.
        initial_epoch: the number of the first epoch; 0 by default.
        epoch_updater: a function that takes the number of an epoch, and returns the number of the next epoch. If no
            item of an epoch was requested, `epoch_updater` is not called after this epoch. The default `epoch_updater`
            adds one to the epoch's number. If `epoch_updater` is `Stateful`, its state is part of the node's state.

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
    ITERABLE = "sampler"
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
        if initial_state is None:
            if self._started:
                # One statement sets both attributes, because a KeyboardInterrupt between two statements could make
                # `epoch_updater` run twice.
                self.epoch, self._started = self.epoch_updater(self.epoch), False
            self._begin_epoch()
        else:
            fields = StateFields("SamplerWrapper", initial_state)
            self.epoch = fields.integer(self.EPOCH_KEY, least=-sys.maxsize)
            if self.UPDATER_KEY in fields and is_stateful(self.epoch_updater):
                load_into(self.epoch_updater, fields[self.UPDATER_KEY])
            self._resume_at(fields)
        super().reset(initial_state)

    def _prepare(self) -> None:
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(self.epoch)

    def get_state(self) -> dict[str, Any]:
        state = {**super().get_state(), self.EPOCH_KEY: self.epoch, self.STARTED_KEY: self._started}
        if is_stateful(self.epoch_updater):
            state[self.UPDATER_KEY] = self.epoch_updater.state_dict()
        return state

    @staticmethod
    def _default_epoch_updater(epoch: int) -> int:
        return epoch + 1


def MapStyleWrapper(map_dataset: Mapping[Any, T], sampler: Sampler[Any], **parallel_mapper_kwargs: Any) -> BaseNode[T]:
    """Returns a node that yields the items of an indexable dataset, in the order of a sampler of its indices.

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
        raise wrong_type("MapStyleWrapper", "map_dataset", "read by index", map_dataset, ", which has no __getitem__")
    arguments = {"num_workers": 0, **parallel_mapper_kwargs}
    return ParallelMapper(SamplerWrapper(sampler), map_dataset.__getitem__, **arguments)
