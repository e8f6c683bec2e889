"""`DataLoader2`: a pipe graph, the adapters that change it and the reading service that runs it.

Role: owns a copy of the graph and of the service, begins and ends epochs, keeps the one valid iterator, and
shuts the service down, whatever happens. Runs in the main process, in one thread.

Of every epoch that was begun, the service is told the end exactly once: at the last item, at an error, when
the next epoch begins without it, or at shutdown.
"""

from __future__ import annotations

import atexit
import copy
import os
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from types import TracebackType
from typing import Any, Generic, Never, TypeAlias, TypeVar, overload

from torchdata._engine.interrupts import InterruptsHeld
from torchdata._reporting import fold
from torchdata.dataloader2._datasets import pipe_over, pipeline_over
from torchdata.dataloader2._interface import CheckpointableReadingServiceInterface, ReadingServiceInterface
from torchdata.dataloader2._iterator import DataLoader2Iterator, FinishedIterator
from torchdata.dataloader2._length import length_of_epoch, skeleton
from torchdata.dataloader2._loader_state import (
    CHECKSUMS_KEY_NAME,
    ITERATION_STATE_KEY_NAME,
    RANDOMNESS_STATE_KEY_NAME,
    READING_SERVICE_STATE_KEY_NAME,
    SERIALIZED_DATAPIPE_KEY_NAME,
    STATE_VERSION,
    VERSION_KEY_NAME,
    Randomness,
    check_state,
    checksums,
    pack_randomness,
    unpack_randomness,
    unpickled,
)
from torchdata.dataloader2.adapter import Adapter
from torchdata.dataloader2.graph import DataPipe
from torchdata.dataloader2.graph._serialization import Snapshot
from torchdata.dataloader2.graph._serialization import serialize_datapipe as serialize_datapipe
from torchdata.dataloader2.random import SeedGenerator
from torchdata.dataloader2.random.seed_generator import check_seed
from torchdata.dataloader2.reading_service import (
    InProcessReadingService,
    MultiProcessingReadingService,
    pause_pipes,
    resume_pipes,
)
from torchdata.datapipes._traversal import is_pipe, walk
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe
from torchdata.datapipes.iter.synchronizing import FullSync

__all__ = ["DataLoader2", "DataLoader2Iterator"]

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
AdapterFn: TypeAlias = Adapter | Callable[[DataPipe], DataPipe]

#: The loaders of this process that are not shut down; the interpreter shuts them down when it exits.
_open_loaders: weakref.WeakSet[DataLoader2[Any]] = weakref.WeakSet()


