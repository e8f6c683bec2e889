"""`DataLoader2`: a pipe graph, the adapters that change it and the reading service that runs it.

A loader owns copies of the graph and of the reading service, and has one valid iterator. It shuts the service down. Any
thread of the main process may use a loader, but only one thread at a time can begin an epoch, load a state or shut the
loader down.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, TypeAlias, TypeVar, overload

from torchdata._engine.processes.interrupts import InterruptsDeferred
from torchdata._handlers import is_of_handler
from torchdata._native import Finalized
from torchdata._observe.observed import ObservedLoader
from torchdata._observe.stats.recorder import Recorder, StatsLevel
from torchdata._reporting import fold
from torchdata.dataloader2._arguments import adapter_list, refuse_arguments, require_pipe, require_service
from torchdata.dataloader2._checkpointing import StateKeeper, read, unpacked_pipe, warn_of_0_9
from torchdata.dataloader2._datasets import pipe_over, pipeline_over
from torchdata.dataloader2._ending import Ending
from torchdata.dataloader2._epochs import EpochRun
from torchdata.dataloader2._iterator import DataLoader2Iterator
from torchdata.dataloader2._pipeline import Pipeline
from torchdata.dataloader2._seeds import Seeds
from torchdata.dataloader2.adapter import Adapter
from torchdata.dataloader2.graph import DataPipe
from torchdata.dataloader2.graph.serialization import GraphTemplate
from torchdata.dataloader2.graph.serialization import serialize_datapipe as serialize_datapipe
from torchdata.dataloader2.random.seed_generator import check_seed
from torchdata.dataloader2.reading_service import InProcessReadingService, MultiProcessingReadingService
from torchdata.dataloader2.services.interface import ReadingServiceInterface
from torchdata.dataloader2.services.sequential import divided
from torchdata.dataloader2.state.layout import RANDOMNESS_STATE_KEY_NAME as RANDOMNESS_STATE_KEY_NAME
from torchdata.dataloader2.state.layout import READING_SERVICE_STATE_KEY_NAME as READING_SERVICE_STATE_KEY_NAME
from torchdata.dataloader2.state.layout import SERIALIZED_DATAPIPE_KEY_NAME as SERIALIZED_DATAPIPE_KEY_NAME
from torchdata.datapipes._pipe.checks import check_int
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe

if TYPE_CHECKING:
    from torchdata._drawing.graph import DrawnGraph
    from torchdata._drawing.picture import Picture

__all__ = ["DataLoader2", "DataLoader2Iterator"]

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
AdapterFn: TypeAlias = Adapter | Callable[[DataPipe], DataPipe]


def _part(path: str, meaning: str = "") -> Any:
    """Returns a property that reads and sets the attribute at `path`, such as `_run.is_paused`. `meaning` is the
    property's docstring.
    """
    *owner, name = path.split(".")
    owner_of = attrgetter(".".join(owner))
    return property(attrgetter(path), lambda loader, value: setattr(owner_of(loader), name, value), doc=meaning or None)


#: The attributes that a copy of a loader does not get. Attributes that are not in `_OWN` are copied, because they may
#: belong to a subclass.
_OWN = frozenset({"_ended", "_ending", "_keeper", "_pipeline", "_recorder", "_run", "_seeds"})


class DataLoader2(ObservedLoader, Finalized, Generic[T_co]):
    """Loads data through a pipe graph: iterate the loader once per epoch.

    The loader works on copies of the pipes and of the service, so you can reuse the originals. The data in the pipes is
    not copied: the main process reads the original objects, and forked workers inherit them. Only the start methods
    "spawn" and "forkserver" pickle the data, once for all workers. An error in a pipe, a `break` or a second `iter()`
    ends the epoch, and the next `iter()` begins a new epoch. End the loader with `shutdown()`, or use it as a context
    manager. To pause after a number of items, use the methods `limit` and `resume` of the loader's iterator.

    Several threads may share an iterator, and each item goes to one of these threads. A copy of a loader, by `copy` or
    pickle, is a separate loader that has not started. For type checkers, the loader of an `IterDataPipe[T]` or a
    `MapDataPipe[T]` is a `DataLoader2[T]`. If the adapters are functions, the loader is a `DataLoader2[Any]`, because
    functions may change the type of the items.

    Args:
        datapipe: the last pipe of the graph, or a dataset: an object with a length and `__getitem__`, or an iterable
            that can be read several times. Without a `sharding_filter`, which `from_dataset` adds, every worker yields
            all items of a dataset. A loader with `datapipe=None` must load a state by `load_state_dict` before it is
            iterated. If `datapipe` is neither a pipe nor a dataset, using the loader raises an error.
        datapipe_adapter_fn: an adapter, or several adapters, which the loader applies in the given order to its copy of
            the graph; None by default.
        reading_service: the service that runs the graph; with None, the graph runs in this process, and the pipes draw
            their own seeds.
        num_workers: number of worker processes, 0 by default. `num_workers` is short for
            `reading_service=MultiProcessingReadingService(num_workers)`.
        splits: the number of shards of each epoch, for any number of workers and ranks; None for one shard for each
            worker. `splits=n` has the same effect as the adapter `ShardingPolicy(splits=n)`.
        stats: "counts", which costs nothing, or "full", which also measures the time of each pipe. With `stats=None`,
            the environment variable `TORCHDATA_STATS` is used, and "counts" if it is not set. See `stats()`.
        stall_warning: the number of seconds without an item after which a `RuntimeWarning` describes which processes
            wait for each other; 60 by default, None for no warning.
        wait_warning: fraction of an epoch's time that the program may wait for the loader, 0.3 by default. If the
            program waits for more than the fraction `wait_warning` of an epoch of at least 10 seconds, a
            `RuntimeWarning` with the result of `diagnose()` is issued once. `wait_warning=None`, or
            `TORCHDATA_WAIT_WARNING=0` in the environment, disables this warning about waiting.
        of_torchs_loader: not accepted. If you pass an argument of torch's `DataLoader`, the error message names the
            equivalent in this package.

    Raises:
        TypeError: an argument has the wrong type, or an attribute of the pipe or the service cannot be copied.

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
        *,
        num_workers: int | Literal["auto"] = 0,
        splits: int | None = None,
        stats: StatsLevel | None = None,
        stall_warning: float | None = 60.0,
        wait_warning: float | None = 0.3,
        **of_torchs_loader: Never,
    ) -> None: ...

    @overload
    def __init__(
        self: DataLoader2[Any],
        datapipe: object,
        datapipe_adapter_fn: Iterable[AdapterFn] | AdapterFn | None = None,
        reading_service: ReadingServiceInterface | None = None,
        *,
        num_workers: int | Literal["auto"] = 0,
        splits: int | None = None,
        stats: StatsLevel | None = None,
        stall_warning: float | None = 60.0,
        wait_warning: float | None = 0.3,
        **of_torchs_loader: Never,
    ) -> None: ...

    def __init__(
        self,
        datapipe: Any,
        datapipe_adapter_fn: Iterable[AdapterFn] | AdapterFn | None = None,
        reading_service: ReadingServiceInterface | None = None,
        *,
        num_workers: int | Literal["auto"] = 0,
        splits: int | None = None,
        stats: StatsLevel | None = None,
        stall_warning: float | None = 60.0,
        wait_warning: float | None = 0.3,
        **of_torchs_loader: Never,
    ) -> None:
        self._ended = True  # if the constructor fails, `__del__` has nothing to shut down
        refuse_arguments(of_torchs_loader, DataLoader2)
        reading_service = _service_of(num_workers, reading_service, "DataLoader2")
        if splits is not None:
            reading_service = divided(reading_service, check_int("DataLoader2", "splits", splits, least=1))
        recorder = Recorder(stats, stall_warning, wait_warning)
        datapipe = pipe_over(datapipe)
        if isinstance(datapipe, MapDataPipe):
            datapipe = datapipe.to_iter_datapipe()
        # an adapter may turn another object into a pipe, so with adapters, `Pipeline` checks the adapted object
        if datapipe is not None and datapipe_adapter_fn is None:
            require_pipe(datapipe)
        # `GraphTemplate` copies the service, and raises an error if the service is already in use
        adapters, service = adapter_list(datapipe_adapter_fn), GraphTemplate(reading_service)
        self._set_up(Pipeline(GraphTemplate(datapipe), adapters, service, _serialized), Seeds(), recorder)

    def _set_up(self, pipeline: Pipeline, seeds: Seeds, recorder: Recorder) -> None:
        self._pipeline, self._seeds, self._recorder = pipeline, seeds, recorder
        self._run = EpochRun(pipeline, seeds, recorder)
        self._keeper = StateKeeper(self._run)
        self._ending = Ending(self, self._run, self._keeper.note_left)
        self._ended = False  # `Finalized` shuts the loader down only if this attribute is False

    # -- attributes of torchdata 0.9 ----------------------------------------------------------------

    datapipe = _part("_pipeline.datapipe", "The last pipe of the graph that is read: after adapters and the service.")
    datapipe_adapter_fns = _part("_pipeline.adapters", "The adapters; None without any.")
    reading_service = _part("_pipeline.service", "The copy of the service that runs the graph; None without one.")
    reading_service_state = _part("_pipeline.service_state", "The service's part of a loaded state.")
    valid_iterator_id = _part("_run.delivery.valid", "The number of the valid iterator; None before the first one.")
    _datapipe_iter = _part("_run.delivery.source")
    _reset_iter = _part("_run.delivery.begun", "Whether the next `iter` begins an epoch.")
    _is_paused = _part("_run.is_paused")
    _pause = _part("_run.pause", "The function that pauses the loader.")
    _resume = _part("_run.resume", "The function that resumes the loader after a pause.")
    _seed_generator = _part("_seeds.generator")
    _initial_seed_generator = _part("_seeds.initial")
    _terminated = _part("_ending.has_begun")

    @property
    def _datapipe_before_reading_service_adapt(self) -> Any:
        """A copy of the graph that the adapters have returned, before the reading service changes it."""
        return self._pipeline.snapshot.copy()

    def _restore_checkpoint_beginning_of_epoch(self) -> None:
        """Makes the next epoch use the seeds of the last epoch.

        To repeat the epoch of a state, load the state and then call this method.
        """
        self._seeds.return_to_beginning(is_restored=True)
        self._run.resume_at = None

    # -- making ------------------------------------------------------------------------------------

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool = False,
        num_workers: int | Literal["auto"] = 0,
        *,
        sampler: Iterable[Any] | None = None,
        drop_last: bool = False,
        collate_fn: Callable[[Any], Any] | None = None,
        seed: int | None = None,
        splits: int | None = None,
        reading_service: ReadingServiceInterface | None = None,
        splits_itself: bool | None = None,
        stats: StatsLevel | None = None,
        stall_warning: float | None = 60.0,
        wait_warning: float | None = 0.3,
        **of_torchs_loader: Never,
    ) -> DataLoader2[Any]:
        """Creates a loader of a dataset, with the usual pipeline: shuffle, shard, batch, collate.

        The indices of a dataset with `__getitem__` are divided among the workers, so each item is loaded once. Each
        worker reads all items of an iterable, or all indices of a sampler, and skips the items of other workers. An
        error is raised if workers read the items in different orders. To read an iterable in one process only, use
        `IterableWrapper(dataset).sharding_round_robin_dispatch()`. Some iterables divide themselves among workers, for
        example the datasets of Hugging Face, webdataset, litdata and mosaicml-streaming. The loader does not divide an
        iterable that already divides its items among the workers. For datasets that the loader divides, items and
        batches are the same for any number of workers.

        Call `set_epoch` of an iterable or a sampler before each epoch. The workers receive the epoch's number only if
        the iterable or sampler has, besides `set_epoch`, an attribute `epoch`. Before you resume inside an epoch, call
        `set_epoch` with the number of the saved epoch.

        Args:
            dataset: an object with a length and `__getitem__`, such as PyTorch's `Dataset`; an iterable that can be
                read several times; a generator function; or a pipe. If a given pipe graph already has a sharding pipe,
                the loader adds none.
            batch_size: items per batch; None, the default, yields single items without collating them.
            shuffle: whether each epoch has a random order; False by default. An iterable is only shuffled within a
                buffer; see `shuffle()`.
            num_workers: number of worker processes; 0 (the default) reads in the main process; "auto" chooses a number
                that suits the CPU cores.
            sampler: the indices to read, for datasets with `__getitem__`, as for `sample_by` of map pipes; None (the
                default) for all indices.
            drop_last: whether to omit a last batch that has fewer than `batch_size` items; False by default.
            collate_fn: a function of a batch, or of an item if `batch_size` is None. With `collate_fn=None`, batches
                become arrays, or tensors if PyTorch is imported.
            seed: the seed of all epochs, as for `seed()`; None draws a seed at random.
            splits: the number of shards of each epoch, for any number of workers and ranks, as for `ShardingPolicy`;
                None (the default) for one shard for each worker.
            reading_service: the service that runs the pipeline, as an alternative to `num_workers`; None by default.
            splits_itself: whether an iterable divides its items among workers; if not, the loader divides the items.
                If `splits_itself` is None, the loader assumes that iterables of some libraries, and iterables that use
                `get_worker_info` and `num_workers`, divide their items. If an iterable is assumed to divide its items
                but does not, workers read the same items, and an error is raised.
            stats, stall_warning, wait_warning: the arguments of `DataLoader2` with these names, with the same defaults.
            of_torchs_loader: not accepted. If you pass an argument of torch's `DataLoader`, the error message names the
                equivalent in this package.

        Returns:
            The loader.

        Raises:
            TypeError: `dataset` is not a dataset, or another argument is unknown or has the wrong type.
            ValueError: a numeric argument is too small, or two arguments exclude each other.

        Example:
            >>> from torchdata.dataloader2 import DataLoader2
            >>> with DataLoader2.from_dataset(range(5), batch_size=2, num_workers=2, collate_fn=list) as loader:
            ...     len(loader), list(loader)
            (3, [[0, 1], [2, 3], [4]])
        """
        refuse_arguments(of_torchs_loader, cls.from_dataset, "DataLoader2.from_dataset")
        reading_service = _service_of(num_workers, reading_service, "DataLoader2.from_dataset")
        pipe = pipeline_over(dataset, batch_size, shuffle, sampler, drop_last, collate_fn, splits_itself)
        loader = cls(
            pipe,
            reading_service=InProcessReadingService() if reading_service is None else reading_service,
            splits=splits,
            stats=stats,
            stall_warning=stall_warning,
            wait_warning=wait_warning,
        )
        if seed is not None:
            loader.seed(seed)
        return loader

    # -- reading -----------------------------------------------------------------------------------

    def __iter__(self) -> DataLoader2Iterator[T_co]:
        """Begins an epoch and returns its iterator, which invalidates earlier iterators.

        If no item has been requested from the last iterator, the new iterator continues the same epoch. If another
        thread is waiting for an item of the last epoch, this method waits until the item is computed, and `next` raises
        RuntimeError in that thread.

        Raises:
            RuntimeError: the loader was shut down or lacks a pipe, or this process is a forked child.
            TypeError: the pipe of the loader is invalid; or the loaded state contains the state of a reading service,
                and the loader's service cannot load this state.
        """
        self._ending.take_over_in_child()
        run = self._run
        with self._ending.changing:
            if self._terminated:
                raise RuntimeError("Cannot iterate over the DataLoader as it has already been shut down; make another")
            if self.datapipe is None:
                raise RuntimeError("Please provide datapipe or use load_state_dict to load datapipe from state")
            self._pipeline.require_pipe()
            before = self.valid_iterator_id
            number = 0 if before is None else before + 1
            if run.delivery.begun:
                if before is not None:
                    self.valid_iterator_id = number  # iterators in other threads then get no items of the new epoch
                try:
                    self._keeper.begin()
                except BaseException as error:
                    self.valid_iterator_id = before
                    if isinstance(error, Exception):
                        fold(error)
                    raise
            run.limit(False)
            self.valid_iterator_id = number
            return DataLoader2Iterator(self, number)

    def __len__(self) -> int:
        """Returns the number of items of an epoch, without starting workers.

        The result counts the items of all workers. With a `DistributedReadingService`, the result is the
        smallest number of items of any rank, because all ranks end an epoch after the same number of items.

        Raises:
            TypeError: the number of items is unknown: a pipe lacks a length, a function of the service may change the
                graph, or the service does not describe how it divides the items.
        """
        return self._pipeline.length()

    def __bool__(self) -> bool:
        return True  # a loader is true even if its length is 0

    def seed(self, seed: int) -> None:
        """Sets the seed of all following epochs.

        Args:
            seed: an integer from 0 to 2**64 - 1.

        Raises:
            TypeError: the seed is not an integer.
            ValueError: the seed is out of range.
        """
        self._seeds.set_user_seed(check_seed(seed))

    # -- states ------------------------------------------------------------------------------------

    def state_dict(self, *, items_ago: int = 0, with_pipe: bool | None = None) -> dict[str, Any]:
        """Returns the state of the loader, for `load_state_dict` or `from_state`.

        You may call `state_dict` at any time: between items, before the first or after the last item, while the loader
        is paused, in another thread or in a signal handler. `state_dict` does not change the loader. A loader that
        resumes from the state yields the remaining items in the same order, and then the same later epochs. After the
        last item, a state belongs to the same epoch until `StopIteration` is raised. After `StopIteration` or an error,
        the state belongs to the next epoch.

        The state is a dict of plain data with checksums. `torchdata.dataloader2.describe(state)` shows a state's
        contents.

        Args:
            items_ago: the number of items that you requested and have not used yet, and that a resumed loader yields
                again; 0 by default.
            with_pipe: whether the state contains the pipe, which only `from_state` needs. By default (None), the pipe
                is included if its pickle has at most 1 MiB.

        Raises:
            RuntimeError: the loader lacks a pipe; or an item is being computed, and the loader has `in_order=False` and
                pipes in the main process that combine items.
            TypeError: `with_pipe` is True and the pipe cannot be pickled (the message names the attribute), or the
                loader was created with an object that is not a pipe.
            ValueError: fewer than `items_ago` items were delivered in this epoch.

        Example:
            >>> from torchdata.dataloader2 import DataLoader2
            >>> from torchdata.datapipes.iter import IterableWrapper
            >>> loader = DataLoader2(IterableWrapper(range(4)))
            >>> next(iter(loader))
            0
            >>> state = loader.state_dict()
            >>> resumed = DataLoader2(IterableWrapper(range(4)))
            >>> resumed.load_state_dict(state)
            >>> list(resumed)
            [1, 2, 3]
        """
        ago = check_int("state_dict", "items_ago", items_ago, least=0)
        return self._keeper.take(ago, with_pipe, has_begun=self.valid_iterator_id is not None)

    def load_state_dict(self, state_dict: dict[str, Any], *, strict: bool = True, allow_pickle: bool = True) -> None:
        """Resumes from a state; no item of this loader may have been requested before.

        If the loader has a pipe, its graph must have the same pipes, functions and parameters as the graph of the saved
        loader. The data that the pipes read must have the same kind and length as in the saved loader. A loader without
        a pipe uses the pipe in the state, and applies its own adapters. If this loader already has an iterator, the
        iterator resumes from the state, too. Batch sizes, and the adapters `ShardingPolicy` and `Shuffle`, may differ
        from the saved run only if the state was saved between two epochs. A state of torchdata 0.9 contains no position
        inside an epoch, so the epoch starts again with the seed of the state, and a UserWarning is issued.

        The number of workers may differ from the number in the saved run. If the states of all ranks are given, the
        number of ranks may differ from the number in the saved run, too. The remaining items, their order and the
        random numbers stay the same, because each worker runs one or more of the original shards. After the resumed
        epoch, each epoch has one shard for each worker.

        Args:
            state_dict: a result of `state_dict`, or a dict of the states of all ranks, by rank.
            strict: whether a different pipeline is an error, and whether recomputed items must equal the original
                items; True by default. If `strict` is False, only the classes of the pipes must be the same as in the
                saved loader.
            allow_pickle: whether values that need pickle are unpickled; unpickling may run any code. True by default.
                If `allow_pickle` is False, a value that needs pickle raises an error that names the pipe, and a loader
                without a pipe cannot load the state.

        Raises:
            RuntimeError: an item was requested before, or the loader was shut down.
            TimeoutError: a thread that reads ahead for an earlier iterator does not end.
            TypeError, ValueError: `state` is not a state of a loader, is damaged, has another version, belongs to
                another pipeline, needs missing modules, or contains values that must not be unpickled. A `TypeError` or
                `ValueError` leaves the loader unchanged.
        """
        with self._ending.changing:
            if self._terminated:
                raise RuntimeError("Cannot load a state into the DataLoader as it has already been shut down")
            self._keeper.load(state_dict, strict, allow_pickle)

    @classmethod
    def from_state(
        cls, state: dict[str, Any], reading_service: ReadingServiceInterface | None, *, strict: bool = True
    ) -> DataLoader2[Any]:
        """Creates a loader with the pipe of a state, and resumes from the state.

        Args:
            state: a result of `state_dict`, or a dict of the states of all ranks, by rank. The state is unpickled, so
                load only states that you trust.
            reading_service: the service that runs the graph, and loads the state of the saved service; with None, the
                graph runs in this process.
            strict: whether recomputed items must equal the original items; True by default.

        Returns:
            The loader.

        Raises:
            TypeError, ValueError: `state` is not a state of a loader, is damaged, has another version, needs missing
                modules, or contains no pipe.
        """
        found, positions = read(state)
        loader = cls(unpacked_pipe(found), None, reading_service)
        loader._keeper.set(found, strict, positions)
        if found.is_of_0_9:
            warn_of_0_9(stacklevel=2)
        return loader

    # -- the end -----------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Ends the epoch and the reading service. After the shutdown, the loader cannot be iterated.

        This method waits up to 2 s for the threads of pipes in the main process. A thread that needs more than 2 s to
        end may still draw random numbers until its current item is done.

        You may call `shutdown` several times, and from several threads. A thread that is reading the loader gets a
        RuntimeError. If Ctrl-C interrupts `shutdown`, the next call continues the shutdown. A forked child that has
        inherited the loader does not end the loader's workers.
        """
        if not self._ended:
            try:
                self._ending.run()
            finally:
                self._ended = self._ending.is_over

    def _finalize(self, interrupted: bool) -> None:
        """Shuts the loader down when it is deleted. If Ctrl-C was pressed, KeyboardInterrupt is raised after the
        shutdown."""
        if interrupted or not self.__dict__.get("_ended", True):
            with InterruptsDeferred(later=True, noted=interrupted):
                if not self.__dict__.get("_ended", True):
                    self._ending.is_noted = False
                    self.shutdown()

    def __enter__(self) -> DataLoader2[T_co]:
        return self

    def __exit__(self, exc_type: object, exc_value: BaseException | None, traceback: object) -> None:
        try:
            self.shutdown()
        except Exception as error:
            if exc_value is None or is_of_handler(error):
                raise
            exc_value.add_note(f"After that, shutting the loader down failed, too: {error!r}")

    # -- copies ------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Returns the data for creating an unstarted copy of the loader, including the attributes of a subclass.

        The copy and the loader share no object that is modified later. If the loader has loaded a state and has not
        begun an epoch since, the copy resumes from this state.
        """
        pipeline, run, seeds = self._pipeline, self._run, self._seeds
        loaded: Any = pipeline.service_state, run.resume_at, run.saved_positions, self._keeper.loaded
        if self.valid_iterator_id is not None:
            seeds, loaded = Seeds(), None
            seeds.seed = self._seeds.seed
        made_of = pipeline.snapshot, pipeline.adapters, pipeline.passed_service, run.recorder.copied(), seeds, loaded
        return {**{name: value for name, value in list(vars(self).items()) if name not in _OWN}, "_made_of": made_of}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._ended = True  # this attribute stays True until all attributes are set
        graph, adapters, service, recorder, seeds, loaded = state["_made_of"]
        pipeline = Pipeline(graph, adapters, service, _serialized, is_adapted=True)
        self._set_up(pipeline, copy.copy(seeds), recorder)
        if loaded is not None:
            pipeline.service_state, self._run.resume_at, self._run.saved_positions, self._keeper.loaded = loaded
        vars(self).update({name: value for name, value in state.items() if name != "_made_of"})

    # -- introspection -----------------------------------------------------------------------------

    def _groups(self) -> list[Any]:
        processes = None
        if self.reading_service is not None and not self._terminated:
            processes = self._pipeline.contract.engine_processes()
        return [] if processes is None else [processes]

    def picture(self) -> Picture:
        """Returns a drawing of the loader's processes with their counters; before the first epoch, a drawing of the
        pipeline. See `stats().picture()`."""
        from torchdata._drawing.picture import Picture

        return Picture(self._torchdata_graph())

    def __repr__(self) -> str:
        from torchdata._observe.show.words import described

        if "_run" not in self.__dict__:
            return "<DataLoader2, not made>"
        service = described(self.reading_service)
        return f"<DataLoader2 of {self._pipeline.name}, read by {service}, {self._state_in_words()}>"

    def _state_in_words(self) -> str:
        if self._terminated:
            return "shut down"
        if self.valid_iterator_id is None:
            return "not begun"
        if self._run.is_paused:
            return f"paused in epoch {self._run.epochs}"
        return f"in epoch {self._run.epochs}" if self._run.is_iterating else f"between epochs, after {self._run.epochs}"

    def _repr_html_(self) -> str:
        from torchdata._observe.show.html import html_of_loader

        return html_of_loader(self)

    def _torchdata_graph(self) -> DrawnGraph:
        from torchdata._observe.show.graph import graph_of_stats
        from torchdata.datapipes._pipe.showing import graph_of_pipe

        stats = self.stats()
        return graph_of_stats(stats) if stats.pipes else graph_of_pipe(self.datapipe)


def _serialized(snapshot: GraphTemplate) -> bytes:
    """Calls `serialize_datapipe` by its name in this module, because existing tests replace the function there."""
    return serialize_datapipe(snapshot)


def _service_of(num_workers: int | Literal["auto"], service: Any, owner: str) -> Any:
    """Raises TypeError if `service` is not a reading service, and ValueError if `num_workers` is also given."""
    if service is not None and num_workers:
        raise ValueError(f"{owner}: give num_workers or a reading_service, not both")
    if service is None and not (isinstance(num_workers, int) and num_workers == 0):
        return MultiProcessingReadingService(num_workers)
    require_service(service)
    return service
