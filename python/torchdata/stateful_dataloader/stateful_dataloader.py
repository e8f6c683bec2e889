"""StatefulDataLoader: torch's `DataLoader`, whose place can be saved at any batch, on this package's engine.

Role: main. The constructor, the attributes and their guards are torch's; iterators are this package's (`_in_process`,
`_with_workers`). The loader keeps its last iterator, which knows the place.
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

from torchdata._engine.workers.hangs import check_on_timeout
from torchdata._observe.observed import ObservedLoader
from torchdata._observe.stats.batches import BatchRecorder
from torchdata._signatures import signature_of
from torchdata._stateful import copied
from torchdata.datapipes._pipe.datasets import in_fixed_order
from torchdata.stateful_dataloader._drawing import Drawing
from torchdata.stateful_dataloader._fitting import facts_of, fitted, shards_of
from torchdata.stateful_dataloader._generators import GLOBAL, encoded, read
from torchdata.stateful_dataloader._in_process import InProcessIterator
from torchdata.stateful_dataloader._iterator import StatefulIterator
from torchdata.stateful_dataloader._order import generators_drawn_by, innermost_of
from torchdata.stateful_dataloader._reading import Reader
from torchdata.stateful_dataloader._restarting import RestartingIterator, survived_by
from torchdata.stateful_dataloader._shards_in_process import ShardsInProcessIterator
from torchdata.stateful_dataloader._skipping import check_on_error
from torchdata.stateful_dataloader._state import laid_out, normalized
from torchdata.stateful_dataloader._unstarted import is_own_iterator, unstarted_place, unstarted_sampler
from torchdata.stateful_dataloader._with_workers import WorkersIterator
from torchdata.stateful_dataloader.sampler import BatchSampler, RandomSampler

if TYPE_CHECKING:
    from torchdata._observe.stats.recorder import StatsLevel

__all__ = ["StatefulDataLoader", "default_collate", "default_convert", "get_worker_info"]

T_co = TypeVar("T_co", covariant=True)


class _Indexed(Protocol[T_co]):
    """Samples by index, of whatever class."""

    def __getitem__(self, index: Any, /) -> T_co: ...


#: Whether torch's loader knows `in_order`, as it does since 2.6.
_KNOWS_ORDER = "in_order" in signature_of(DataLoader.__init__).parameters


class StatefulDataLoader(ObservedLoader, DataLoader[T_co]):
    """Torch's `DataLoader`, with `state_dict` and `load_state_dict`.

    The order of samples, the seeds of workers and all arguments are those of `torch.utils.data.DataLoader`; see there.
    A state counts what the user got: what workers have read ahead is neither lost nor does it come twice. After
    `load_state_dict` the next loop goes on behind the last batch, or with the next epoch if the last one was over.

    Datasets, their iterators, samplers and collate functions with `state_dict` and `load_state_dict` are saved and
    restored by these. An iterable dataset without them is read again from its beginning, and a sampler too.

    Threads may share an iterator, whose batches then go to one of them each. A copy, by `copy` or pickle, is a loader
    of its own that has not begun.

    Args:
        dataset: a map-style or iterable dataset.
        batch_size: samples of a batch; None for samples as they are.
        shuffle: whether a map-style dataset is read in random order.
        sampler: gives the indices, in place of `shuffle`. A set is sorted, because its order may be another one in each
            process.
        batch_sampler: gives lists of indices, in place of `batch_size`, `shuffle`, `sampler` and `drop_last`.
        num_workers: processes that read; 0 to read in this one.
        collate_fn: makes a batch of a list of samples.
        pin_memory: whether batches are copied to pinned memory, in a thread if there are workers.
        drop_last: whether a last batch that is shorter is dropped.
        timeout: seconds that a batch of a worker is waited for; 0 for ever.
        worker_init_fn: called in each worker with its number, once it is seeded.
        multiprocessing_context: how workers start: a name, or a context of multiprocessing.
        generator: draws the order and the workers' seeds; None for torch's global one.
        prefetch_factor: batches that each worker may be ahead; 2 by default.
        persistent_workers: whether workers live on between epochs.
        pin_memory_device: deprecated by torch.
        in_order: whether batches come in the order of their indices, rather than as they are ready.
        snapshot_every_n_steps: after how many batches datasets and samplers are asked for their states. A state is
            exact at each batch all the same: what came since is read again, and dropped. A state that takes long is
            asked for more rarely.
        on_worker_exit: what becomes of a worker that dies: "error" raises `WorkerExitedError`; "restart" puts another
            process in its place, with a `RuntimeWarning`, and goes on: no batch is lost, none comes twice, in the same
            order. What the worker had read since the place that it told last is read again. The third death in a row
            at the same batch raises all the same.
        on_timeout: what is done when a batch has not come for `timeout` seconds: "error" raises `WorkerTimeoutError`,
            which is torch's `RuntimeError`, too; "restart" kills the worker, and puts another process in its place, as
            `on_worker_exit="restart"` does, with a `RuntimeWarning` that brings its Python stacks. By itself it does
            not do that for workers that die otherwise. A worker has twice as long at a batch for each that was killed
            at it, and a minute at least before its first.
        patience: with `on_timeout="restart"`, the seconds that a worker has which works: its threads have run, or have
            waited for a processor, for a tenth of the time at least. None: `timeout`, as all others.
        on_error: what becomes of a sample at which `dataset[index]`, or `__getitems__`, raises: "raise" raises it, and
            its batch is lost; "skip" leaves it out of its batch, which is shorter then, and a batch of which nothing is
            left is passed over. `__getitems__` is called anew for each index of a batch at which it has raised. Of an
            iterable dataset, `__next__` of what its `__iter__` returns is called again; a generator that raises has
            ended, and a dataset whose `__iter__` is one is refused. Exceptions of `collate_fn`, `MemoryError`,
            `KeyboardInterrupt`, `SystemExit` and deaths of workers are never skipped. What was skipped is counted by
            the kind of exception; the counts stand in the state and, at the end of an epoch, in a `RuntimeWarning`.
        error_limit: how many samples may be skipped in an epoch, by all workers together; a float is a share of the
            samples, judged from the 100th on and at the end. More raise `TooManySkipped`. None: any number.
        error_log: a file to which a line of JSON is appended for each skipped sample of a batch that comes: `epoch` (of
            this loader, from 0), `worker` (its number, or null), `dataset` (your code that reads
            samples, with its file and line), `index`, `error`, `message` and
            `notes`. The index of a stream is the number of the sample that the iterator of that worker raised at,
            counted from 0, or null where the dataset was given a state inside an epoch. None: no file.
        error_fill: whether batches from which samples are left out are filled up from the next indices of the sampler,
            so that all but the last one are full. In workers such a batch is read again, with what fills it up, as the
            next one that is ordered: its samples come later than those of the batches that were ordered before.
        stats: how often batches are timed: "counts" times so few that it costs less than 1 %, "full" each one; None for
            what the environment variable `TORCHDATA_STATS` says, or else "counts". See `stats()`.
        wait_warning: the share of an epoch that the program may wait for batches. The first epoch of 10 seconds or more
            that waits longer gives a `RuntimeWarning`, which names the slow function, its file and its line. None, or
            `TORCHDATA_WAIT_WARNING=0` in the environment: no warning.

    Raises:
        ValueError: arguments are out of range, or exclude each other.
        TypeError: `multiprocessing_context` is none, `error_limit` no number, or `error_fill` no bool.
        TooManySkipped: while iterating, more than `error_limit` samples have raised; a `RuntimeError`.

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
        error_fill: bool = False,
        stats: StatsLevel | None = None,
        wait_warning: float | None = 0.3,
    ) -> None:
        if on_worker_exit not in ("error", "restart"):
            raise ValueError(
                f"StatefulDataLoader: on_worker_exit must be 'error' or 'restart', but got {on_worker_exit!r}"
            )
        check_on_timeout("StatefulDataLoader", on_timeout, timeout, patience)
        makes_batches = batch_size is not None and batch_sampler is None
        check_on_error(on_error, error_limit, error_log, error_fill, dataset, makes_batches=makes_batches)
        if num_workers == "auto":  # type: ignore[comparison-overlap]
            raise TypeError(
                "StatefulDataLoader: num_workers must be an integer, but got 'auto'; the loader that chooses by itself "
                'is DataLoader2.from_dataset(dataset, batch_size, num_workers="auto")'
            )
        recorder = BatchRecorder(stats, wait_warning)
        any_dataset: Any = dataset  # torch's loader takes what has samples, whatever its annotation says
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
            **({"in_order": in_order} if _KNOWS_ORDER else {}),
        )
        self.in_order = in_order
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.on_worker_exit, self.on_timeout, self.patience = on_worker_exit, on_timeout, patience
        self.on_error, self.error_limit = on_error, error_limit
        self.error_log = None if error_log is None else os.fspath(error_log)
        self.error_fill = error_fill
        #: How many epochs were begun, for the log.
        self._epochs_begun = 0
        self._recorder = recorder
        # Past torch's guard: these are the same samplers, which can be saved.
        own = vars(self)
        if sampler is None and type(self.sampler) is torch.utils.data.RandomSampler:
            own["sampler"] = RandomSampler(self.sampler.data_source, generator=generator)
        if batch_sampler is None and self.batch_sampler is not None:
            own["batch_sampler"] = BatchSampler(self.sampler, self.batch_size or 1, self.drop_last)
        #: A state that the next loop begins with.
        self._loaded: Any = None
        self._is_strict = True
        #: Where orders and seeds are drawn from.
        self._drawing = Drawing(self, generators_drawn_by(self._index_sampler))
        #: The reader of this process, from one epoch to the next.
        self._reader: Reader | None = None

    # -- iterating -----------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        """An iterator over an epoch, or over what is left of the one whose state was loaded."""
        if self._loaded is not None:
            state = fitted(normalized(self._loaded), self, self._is_strict)
            self._reader = self._reader and self._reader.anew()
            self._iterator = self._made(state)
            self._loaded = None
            return self._iterator
        if self._iterator is not None and self.persistent_workers and not self._iterator.is_inherited():
            if self._iterator.lasts_one_epoch:
                # Its workers were those of a state, and end. What outlives the epoch is passed on by a state.
                if self._iterator.is_finished:
                    self.load_state_dict(self.state_dict())
                    return iter(self)
                self._iterator.shutdown()
                self._iterator = self._get_iterator()
                return self._iterator
            self._iterator.turn.call(partial(self._iterator._reset, self))
        else:
            self._iterator = None  # ends its workers, unless the user holds it
            self._iterator = self._get_iterator()
        return self._iterator

    def _get_iterator(self) -> Any:
        return self._made(None)

    def _made(self, state: dict[str, Any] | None) -> StatefulIterator:
        if self.num_workers == 0:
            return ShardsInProcessIterator(self, state) if shards_of(state, self) else InProcessIterator(self, state)
        self.check_worker_number_rationality()
        kind = RestartingIterator if survived_by(self) else WorkersIterator
        return kind(self, state)

    # -- what it says of itself ----------------------------------------------------------------------

    def worker_pids(self) -> list[int]:
        """See `ObservedLoader`."""
        return [] if self._iterator is None else self._iterator.worker_pids

    # -- state ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The place behind the last batch that the user got; after `load_state_dict`, what was loaded.

        It is made of what `torch.save` writes and `torch.load(weights_only=True)` reads, as long as the states of your
        dataset and samplers are. Taking it changes nothing.
        """
        if self._loaded is not None:
            return copied(self._loaded)  # type: ignore[no-any-return]
        if self._iterator is not None:
            return self._iterator.turn.call(self._iterator.state_dict)  # in turn with threads that read
        return self._unstarted()

    def __getstate__(self) -> dict[str, Any]:
        """A copy, by `copy` or pickle, is a loader of its own, which has not begun."""
        return {**self.__dict__, "_iterator": None, "_recorder": self._recorder.copied()}

    def _unstarted(self) -> dict[str, Any]:
        """The state before the first loop: where the order and the seeds will be drawn from."""
        is_iterable = self._dataset_kind == 1
        main = {
            **unstarted_sampler(self._index_sampler),
            "_sampler_iter_yielded": 0,
            "_num_yielded": 0,
            "_iterator_finished": False,
            "_IterableDataset_len_called": self._IterableDataset_len_called,
            "_base_seed": None,
            "_shared_seed": None,
            "_dataset_kind": int(self._dataset_kind),
            "is_iterable": is_iterable,
            "is_own_iterator": is_own_iterator(self.dataset),
            "last_worker": self.num_workers - 1,
        }
        # Each has a copy of its own, because a checkpoint is loaded into them.
        places = [unstarted_place(self.dataset, is_iterable) for _ in range(self.num_workers or 1)]
        if self.num_workers == 0:  # samples may be drawn from the program's generators
            places[0]["random"] = {name: encoded(read(name)) for name in GLOBAL}
        generators = {"now": self._drawing.encoded(self._drawing.now())}
        ours = {"unstarted": True, "generators": generators, "loader": facts_of(self)}
        return laid_out(main, places, ours, self.num_workers)

    def load_state_dict(self, state_dict: dict[str, Any], *, strict: bool = True) -> None:
        """Makes the next loop go on from a saved place, also one that torchdata 0.8 to 0.11 saved.

        The number of workers may be another one. An iterable dataset still sees the number of the state, until the
        epoch ends; if the loader has fewer workers, a process reads several copies of the dataset, which must be
        picklable. Workers that live on are ended. An iterator that was made before goes on from the state, too, if it
        has given no batch; else its next batch raises `RuntimeError`.

        Inside an epoch the next loop raises `ValueError` if the class of the sampler, the length of a map-style dataset
        or the number of ranks is another one. If the epoch had given no batch yet, it begins anew instead. The loop
        warns if the state is that of another rank.

        Args:
            state_dict: what `state_dict` returned; an empty dict for none.
            strict: whether the next loop raises `ValueError` if the order is another one, as above, or if a stream or a
                sampler without a state, which is read again, gives other samples or indices than before. False passes
                over as many batches in both cases, so samples may repeat or be missing.

        Raises:
            TypeError: it is no dict.
            ValueError: it is the state of something else.
        """
        if state_dict != {}:
            state = normalized(state_dict)
            sampler = innermost_of(self._index_sampler)
            if state["epoch"] is not None and isinstance(sampler, torch.utils.data.DistributedSampler):
                sampler.set_epoch(state["epoch"])
        self._drawing.loaded()
        if self._iterator is not None:
            self._iterator.state_was_loaded(self)
        self._iterator = None
        self._loaded, self._is_strict = copy.copy(state_dict) if state_dict else None, strict

    @property
    def has_state_to_take(self) -> bool:
        """Whether a state was loaded, and no loop has begun since."""
        return self._loaded is not None