class DataLoader2(Generic[T_co]):
    """Loads data through a pipe graph: iterate it once per epoch.

    To type checkers, the loader of an `IterDataPipe[T]` or a `MapDataPipe[T]` is a `DataLoader2[T]`. It is a
    `DataLoader2[Any]` of any other object, and where adapters are functions, which may change the items.

    The loader works on copies of the pipe and of the service, so both can be used again elsewhere. An error
    in a pipe, a `break` or a second `iter()` end the epoch, not the loader: the next `iter()` begins a new
    epoch. Shut it down with `shutdown()` or by using it as a context manager. To pause after so many items, use
    `limit()` and `resume()` of the iterator, `iter(loader)`: the loader itself has neither.

    Args:
        datapipe: the last pipe of the graph, or a data set: what has a length and is read by index, such as PyTorch's
            `Dataset`, or an iterable that can be read again and again. A `MapDataPipe` is read from index 0 on, and so
            is such a data set; workers share its items only behind a `sharding_filter`, which `from_dataset` adds.
            None only where `load_state_dict` follows. Anything else is an error when the
            loader is used.
        datapipe_adapter_fn: an adapter or several; applied to the copy of the graph, in their order.
        reading_service: how the graph is run; None reads it in this process, with the pipes' own seeds.
        of_torchs_loader: nothing. Arguments of torch's `DataLoader` are refused by a message that says what takes their
            place.

    Raises:
        TypeError: an argument is of another kind, or the pipe or the service cannot be copied; the message
            names the attribute at fault.

    Example:
        >>> from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> pipe = IterableWrapper(range(4)).shuffle().sharding_filter().map(str)
        >>> with DataLoader2(pipe, reading_service=MultiProcessingReadingService(num_workers=2)) as loader:
        ...     sorted(loader)
        ['0', '1', '2', '3']
    """

    @overload
    def __init__(
        self: DataLoader2[T],
        datapipe: IterDataPipe[T] | MapDataPipe[T],
        datapipe_adapter_fn: Iterable[Adapter] | Adapter | None = None,
        reading_service: ReadingServiceInterface | None = None,
        **of_torchs_loader: Never,
    ) -> None: ...

    @overload
    def __init__(
        self: DataLoader2[Any],
        datapipe: object,
        datapipe_adapter_fn: Iterable[AdapterFn] | AdapterFn | None = None,
        reading_service: ReadingServiceInterface | None = None,
        **of_torchs_loader: Never,
    ) -> None: ...

    def __init__(
        self,
        datapipe: Any,
        datapipe_adapter_fn: Iterable[AdapterFn] | AdapterFn | None = None,
        reading_service: ReadingServiceInterface | None = None,
        **of_torchs_loader: Never,
    ) -> None:
        self._terminated = self._ended = True  # a loader whose construction fails has nothing to shut down
        _refuse(of_torchs_loader)
        datapipe = pipe_over(datapipe)
        if isinstance(datapipe, MapDataPipe):
            datapipe = datapipe.to_iter_datapipe()
        _require_service(reading_service)
        self.datapipe_adapter_fns = _adapter_list(datapipe_adapter_fn)
        self._service = Snapshot(reading_service)  # one that was in use serves no other graph
        self.reading_service = self._adapt_service(self._service.copy())
        self.reading_service_state: bytes | None = None
        self.datapipe: Any = None
        self._snapshot = Snapshot(datapipe)
        self._take_graph(self._snapshot)

        self.valid_iterator_id: int | None = None
        self._adapted = False  # whether the service has taken over the graph
        self._skeleton: Any = None  # of the graph as it was then, until somebody asks for the length
        self._length: int | str | None = None  # or why it is not known
        self._datapipe_iter: Iterator[T_co] | None = None
        self._reset_iter = True  # whether the next `iter` begins an epoch; not before an item was asked for
        self._iterating = False  # whether the service was not yet told the end of the epoch
        self._is_paused = False

        self._seed_generator = SeedGenerator()
        self._initial_seed_generator = copy.copy(self._seed_generator)  # as at the beginning of the epoch
        self._seed: int | None = None
        self._reset_seed = True  # whether `_seed` is still to be applied
        self._restored_randomness = False  # whether the next epoch begins with the generator as it is
        self._state_dict: dict[str, Any] | None = None

        self._owner_pid = os.getpid()
        self._terminated = self._ended = False
        _open_loaders.add(self)

    def _adapt_service(self, service: Any) -> Any:
        for adapter in self.datapipe_adapter_fns or ():
            if service is not None and hasattr(adapter, "adapt_reading_service"):
                service = adapter.adapt_reading_service(service)
                _require_service(service)
        return service

    def _take_graph(self, snapshot: Snapshot) -> None:
        """Makes an adapted copy of the graph the loader's own, and remembers it as it is before the
        service.
        """
        datapipe = snapshot.copy()
        if datapipe is not None and self.datapipe_adapter_fns:
            for adapter in self.datapipe_adapter_fns:
                adapted = adapter(datapipe)
                if not is_pipe(adapted):
                    raise TypeError(
                        f"an adapter must return the pipe to read, but {adapter!r} returned {adapted!r}"
                    )
                datapipe = adapted
            snapshot = Snapshot(datapipe)
        self.datapipe = datapipe
        self._snapshot = snapshot

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool = False,
        num_workers: int = 0,
        *,
        sampler: Iterable[Any] | None = None,
        drop_last: bool = False,
        collate_fn: Callable[[Any], Any] | None = None,
        seed: int | None = None,
        reading_service: ReadingServiceInterface | None = None,
    ) -> DataLoader2[Any]:
        """A loader of a data set, with the usual pipeline: order, share, batch, collate.

        Workers divide a data set that is read by index by its indices, so each item is loaded once. An iterable is read
        whole in each worker, of which each takes its share, unless it divides itself (as Hugging Face's
        `IterableDataset`). But for the latter, items come in the same order, and in the same batches, whatever the
        number of workers.

        Args:
            dataset: what has a length and is read by index, such as PyTorch's `Dataset`; an iterable that can be read
                again and again; a generator function; or a pipe. One that has a sharding pipe gets no other.
            batch_size: items per batch; None yields single items, uncollated.
            shuffle: whether each epoch has a random order of its own: of all items by index, or of those of an iterable
                through the buffer of `shuffle()`.
            num_workers: number of worker processes; 0 reads in this process.
            sampler: gives the indices to read, for data sets that are read by index; see `sample_by` of map pipes.
            drop_last: whether a last batch with fewer items is left out.
            collate_fn: a function of a batch, or of an item where `batch_size` is None. None makes arrays (with PyTorch
                loaded, tensors) of batches.
            seed: from which all epochs follow, as by `seed()`.
            reading_service: how the pipeline is run, in the place of `num_workers`.

        Raises:
            TypeError: `dataset` is none, or another argument is of another kind.
            ValueError: a number is too small, or two arguments exclude each other.

        Example:
            >>> from torchdata.dataloader2 import DataLoader2
            >>> with DataLoader2.from_dataset(range(5), batch_size=2, num_workers=2, collate_fn=list) as loader:
            ...     len(loader), list(loader)
            (3, [[0, 1], [2, 3], [4]])
        """
        if reading_service is not None and num_workers:
            raise ValueError("DataLoader2.from_dataset: give num_workers or a reading_service, not both")
        pipe = pipeline_over(dataset, batch_size, shuffle, sampler, drop_last, collate_fn)
        if reading_service is None:
            in_process = isinstance(num_workers, int) and num_workers == 0
            reading_service = (
                InProcessReadingService() if in_process else MultiProcessingReadingService(num_workers)
            )
        loader = cls(pipe, reading_service=reading_service)
        if seed is not None:
            loader.seed(seed)
        return loader

    @property
    def _datapipe_before_reading_service_adapt(self) -> Any:
        """A copy of the graph as it was after the adapters and before the service."""
        return self._snapshot.copy()

    def __iter__(self) -> DataLoader2Iterator[T_co]:
        """Begins an epoch and returns its iterator, which invalidates the ones before.

        Where no item was asked of the last iterator, the new one takes over its epoch.

        Raises:
            RuntimeError: the loader was shut down, or has no pipe.
            TypeError: what the loader was given is no pipe; or a reading service's state was loaded, and the service
                cannot take it.
        """
        if self._terminated:
            raise RuntimeError("Cannot iterate over the DataLoader as it has already been shut down")
        if self.datapipe is None:
            raise RuntimeError("Please provide datapipe or use load_state_dict to load datapipe from state")
        self._require_pipe()
        if self._reset_iter:
            try:
                self._begin_epoch()
            except Exception as error:
                fold(error)
                raise
        self.valid_iterator_id = 0 if self.valid_iterator_id is None else self.valid_iterator_id + 1
        return DataLoader2Iterator(self, self.valid_iterator_id)

    def _require_pipe(self) -> None:
        """Raises TypeError where the loader was given something else. What a service made of a pipe is its own."""
        if not self._adapted and not is_pipe(self.datapipe):
            raise TypeError(
                f"DataLoader2 loads from an IterDataPipe or a MapDataPipe, but got {self.datapipe!r} of type "
                f"{type(self.datapipe).__name__}; put data into an IterableWrapper first"
            )

    def _begin_epoch(self) -> None:
        if self._is_paused:
            self._resume()
        self._close_iteration()
        self._prepare_seeds()
        service = self.reading_service
        if service is not None and not self._adapted:
            self._hand_over(service)
        self._iterating = True
        try:
            if service is not None:
                reset = service.initialize_iteration(self._seed_generator)
                if reset is not None:
                    self.datapipe = reset(self.datapipe)
            self._datapipe_iter = iter(self.datapipe)
        except BaseException as error:
            self._close_iteration(because=error)
            raise
        self._reset_iter = False

    def _prepare_seeds(self) -> None:
        generator = self._seed_generator
        if self._seed is not None and self._reset_seed:
            generator.seed(self._seed)
            self._reset_seed = False
        elif not self._restored_randomness:
            # Spawned generators follow from the seed alone, however much was drawn: each epoch needs its own.
            generator.seed(None if self._seed is None else generator.generate_shared_seed())
        self._restored_randomness = False
        self._initial_seed_generator = copy.copy(generator)

    def _hand_over(self, service: Any) -> None:
        """Lets the service take over the graph; if it fails, the loader keeps the graph as it was."""
        try:
            self._skeleton, self._length = skeleton(self.datapipe), None
        except TypeError as error:
            self._length = str(error)
        try:
            if self.reading_service_state is None:
                self.datapipe = service.initialize(self.datapipe)
            elif isinstance(service, CheckpointableReadingServiceInterface):
                self.datapipe = service.restore(self.datapipe, self.reading_service_state)
            else:
                raise TypeError(
                    "Cannot restore from non-checkpointable reading service: the loaded state holds one of "
                    "a reading "
                    f"service, and {type(service).__name__} is no CheckpointableReadingServiceInterface"
                )
        except BaseException:
            self.datapipe = self._snapshot.copy()
            raise
        self._adapted = True

    def _leave_ranks(self, for_good: bool) -> None:
        """Lets other ranks know that this one ends its epoch, if one is under way.

        Args:
            for_good: whether it will not go on, so that they fail.
        """
        if self._iterating:
            for pipe in walk(self.datapipe):
                if isinstance(pipe, FullSync):
                    pipe.leave(for_good)

    def _close_iteration(self, because: BaseException | None = None) -> None:
        """Tells the service that the epoch is over, once.

        Args:
            because: the error that ended the epoch, if one did. It stays the error that the user sees.
        """
        if not self._iterating:
            return
        self._leave_ranks(for_good=because is not None)
        self._iterating = False
        self._datapipe_iter = FinishedIterator(self._datapipe_iter if because is None else None)
        if self.reading_service is None:
            return
        try:
            self.reading_service.finalize_iteration()
        except Exception as error:
            if because is None:
                raise
            because.add_note(f"After that, ending the epoch failed, too: {error!r}")

    def __len__(self) -> int:
        """The number of items of an epoch. Asking starts nothing.

        Each worker's share is counted, and of all ranks the least, because they end together; that takes for granted
        that the ranks read the same data.

        Raises:
            TypeError: it is not known: a pipe does not know its length, a function of the service may change the graph,
                or the service is one of your own.
        """
        if self.datapipe is None:
            raise TypeError("this DataLoader2 has no length, because it has no pipe yet")
        self._require_pipe()
        service = self.reading_service
        here = service is None or (isinstance(service, InProcessReadingService) and service.keeps_graph)
        if here or (self._adapted and isinstance(service, InProcessReadingService)):
            length: int = len(self.datapipe)
            return length
        if not self._adapted:
            return length_of_epoch(skeleton(self.datapipe), service)
        if self._length is None:
            try:
                self._length = length_of_epoch(self._skeleton, service)
            except TypeError as error:
                self._length = str(error)
            self._skeleton = None
        if isinstance(self._length, str):
            raise TypeError(self._length)
        return self._length

    def __bool__(self) -> bool:
        return True  # whatever its length

    def seed(self, seed: int) -> None:
        """Sets the seed from which all seeds of the following epochs are drawn.

        Args:
            seed: an integer from 0 to 2**64 - 1.

        Raises:
            TypeError: the seed is no integer.
            ValueError: the seed is out of range.
        """
        self._seed = check_seed(seed)
        self._reset_seed = True
        self._restored_randomness = False

    def shutdown(self) -> None:
        """Ends the epoch and the reading service; the loader cannot be iterated afterwards.

        May be called any number of times; where Ctrl-C cut it off, the next call goes on. In a forked child, which
        only inherited the loader, the processes of the service are left alone.
        """
        if self._ended:
            return
        self._terminated = True
        over = FinishedIterator(None, "Cannot read from the DataLoader as it has already been shut down")
        if os.getpid() != self._owner_pid:
            self._datapipe_iter = over
            self._set_ended()
            return
        try:
            try:
                self._leave_ranks(for_good=True)
                self._close_iteration()
            finally:
                self._datapipe_iter = over
                if self.reading_service is not None:
                    self.reading_service.finalize()
        except Exception:
            self._set_ended()
            raise
        self._set_ended()  # and not where Ctrl-C cut it off: the next call goes on

    def _set_ended(self) -> None:
        self._ended = True
        _open_loaders.discard(self)

    def __del__(self) -> None:
        if not self.__dict__.get("_ended", True):
            with InterruptsHeld(later=True):
                self.shutdown()

    def __enter__(self) -> DataLoader2[T_co]:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.shutdown()
        except Exception as error:
            if exc_value is None:
                raise
            exc_value.add_note(f"After that, shutting the loader down failed, too: {error!r}")

    def state_dict(self) -> dict[str, Any]:
        """The state of the loader, from which `load_state_dict` or `from_state` make one that goes on alike.

        It says which pipe, which seeds and which epoch, not the place inside the epoch:

        - `serialized_datapipe`: the pipe after the adapters and before the reading service, as bytes.
        - `reading_service_state`: what the service's `checkpoint` returned, or None.
        - `randomness_state`: the seed and the generators, now and at the beginning of the epoch.
        - `version`: of this layout.
        - `iteration_state`: reserved for the place inside the epoch; None.
        - `checksums`: of the first three, by which damage is noticed before anything is unpickled.

        Raises:
            RuntimeError: the loader has no pipe.
            TypeError: the pipe does not pickle, and the message names the attribute at fault; or it is none.
        """
        if self.valid_iterator_id is None and self._state_dict is not None:
            return self._state_dict  # nothing has happened since it was loaded
        if self.datapipe is None:
            raise RuntimeError("this DataLoader2 has no datapipe, so it has no state to save")
        self._require_pipe()
        service = self.reading_service
        checkpoints = isinstance(service, CheckpointableReadingServiceInterface)
        state = {
            SERIALIZED_DATAPIPE_KEY_NAME: serialize_datapipe(self._snapshot),
            READING_SERVICE_STATE_KEY_NAME: service.checkpoint() if checkpoints else None,
            RANDOMNESS_STATE_KEY_NAME: pack_randomness(
                self._seed, self._reset_seed, self._seed_generator, self._initial_seed_generator
            ),
            VERSION_KEY_NAME: STATE_VERSION,
            ITERATION_STATE_KEY_NAME: None,
        }
        return {**state, CHECKSUMS_KEY_NAME: checksums(state)}

    @classmethod
    def from_state(
        cls, state: dict[str, Any], reading_service: ReadingServiceInterface | None
    ) -> DataLoader2[Any]:
        """A new loader with the pipe and the seeds of a saved state.

        Args:
            state: what `state_dict` returned. It is unpickled: load only what you trust.
            reading_service: how the graph is run; takes the service's part of the state, if there is one.

        Raises:
            TypeError, ValueError: this is not the state of a loader, or one of another version, or a damaged one, or
                it needs modules that are not here.
        """
        datapipe, randomness = _unpacked(state)
        loader = cls(datapipe, None, reading_service)
        loader._take_state(state, randomness)
        return loader

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Puts the pipe and the seeds of a saved state into this loader, of which no item may have been asked for.

        The loader's adapters are applied to the loaded pipe. An iterator that was made but not asked for an item yet
        goes on as one of the loaded loader.

        A UserWarning tells where the loaded pipe replaces one that is made of other pipes.

        Args:
            state_dict: what `state_dict` returned. It is unpickled: load only what you trust.

        Raises:
            RuntimeError: an item of the loader was asked for before, or it was shut down.
            TypeError, ValueError: this is not the state of a loader, or one of another version, or a damaged one, or
                it needs modules that are not here. The loader is as it was then.
        """
        if self._terminated:
            raise RuntimeError("Cannot load a state into the DataLoader as it has already been shut down")
        begun = self._datapipe_iter is not None
        if begun and self._reset_iter:
            raise RuntimeError(
                "DataLoader2 iterator has already been created, `load_state_dict()` can't be called. "
                "Please create a new dataloader in order to use load state dict."
            )
        datapipe, randomness = _unpacked(state_dict)
        difference = _difference(self._snapshot.copy(), datapipe)
        if difference:
            warnings.warn(
                f"the loaded state brings a pipeline of its own, which replaces that of this loader: {difference}; "
                "make the loader by DataLoader2.from_state(state, reading_service) if that is meant",
                stacklevel=2,
            )
        if begun:
            self._close_iteration()
            if self.reading_service is not None and self._adapted:
                self.reading_service.finalize()
                self.reading_service = self._adapt_service(self._service.copy())
                self._adapted = False
        self._take_graph(Snapshot(datapipe))
        self._take_state(state_dict, randomness)
        if begun:
            self._begin_epoch()

    def _take_state(self, state: Mapping[str, Any], randomness: Randomness | None) -> None:
        self.reading_service_state = state[READING_SERVICE_STATE_KEY_NAME]
        if randomness is not None:
            self._seed, self._reset_seed, self._seed_generator, self._initial_seed_generator = randomness
        self._state_dict = dict(state)

    def _restore_checkpoint_beginning_of_epoch(self) -> None:
        """Makes the next epoch begin with the seeds with which the last one began.

        To be called after a state was loaded, to run the epoch again in which the state was saved.
        """
        self._seed_generator = copy.copy(self._initial_seed_generator)
        self._restored_randomness = True

    def _pause(self) -> None:
        service: Any = self.reading_service
        if service is None:
            self._is_paused = True
            pause_pipes(self.datapipe)
        elif hasattr(service, "_pause"):
            self._is_paused = True
            pause_fn = service._pause()
            if pause_fn is not None:
                self.datapipe = pause_fn(self.datapipe)
        else:
            self._warn_unsupported("pause")

    def _resume(self) -> None:
        service: Any = self.reading_service
        if service is not None and not hasattr(service, "_resume"):
            self._warn_unsupported("resume")
        elif not self._is_paused:
            warnings.warn(
                "Resume is called when `DataLoader2` is not paused. No operation is performed.", stacklevel=3
            )
        else:
            if service is None:
                resume_pipes(self.datapipe)
            else:
                resume_fn = service._resume()
                if resume_fn is not None:
                    self.datapipe = resume_fn(self.datapipe)
            self._is_paused = False

    def _limit(self, num_batches: int | None) -> None:
        service: Any = self.reading_service
        if service is None:
            return
        if not hasattr(service, "_limit"):
            self._warn_unsupported("limit")
            return
        limit_fn = service._limit(num_batches)
        if limit_fn is not None:
            self.datapipe = limit_fn(self.datapipe, num_batches)

    def _warn_unsupported(self, what: str) -> None:
        warnings.warn(f"{type(self.reading_service).__name__} doesn't support `{what}`.", stacklevel=4)


def _difference(own: Any, loaded: Any) -> str:
    """Where two graphs are made of different pipes, in words; empty where they are not, or one of them is none."""
    if not is_pipe(own) or not is_pipe(loaded):
        return ""
    ours, theirs = ([type(pipe).__name__ for pipe in walk(end)] for end in (own, loaded))
    for place, (mine, other) in enumerate(zip_longest(ours, theirs)):
        if mine != other:
            return f"pipe {place + 1} from the source on is {other or 'missing'} where this loader has {mine or 'none'}"
    return ""


def _unpacked(state: Mapping[str, Any]) -> tuple[DataPipe, Randomness | None]:
    """The pipe and the randomness of a state, before anything is changed by it."""
    check_state(state)
    datapipe = unpickled(SERIALIZED_DATAPIPE_KEY_NAME, state[SERIALIZED_DATAPIPE_KEY_NAME])
    if not is_pipe(datapipe):
        raise ValueError(f"the state holds {datapipe!r} where a datapipe should be")
    return datapipe, unpack_randomness(state)


#: What takes the place of arguments of torch's loader; a pair of braces stands for the value.
_INSTEAD = {
    "batch_size": "datapipe.batch({!r}).collate() as the datapipe",
    "collate_fn": "datapipe.collate(collate_fn={!r}) as the datapipe",
    "drop_last": "datapipe.batch(batch_size, drop_last={!r}) as the datapipe",
    "multiprocessing_context": "reading_service=MultiProcessingReadingService(multiprocessing_context={!r})",
    "num_workers": "reading_service=MultiProcessingReadingService(num_workers={!r})",
    "pin_memory": "datapipe.pin_memory() as the datapipe",
    "prefetch_factor": "reading_service=MultiProcessingReadingService(worker_prefetch_cnt={!r})",
    "shuffle": "datapipe.shuffle() as the datapipe",
    "timeout": "reading_service=MultiProcessingReadingService(timeout={!r})",
    "worker_init_fn": "reading_service=MultiProcessingReadingService(worker_init_fn={!r})",
}


def _refuse(arguments: Mapping[str, Any]) -> None:
    for name, value in arguments.items():
        instead = f"; write {_INSTEAD[name].format(value)} instead" if name in _INSTEAD else ""
        raise TypeError(f"DataLoader2 got an unexpected keyword argument {name!r}{instead}")


def _require_service(service: Any) -> None:
    if service is not None and (
        isinstance(service, type) or not callable(getattr(service, "initialize_iteration", None))
    ):
        raise TypeError(
            f"reading_service must be an instance of a ReadingServiceInterface or None, but got {service!r}"
        )


def _adapter_list(adapters: Any) -> list[Any] | None:
    """The argument `datapipe_adapter_fn` as a list, None where it was left out."""
    if adapters is None:
        return None
    listed = list(adapters) if isinstance(adapters, Iterable) else [adapters]
    for adapter in listed:
        if isinstance(adapter, type) or not callable(adapter):
            raise TypeError(
                f"datapipe_adapter_fn takes adapters, which are called with a pipe and return one, but got "
                f"{adapter!r}"
            )
    return listed


def _shut_down_open_loaders() -> None:
    for loader in list(_open_loaders):
        try:
            loader.shutdown()
        except Exception:
            traceback.print_exc()


atexit.register(_shut_down_open_loaders)
