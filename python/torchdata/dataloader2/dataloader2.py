"""`DataLoader2`: a pipe graph, the adapters that change it and the reading service that runs it.

Role: owns a copy of the graph and of the service, keeps the one valid iterator, and shuts the service down, whatever
happens. Runs in the main process, in any thread: one that begins an epoch, loads a state or shuts the loader down
excludes the others that do. Its parts are the pipeline, the seeds, the run of the epochs, the keeper of states and the
recorder of statistics; each owns what is its own, and the loader locks, ends and shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, TypeAlias, TypeVar, overload

from torchdata._engine.processes.interrupts import InterruptsDeferred
from torchdata._native import Finalized
from torchdata._observe.observed import ObservedLoader
from torchdata._observe.stats.recorder import Recorder, StatsLevel
from torchdata._reporting import fold
from torchdata.dataloader2._arguments import adapter_list, refuse_arguments, require_pipe, service_of
from torchdata.dataloader2._checkpointing import StateKeeper, number_of_items, unpacked_pipe, warn_of_0_9
from torchdata.dataloader2._copying import made_of
from torchdata.dataloader2._datasets import pipe_over, pipeline_over
from torchdata.dataloader2._ending import Ending
from torchdata.dataloader2._epochs import EpochRun
from torchdata.dataloader2._iterator import DataLoader2Iterator
from torchdata.dataloader2._parts import part
from torchdata.dataloader2._pipeline import Pipeline
from torchdata.dataloader2._rank_states import checked
from torchdata.dataloader2._seeds import Seeds
from torchdata.dataloader2._skipping import Skipping
from torchdata.dataloader2.adapter import Adapter
from torchdata.dataloader2.graph import DataPipe
from torchdata.dataloader2.graph.serialization import Snapshot
from torchdata.dataloader2.graph.serialization import serialize_datapipe as serialize_datapipe
from torchdata.dataloader2.random.seed_generator import check_seed
from torchdata.dataloader2.reading_service import (
    InProcessReadingService,
)
from torchdata.dataloader2.services.interface import (
    ReadingServiceInterface,
)
from torchdata.dataloader2.state.layout import RANDOMNESS_STATE_KEY_NAME as RANDOMNESS_STATE_KEY_NAME
from torchdata.dataloader2.state.layout import READING_SERVICE_STATE_KEY_NAME as READING_SERVICE_STATE_KEY_NAME
from torchdata.dataloader2.state.layout import SERIALIZED_DATAPIPE_KEY_NAME as SERIALIZED_DATAPIPE_KEY_NAME
from torchdata.dataloader2.state.layout import is_of_0_9, unpack_randomness
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe

if TYPE_CHECKING:
    from torchdata._drawing.graph import Graph
    from torchdata._drawing.picture import Picture

__all__ = ["DataLoader2", "DataLoader2Iterator"]

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
AdapterFn: TypeAlias = Adapter | Callable[[DataPipe], DataPipe]

#: The attributes that a loader makes for itself; those of a subclass its copies have, too.
_OWN = frozenset({"_ended", "_ending", "_keeper", "_pipeline", "_recorder", "_run", "_seeds"})


class DataLoader2(ObservedLoader, Finalized, Generic[T_co]):
    """Loads data through a pipe graph: iterate it once per epoch.

    To type checkers, the loader of an `IterDataPipe[T]` or a `MapDataPipe[T]` is a `DataLoader2[T]`. It is a
    `DataLoader2[Any]` of any other object, and if adapters are functions, which may change the items.

    The loader works on copies of the pipes and of the service, so both can be used again elsewhere. The data in the
    pipes is not copied: in the main process items come from the objects that the pipes were made of, and forked workers
    inherit these. Only the start methods "spawn" and "forkserver" pickle them, once for all workers. An error
    in a pipe, a `break` or a second `iter()` end the epoch, not the loader: the next `iter()` begins a new
    epoch. Shut it down with `shutdown()` or by using it as a context manager. To pause after so many items, use
    `limit()` and `resume()` of the iterator, `iter(loader)`: the loader itself has neither.

    Threads may share an iterator, whose items then go to one of them each. A copy, by `copy` or pickle, is a loader of
    its own that has not begun.

    Args:
        datapipe: the last pipe of the graph, or a data set: what has a length and is read by index, such as PyTorch's
            `Dataset`, or an iterable that can be read again and again. A `MapDataPipe` is read from index 0 on, and so
            is such a data set; workers share its items only behind a `sharding_filter`, which `from_dataset` adds.
            None only if `load_state_dict` follows. Anything else is an error when the
            loader is used.
        datapipe_adapter_fn: an adapter or several; applied to the copy of the graph, in their order.
        reading_service: how the graph is run; None reads it in this process, with the pipes' own seeds.
        num_workers: number of worker processes, in the place of a `reading_service`: the short form of
            `reading_service=MultiProcessingReadingService(num_workers)`.
        stats: what is counted: "counts", which costs nothing, or "full", which takes the time of each pipe, too; None
            for what the environment variable `TORCHDATA_STATS` says, or else "counts". See `stats()`.
        stall_warning: after how many seconds in which `next` got no item a `RuntimeWarning` says who waits for whom,
            and where; None: never.
        wait_warning: the share of an epoch that the program may wait for the loader. The first epoch of 10 seconds or
            more that waits longer gives a `RuntimeWarning` with the verdict of `diagnose()`. None, or
            `TORCHDATA_WAIT_WARNING=0` in the environment: no warning.
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
        *,
        num_workers: int | Literal["auto"] = 0,
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
        stats: StatsLevel | None = None,
        stall_warning: float | None = 60.0,
        wait_warning: float | None = 0.3,
        **of_torchs_loader: Never,
    ) -> None:
        self._ended = True  # a loader whose construction fails has nothing to shut down
        refuse_arguments(of_torchs_loader, DataLoader2)
        reading_service = service_of(num_workers, reading_service, "DataLoader2")
        recorder = Recorder(stats, stall_warning, wait_warning)
        datapipe = pipe_over(datapipe)
        if isinstance(datapipe, MapDataPipe):
            datapipe = datapipe.to_iter_datapipe()
        if datapipe is not None and datapipe_adapter_fn is None:  # which could make a pipe of something else
            require_pipe(datapipe)
        adapters, service = adapter_list(datapipe_adapter_fn), Snapshot(reading_service)  # one in use serves no other
        self._set_up(Pipeline(Snapshot(datapipe), adapters, service, _serialized), Seeds(), recorder)

    def _set_up(self, pipeline: Pipeline, seeds: Seeds, recorder: Recorder) -> None:
        """Makes what belongs to a loader that has not begun. It is open from then on."""
        self._pipeline, self._seeds, self._recorder = pipeline, seeds, recorder
        self._run = EpochRun(pipeline, seeds, recorder)
        self._keeper = StateKeeper(pipeline, seeds, self._run)
        self._ending = Ending(self, pipeline, self._run, self._keeper, recorder)
        self._ended = False  # `Finalized` looks at this

    # -- what others know by these names -----------------------------------------------------------

    datapipe = part("_pipeline.datapipe", "The last pipe of the graph that is read: after adapters and the service.")
    datapipe_adapter_fns = part("_pipeline.adapters", "The adapters; None without any.")
    reading_service = part("_pipeline.service", "The copy of the service that runs the graph; None without one.")
    reading_service_state = part("_pipeline.service_state", "The service's part of a loaded state.")
    valid_iterator_id = part("_run.delivery.valid", "The number of the valid iterator; None before the first one.")
    _datapipe_iter = part("_run.delivery.source")
    _reset_iter = part("_run.delivery.begun", "Whether the next `iter` begins an epoch.")
    _is_paused = part("_run.is_paused")
    _pause = part("_run.pause", "The function that pauses the loader.")
    _resume = part("_run.resume", "The function that resumes the loader after a pause.")
    _seed_generator = part("_seeds.generator")
    _initial_seed_generator = part("_seeds.initial")
    _terminated = part("_ending.has_begun")

    @property
    def _datapipe_before_reading_service_adapt(self) -> Any:
        """A copy of the graph as it was after the adapters and before the service."""
        return self._pipeline.snapshot.copy()

    def _restore_checkpoint_beginning_of_epoch(self) -> None:
        """Makes the next epoch begin with the seeds with which the last one began.

        To be called after a state was loaded, to run the epoch again in which the state was saved.
        """
        self._seeds.repeat()
        self._run.place = None

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
        reading_service: ReadingServiceInterface | None = None,
        stats: StatsLevel | None = None,
        stall_warning: float | None = 60.0,
        wait_warning: float | None = 0.3,
        **of_torchs_loader: Never,
    ) -> DataLoader2[Any]:
        """A loader of a data set, with the usual pipeline: order, share, batch, collate.

        Workers divide a data set that is read by index by its indices, so each item is loaded once. An iterable is read
        whole in each worker, of which each takes its share, so its order must be the same in all workers: one that
        shuffles needs a seed that they share, and different orders are an error. To have one process read it, give
        `IterableWrapper(dataset).sharding_round_robin_dispatch()`. An iterable that divides itself among workers, as
        those of Hugging Face, webdataset, litdata and mosaicml-streaming, is read by each worker in part. But for the
        latter, items come in the same order, and in the same batches, whatever the number of workers.

        If an iterable or a sampler has a method `set_epoch` and an attribute `epoch`, workers are told the epoch that
        you have set, before each epoch. Set the same epoch before you go on from a state that was saved inside one.

        Args:
            dataset: what has a length and is read by index, such as PyTorch's `Dataset`; an iterable that can be read
                again and again; a generator function; or a pipe. One that has a sharding pipe gets no other.
            batch_size: items per batch; None yields single items, uncollated.
            shuffle: whether each epoch has a random order of its own: of all items by index, or of those of an iterable
                through the buffer of `shuffle()`.
            num_workers: number of worker processes; 0 reads in this process; "auto" chooses once, by the cores.
            sampler: gives the indices to read, for data sets that are read by index; see `sample_by` of map pipes.
            drop_last: whether a last batch with fewer items is left out.
            collate_fn: a function of a batch, or of an item if `batch_size` is None. None makes arrays (with PyTorch
                loaded, tensors) of batches.
            seed: from which all epochs follow, as by `seed()`.
            reading_service: how the pipeline is run, in the place of `num_workers`.
            stats: what is counted, as in `DataLoader2`; so are the next two.
            stall_warning: after how many seconds without an item a warning says where the loader hangs.
            wait_warning: the share of an epoch that the program may wait for the loader without a warning.

        Raises:
            TypeError: `dataset` is none, or another argument is of another kind.
            ValueError: a number is too small, or two arguments exclude each other.

        Example:
            >>> from torchdata.dataloader2 import DataLoader2
            >>> with DataLoader2.from_dataset(range(5), batch_size=2, num_workers=2, collate_fn=list) as loader:
            ...     len(loader), list(loader)
            (3, [[0, 1], [2, 3], [4]])
        """
        refuse_arguments(of_torchs_loader, cls.from_dataset, "DataLoader2.from_dataset")
        reading_service = service_of(num_workers, reading_service, "DataLoader2.from_dataset")
        pipe = pipeline_over(dataset, batch_size, shuffle, sampler, drop_last, collate_fn)
        if reading_service is None:
            reading_service = InProcessReadingService()
        loader = cls(
            pipe,
            reading_service=reading_service,
            stats=stats,
            stall_warning=stall_warning,
            wait_warning=wait_warning,
        )
        if seed is not None:
            loader.seed(seed)
        return loader

    # -- reading -----------------------------------------------------------------------------------

    def __iter__(self) -> DataLoader2Iterator[T_co]:
        """Begins an epoch and returns its iterator, which invalidates the ones before.

        If no item was asked of the last iterator, the new one takes over its epoch.

        A thread that reads the epoch before gets a RuntimeError once the item that it is at has come, which is waited
        for.

        Raises:
            RuntimeError: the loader was shut down, or has no pipe; or this process is a forked child of the one whose
                worker processes run it.
            TypeError: what the loader was given is no pipe; or a reading service's state was loaded, and the service
                cannot take it.
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
                    self.valid_iterator_id = number  # other threads' iterators read nothing of the epoch that begins
                try:
                    run.begin()
                except BaseException as error:
                    self.valid_iterator_id = before
                    if isinstance(error, Exception):
                        fold(error)
                    raise
            run.is_limited = False
            self.valid_iterator_id = number
            return DataLoader2Iterator(self, number)

    def __len__(self) -> int:
        """The number of items of an epoch. Asking starts nothing.

        Each worker's share is counted, and of all ranks the least, because they end together; that takes for granted
        that the ranks read the same data.

        Raises:
            TypeError: it is not known: a pipe does not know its length, a function of the service may change the graph,
                or the service does not say how it shares out the items.
        """
        return self._pipeline.length()

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
        self._seeds.give(check_seed(seed))

    def skip(self, count: int) -> int:
        """Passes over the next items of the epoch that runs, or of a new one: over bad data, for one.

        If pipes can seek, the items are not made: of ranges, sequences, map pipes (shuffled ones, too) and Parquet's
        row groups, with pipes behind them that make each item of one, or batches. Of other sources what they read is
        made, and the functions behind that are not called. Workers seek if they could go on with another number of
        workers (see `load_state_dict`), and items are taken in order. If the loader has no length they make the item
        behind these, to see whether the epoch goes on, and all of them if it does not. Elsewhere the items are made
        and dropped. Functions that are not called draw nothing from the global generators.

        With ranks the items are those that this rank would be given. Each rank passes over its own, so all of them are
        to call it at the same step with the same number; r ranks leave out r times as many items of the data set. Where
        they have n workers each, up to n - 1 items are made and dropped.

        The next `iter` goes on behind them.

        Args:
            count: how many items.

        Returns:
            How many there were: fewer if the epoch has ended.

        Raises:
            TypeError: `count` is no integer.
            ValueError: `count` is negative.
        """
        count, run = number_of_items("count", count), self._run
        if run.delivery.cut:
            run.position.go_on_cut()
        if run.delivery.begun and not run.is_iterating:
            iterator = iter(self)
        else:
            self.valid_iterator_id = self.valid_iterator_id or 0
            iterator = DataLoader2Iterator(self, self.valid_iterator_id)
        skipped = Skipping(run).seek_over(count) if count and run.is_iterating else 0
        while skipped < count and next(iterator, self) is not self:
            skipped += 1
        if run.is_iterating:
            run.delivery.begun = False  # the next `iter` takes this epoch over
        return skipped

    # -- states ------------------------------------------------------------------------------------

    def state_dict(self, *, items_ago: int = 0, with_pipe: bool | None = None) -> dict[str, Any]:
        """The state of the loader, from which `load_state_dict` or `from_state` make one that goes on alike.

        May be called at any time: between two items, before the first and after the last one, while the loader is
        paused, from another thread or a signal handler. It changes nothing, and nothing changes what it returns. The
        remaining items, their order, and all later epochs of the loader that goes on are those of this one. After the
        last item, that is the rest of the epoch, which is empty, until its end was reached (`StopIteration`), and the
        next epoch from then on. So it is if an error has ended the epoch. After `shutdown()` it is that of before.

        - `serialized_datapipe`: the pipe after the adapters and before the reading service, as bytes, or None.
        - `pipeline`: what it is made of, by which another one is known, without the secrets among its arguments.
        - `reading_service_state`: what the service's `checkpoint` returned, or None.
        - `randomness_state`: the seed and the generators, now and at the beginning of the epoch.
        - `iteration_state`: the place inside the epoch; None between two epochs that follow from their seeds.
        - `ranks`: the rank, how many there are, and whether the epoch began without any; absent without ranks.
        - `version`: of this layout.
        - `checksums`: of the others, by which damage is noticed before anything is unpickled.

        All of it is plain data.

        Args:
            items_ago: as of how many items ago, for who has asked for so many items that were not used yet.
            with_pipe: whether the state holds the pipe itself. `from_state` needs the pipe; `load_state_dict` of a
                loader that has the pipe does not. None: if the pipe can be pickled, to at most 1 MiB.

        Raises:
            RuntimeError: the loader has no pipe.
            TypeError: `with_pipe` is True, and the pipe cannot be pickled: the message names the attribute at fault.
                Or the loader reads something that is not a pipe.
            ValueError: so many items were not given in this epoch.
        """
        ago = number_of_items("items_ago", items_ago)
        return self._keeper.take(ago, with_pipe, has_begun=self.valid_iterator_id is not None)

    def load_state_dict(self, state_dict: dict[str, Any], *, strict: bool = True, allow_pickle: bool = True) -> None:
        """Makes this loader, of which no item may have been asked for, go on where a state was saved.

        The loader's own pipe is read, if it has one, which must be made of the same pipes, functions and parameters,
        and read data of the same kind and length; else that of the state, to which the loader's adapters are applied.
        An iterator that was made but not asked for an item yet goes on as one of the loaded loader. The size of
        batches and the settings of the adapters `ShardingPolicy` and `Shuffle` may differ only if the state was saved
        between two epochs.

        A state of torchdata 0.9 holds no position inside an epoch, and does not describe its pipe: the epoch of the
        loader's pipe starts again with the seed of the state, and a UserWarning says so.

        The service may have another number of workers than the one with which the state was saved, and of ranks, where
        the states of all of them are given. The rest of the epoch is then shared anew in its global order. That asks
        for a deterministic pipeline before the sharding, and behind it pipes that are one to one, or `batch(k)` with
        `ShardingPolicy(block=k)`. Else `iter(loader)` raises a ValueError that names the pipe.

        Args:
            state_dict: what `state_dict` returned; or a dictionary of what it returned on all ranks, by rank.
            strict: False loads it into another pipeline, too, as far as its pipes are of the same classes, and does not
                compare what the pipeline makes again with what it made.
            allow_pickle: whether what only pickle can hold is unpickled, which may run any code: load such a state only
                if you trust its writer. False refuses it, and names the pipe at fault. The loader must have its pipe
                then.

        Raises:
            RuntimeError: an item of the loader was asked for before, or it was shut down.
            TimeoutError: a thread that read ahead for the iterator before does not end.
            TypeError, ValueError: this is not the state of a loader, or one of another version, or a damaged one, or
                of another pipeline, or it needs modules that are not here, or holds what must not be unpickled. The
                loader is as it was then.
        """
        with self._ending.changing:
            if self._terminated:
                raise RuntimeError("Cannot load a state into the DataLoader as it has already been shut down")
            self._keeper.load(state_dict, strict, allow_pickle)

    @classmethod
    def from_state(
        cls, state: dict[str, Any], reading_service: ReadingServiceInterface | None, *, strict: bool = True
    ) -> DataLoader2[Any]:
        """A new loader with the pipe of a saved state, which goes on where that was saved.

        Args:
            state: what `state_dict` returned, or that of all ranks, by rank. It is unpickled: load only what you trust.
            reading_service: how the graph is run; takes the service's part of the state, if there is one.
            strict: whether an error says so where the pipeline does not repeat what it did.

        Raises:
            TypeError, ValueError: this is not the state of a loader, or one of another version, or a damaged one, or
                it needs modules that are not here; or it holds no pipe.
        """
        state, places = checked(state)
        datapipe, randomness = unpacked_pipe(state), unpack_randomness(state)
        loader = cls(datapipe, None, reading_service)
        loader._keeper.set(state, randomness, strict, places)
        if is_of_0_9(state):
            warn_of_0_9(stacklevel=2)
        return loader

    # -- the end -----------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Ends the epoch and the reading service; the loader cannot be iterated afterwards.

        Threads in which pipes read ahead here end after the item that they are at. That is waited for, up to 2 s, so
        that they draw no random numbers from then on, which may be those of another loader.

        May be called any number of times, by several threads at once, all of which return when it is done. A thread
        that reads gets a RuntimeError. Where Ctrl-C cut it off, the next call goes on. In a forked child, which only
        inherited the loader, the processes of the service are left alone.
        """
        if not self._ended:
            try:
                self._ending.run()
            finally:
                self._ended = self._ending.is_over

    def _finalize(self, interrupted: bool) -> None:
        """Does the work of `__del__`: shuts down, and has Ctrl-C delivered afterwards, also one that cut it off
        before."""
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
            if exc_value is None:
                raise
            exc_value.add_note(f"After that, shutting the loader down failed, too: {error!r}")

    # -- copies ------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """The parts of a copy (see `_copying`), and the attributes of a subclass."""
        parts = made_of(self._run, self._keeper, self.valid_iterator_id is not None)
        return {**{name: value for name, value in list(vars(self).items()) if name not in _OWN}, "_made_of": parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._ended = True  # until it is whole
        self._set_up(*state["_made_of"].parts(_serialized))
        state["_made_of"].load_into(self._run, self._keeper)
        vars(self).update({name: value for name, value in state.items() if name != "_made_of"})

    # -- what it says of itself --------------------------------------------------------------------

    def _epochs_ended(self) -> int:
        return 0 if self._run.is_iterating else self._run.epochs

    def worker_pids(self) -> list[int]:
        """See `ObservedLoader`."""
        processes = None
        if self.reading_service is not None and not self._terminated:
            processes = self._pipeline.contract.engine_processes()
        return [] if processes is None else processes.pids

    def picture(self) -> Picture:
        """A drawing of the loader's processes and counts; before the first epoch, of its pipeline. See
        `stats().picture()`."""
        from torchdata._drawing.picture import Picture

        return Picture(self._torchdata_graph())

    def __repr__(self) -> str:
        from torchdata._observe.show.words import described

        if "_run" not in self.__dict__:
            return "<DataLoader2, not made>"  # its construction failed, or is under way
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

    def _torchdata_graph(self) -> Graph:
        from torchdata._observe.show.graph import graph_of_stats
        from torchdata.datapipes._pipe.showing import graph_of_pipe

        stats = self.stats()
        return graph_of_stats(stats) if stats.pipes else graph_of_pipe(self.datapipe)


def _serialized(snapshot: Snapshot) -> bytes:
    """By the function that stands in this module as `serialize_datapipe`, where old tests patch it."""
    return serialize_datapipe(snapshot)
