"""PyTorch's `DataLoader` on this package's engine, with a state that can be saved at any batch.

`StatefulDataLoader` derives from PyTorch's class, which checks the constructor's arguments and stores them as
attributes. The iterators are classes of this package (`_in_process`, `_with_workers`).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import default_collate, default_convert, get_worker_info

from torchdata._engine.workers.group import Group
from torchdata._engine.workers.hangs import Survived, check_restarts
from torchdata._handlers import raise_if_of_handler
from torchdata._observe.observed import ObservedLoader
from torchdata._observe.stats.batches import BatchRecorder
from torchdata._stateful import copied, raise_error
from torchdata.datapipes._pipe.datasets import in_fixed_order
from torchdata.stateful_dataloader._drawing import Drawing, Moments
from torchdata.stateful_dataloader._fitting import StateAt, epoch_of, fitted, set_epoch, shards_of, unstarted_at
from torchdata.stateful_dataloader._in_process import InProcessIterator, ShardsInProcessIterator
from torchdata.stateful_dataloader._iterator import StatefulIterator
from torchdata.stateful_dataloader._layout import dump, parse
from torchdata.stateful_dataloader._order import generators_drawn_by
from torchdata.stateful_dataloader._position import EpochState
from torchdata.stateful_dataloader._reading import EpochReader
from torchdata.stateful_dataloader._skipping import check_on_error
from torchdata.stateful_dataloader._with_workers import RestartingIterator, WorkersIterator
from torchdata.stateful_dataloader.sampler import BatchSampler, RandomSampler

if TYPE_CHECKING:
    from torchdata._observe.stats.recorder import StatsLevel

__all__ = ["StatefulDataLoader", "default_collate", "default_convert", "get_worker_info"]

T_co = TypeVar("T_co", covariant=True)


class _Indexed(Protocol[T_co]):
    def __getitem__(self, index: Any, /) -> T_co: ...


class StatefulDataLoader(ObservedLoader, DataLoader[T_co]):
    """PyTorch's `DataLoader`, with `state_dict` and `load_state_dict`.

    The order of samples, the worker seeds and all arguments are the same as in `torch.utils.data.DataLoader`. A state
    reflects what the program has received: samples that workers have read ahead are neither lost nor repeated. After
    `load_state_dict`, the next loop resumes after the last batch, or begins the next epoch if the last epoch was over.

    Datasets, their iterators, samplers and collate functions that have `state_dict` and `load_state_dict` are saved and
    restored by these methods. Iterable datasets and samplers without `state_dict` are reread from the beginning.

    Threads may share an iterator, and each batch goes to one of the threads. A copy of a loader (by `copy` or pickle)
    is an independent loader that has not begun.

    Args:
        dataset: a map-style or iterable dataset.
        batch_size: the number of samples per batch; None returns single samples; 1 by default.
        shuffle: whether to read a map-style dataset in random order; None (the default) means False.
        sampler: an iterable of indices, instead of `shuffle`; None by default. If the sampler is a set, its indices are
            sorted, because different processes may iterate over a set in different orders.
        batch_sampler: an iterable of lists of indices, instead of `batch_size`, `shuffle`, `sampler` and `drop_last`;
            None by default.
        num_workers: the number of worker processes; 0 (the default) reads in the main process.
        collate_fn: a function that turns a list of samples into a batch; None (the default) for PyTorch's
            `default_collate`.
        pin_memory: whether to copy batches to pinned memory; False by default. If there are workers, a separate thread
            copies the batches to pinned memory.
        drop_last: whether to drop a shorter last batch; False by default.
        timeout: the maximum number of seconds to wait for a batch from a worker; 0 (the default) for no limit.
        worker_init_fn: a function that is called in each worker with the worker's number, after the random generators
            were seeded; None by default.
        multiprocessing_context: the start method of workers, or a multiprocessing context; None for the default of
            Python.
        generator: the generator for the order and the worker seeds; None for PyTorch's global generator.
        prefetch_factor: the number of batches that each worker may read ahead; 2 by default.
        persistent_workers: whether to keep the workers between epochs; False by default.
        pin_memory_device: deprecated by PyTorch; empty by default.
        in_order: whether batches are returned in the order of their indices; True by default. With `in_order=False`,
            batches are returned as soon as they are ready.
        snapshot_every_n_steps: the number of batches between snapshots of datasets and samplers; 1 by default. A state
            is exact even between two snapshots, because a resumed loader rereads and drops the batches after the
            snapshot. Snapshots that take long are taken less often.
        on_worker_exit: what happens if a worker process exits. "error" (the default) raises `WorkerExitedError`.
            "restart" replaces the worker, issues a `RuntimeWarning`, and continues: no batch is lost or repeated, and
            the order does not change. The replacement worker rereads the batches after the last snapshot of the exited
            worker. The third consecutive exit at the same batch always raises `WorkerExitedError`.
        on_timeout: what happens if no batch arrives within `timeout` seconds. "error" (the default) raises
            `WorkerTimeoutError`, which is also PyTorch's `RuntimeError`. "restart" kills and replaces the worker as
            with `on_worker_exit="restart"`, and issues a `RuntimeWarning` with the worker's Python stacks. `on_timeout`
            does not apply to workers that exit. Each kill at the same batch doubles the time limit for that batch. The
            time limit for a worker's first batch is at least a minute.
        patience: with `on_timeout="restart"`, the time limit for busy workers in seconds, instead of `timeout`. A
            worker is busy if, in the last `timeout / 2` seconds, its threads were running or waiting for a processor
            for at least a tenth of the time. With `patience=None`, `timeout` applies to all workers.
        on_error: what happens if `dataset[index]` or `__getitems__` raises an exception. With `on_error="raise"` (the
            default), the exception is raised, and the batch is lost. With `on_error="skip"`, the sample is omitted, so
            the batch becomes shorter; empty batches are not returned. To skip samples after `__getitems__` has raised
            an exception, the loader calls `__getitems__` for each index of the batch separately. After `__next__` of an
            iterable dataset's iterator has raised an exception, the loader calls `__next__` for the next sample. A
            generator ends when it raises an exception, so `on_error="skip"` does not accept datasets with a generator
            function `__iter__`. Exceptions of `collate_fn`, `MemoryError`, `KeyboardInterrupt`, `SystemExit` and worker
            exits are never skipped. The state contains the number of skipped samples per kind of exception, and a
            `RuntimeWarning` reports these numbers after an epoch.
        error_limit: the number (or, as a float, the fraction) of samples that all workers together may skip per epoch
            before `TooManySkipped` is raised; None for no limit. If `error_limit` is a fraction, it is not checked
            before the 100th sample, except at the end of the epoch.
        error_log: the path of a file; a JSON line is appended for each skipped sample of a returned batch: `epoch` (of
            this loader, from 0), `worker` (its number, or null), `dataset` (your code that reads samples, with its file
            and line), `index`, `error`, `message` and `notes`. For an iterable dataset, the field `index` is the number
            of the sample in the worker's iterator, from 0; it is null if the dataset has loaded a state within an
            epoch. None for no file.
        stats: how often batches are timed. "counts" times a few batches, which costs less than 1 % of the time; "full"
            times every batch. With `stats=None`, the environment variable `TORCHDATA_STATS` is used, and "counts" if it
            is not set. See `stats()`.
        wait_warning: the fraction of an epoch that the program may spend waiting for batches; 0.3 by default. If the
            program waits for more than the fraction `wait_warning` of an epoch of at least 10 seconds, a
            `RuntimeWarning` is issued once. This warning about waiting names the slow function with its file and line.
            `wait_warning=None` or the environment variable `TORCHDATA_WAIT_WARNING=0` disables the `RuntimeWarning`.
    Raises:
        ValueError: arguments are out of range, or exclude each other.
        TypeError: `multiprocessing_context` is not valid, or `error_limit` is not a number.
        TooManySkipped: while iterating, more than `error_limit` samples have raised an exception; this error is a
            `RuntimeError`.

    Example:
        >>> from torchdata.stateful_dataloader import StatefulDataLoader
        >>> loader = StatefulDataLoader(range(6), batch_size=2)
        >>> batches = iter(loader)
        >>> next(batches)
        tensor([0, 1])
        >>> state = loader.state_dict()
        >>> loader = StatefulDataLoader(range(6), batch_size=2)
        >>> loader.load_state_dict(state)
        >>> list(loader)
        [tensor([2, 3]), tensor([4, 5])]
    """

    _iterator: StatefulIterator | None

    def __init__(
        self,
        dataset: Dataset[T_co] | _Indexed[T_co] | Iterable[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
        on_worker_exit: Literal["error", "restart"] = "error",
        on_timeout: Literal["error", "restart"] = "error",
        patience: float | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        error_limit: int | float | None = None,
        error_log: str | os.PathLike[str] | None = None,
        stats: StatsLevel | None = None,
        wait_warning: float | None = 0.3,
    ) -> None:
        check_restarts("StatefulDataLoader", on_worker_exit, on_timeout, timeout, patience)
        check_on_error(on_error, error_limit, error_log, dataset)
        if num_workers == "auto":  # type: ignore[comparison-overlap]
            raise TypeError(
                "StatefulDataLoader: num_workers must be an integer, but got 'auto'; the loader that chooses by itself "
                'is DataLoader2.from_dataset(dataset, batch_size, num_workers="auto")'
            )
        self._recorder = BatchRecorder(stats, wait_warning)
        any_dataset: Any = dataset  # PyTorch's loader accepts any object with samples, although its annotation does not
        super().__init__(
            any_dataset,
            batch_size,
            shuffle,
            in_fixed_order(sampler),
            in_fixed_order(batch_sampler),
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.on_worker_exit, self.on_timeout, self.patience = on_worker_exit, on_timeout, patience
        self.on_error, self.error_limit = on_error, error_limit
        self.error_log = None if error_log is None else os.fspath(error_log)
        #: The number of epochs that have begun, which is written to `error_log`.
        self._epochs_begun = 0
        # Samplers of this package replace PyTorch's samplers without changing the order. The samplers of this package
        # are set through `vars`, because PyTorch's loader refuses the assignment of a sampler.
        own = vars(self)
        if sampler is None and type(self.sampler) is torch.utils.data.RandomSampler:
            own["sampler"] = RandomSampler(self.sampler.data_source, generator=generator)
        if batch_sampler is None and self.batch_sampler is not None:
            own["batch_sampler"] = BatchSampler(self.sampler, self.batch_size or 1, self.drop_last)
        self._loaded: Any = None
        self._is_strict = True
        #: While an epoch begins: a function that creates the state from before the epoch, and the generators' states at
        #: that time. If the epoch fails to begin, the generators' states are replaced by None, so that a saved state
        #: contains the current states.
        self._before: tuple[StateAt, Moments | None] | None = None
        #: The generators for orders and seeds.
        self._drawing = Drawing(self, generators_drawn_by(self._index_sampler))
        #: The reader of a loader without workers, which all epochs share.
        self._reader: EpochReader | None = None

    # -- iterating -----------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        """Returns an iterator over an epoch, or over the remaining batches of the loaded state's epoch."""
        if self._loaded is not None:
            state = fitted(parse(self._loaded), self, self._is_strict)
            self._iterator = self._get_iterator(state)
            self._loaded = self._before = None
            return self._iterator
        last = self._iterator
        is_kept = last is not None and self.persistent_workers and not last.is_inherited()
        if last is not None and is_kept and last.lasts_one_epoch:
            # Workers that run the shards of a state with another number of workers can read only the resumed epoch.
            # After the resumed epoch, new workers are started from the loader's state.
            if last.is_finished:
                self.load_state_dict(self.state_dict())
                return iter(self)
            last.shutdown()
            is_kept = False
        state_at = self._state_at()
        try:
            with self._drawing.unchanged_on_error() as moments:
                self._before = state_at, moments
                if last is not None and is_kept:
                    last.turn.call(partial(last._reset, self))
                else:
                    # Deleting the last iterator stops its workers, unless the program refers to the iterator.
                    last = self._iterator = None
                    self._iterator = self._get_iterator()
                self._before = None
        except BaseException:
            self._before = state_at, None
            raise
        return self._iterator

    def _state_at(self) -> StateAt:
        """Returns a function that creates the loader's present state. The returned function can still be called while
        the next epoch begins.
        """
        if self._before is not None:  # beginning an epoch has failed
            return self._before[0]
        last = self._iterator
        try:
            if last is None or not last.turn.await_left(0):  # a thread that is reading a batch may be slow
                return unstarted_at(self)
            return last.turn.call(last.state_at)
        except Exception as error:  # the dataset may refuse its state now
            raise_if_of_handler(error)
            return partial(raise_error, error)

    def _get_iterator(self, state: EpochState | None = None) -> Any:
        if self.num_workers == 0:
            return ShardsInProcessIterator(self, state) if shards_of(state, self) else InProcessIterator(self, state)
        self.check_worker_number_rationality()
        kind = RestartingIterator if Survived.chosen(self) else WorkersIterator
        return kind(self, state)

    # -- introspection -------------------------------------------------------------------------------

    def _groups(self) -> list[Group]:
        pool = getattr(self._iterator, "_pool", None)
        return [pool] if isinstance(pool, Group) else []  # without workers, the pool is not a `Group`

    # -- state ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after the last batch that the program received; after `load_state_dict`, the loaded state.

        `torch.save` and `torch.load(weights_only=True)` support the state of the loader if they support the states of
        your dataset and samplers. Calling `state_dict` changes nothing.
        """
        if self._loaded is not None:
            return copied(self._loaded)  # type: ignore[no-any-return]
        if (before := self._before) is not None:
            state_at, moments = before
            return copied(dump(state_at(moments or self._drawing.moments())))  # type: ignore[no-any-return]
        if self._iterator is not None:
            return self._iterator.turn.call(self._iterator.state_dict)  # waits for a thread that is reading a batch
        return dump(unstarted_at(self)(self._drawing.moments()))

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes without the iterator. A copy (by `copy` or pickle) is an independent loader that has
        not begun yet."""
        return {**self.__dict__, "_iterator": None, "_before": None, "_recorder": self._recorder.copied()}

    def load_state_dict(self, state_dict: dict[str, Any], *, strict: bool = True) -> None:
        """Makes the next loop resume from a saved state of this package, or of torchdata 0.8 to 0.11.

        The number of workers may differ from the number in the saved run. Until the epoch ends, `get_worker_info`
        returns the number of workers in the saved run to an iterable dataset. If this loader has fewer workers than the
        saved run, a process reads several copies of the dataset, so the dataset must be picklable. Persistent workers
        are stopped. An existing iterator resumes from the state, too, if it has returned no batch. If an existing
        iterator has returned a batch, its next batch raises `RuntimeError`.

        For a state from within an epoch, the next loop raises `ValueError` if the sampler's class, the length of a
        map-style dataset or the number of ranks differs from the saved run. If the state was saved before the first
        batch of the epoch, the sampler's class, the dataset's length and the number of ranks may differ, and the epoch
        starts over. The next loop issues a warning if the state belongs to another rank.

        Args:
            state_dict: a result of `state_dict`; with an empty dict, the next loop begins an epoch.
            strict: whether the next loop raises `ValueError` if the order differs, or if reread items of an iterable
                dataset or a sampler differ from the saved run; True by default. With `strict=False`, the loop skips the
                saved number of batches without a check, so samples may be repeated or missing.

        Raises:
            TypeError: `state_dict` is not a dict.
            ValueError: `state_dict` is not a state of a `StatefulDataLoader`.
        """
        if state_dict != {}:
            state = parse(state_dict)
            # If the state was saved between two epochs, and the program has set an epoch number, this number is not
            # changed.
            if not (state.is_over and epoch_of(self._index_sampler)):
                set_epoch(self._index_sampler, state.order.epoch)
        self._drawing.loaded()
        if self._iterator is not None:
            self._iterator.state_was_loaded(self)
        self._loaded, self._is_strict = copy.copy(state_dict) if state_dict else None, strict
        self._iterator = self._before = None
