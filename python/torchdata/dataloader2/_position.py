"""Saves the position of a loader inside an epoch at any moment, and resumes from a saved position.

This module runs in the main process, in any thread that requests a state, including in a signal handler. The `Delivery`
of the loader counts the items that the user has received. The engine records the positions of the workers. While a
thread waits for an item, another thread can save a state.

Pipes that run in the main process can be inspected only between two items. A *mark* is a state of the main process's
pipes that the loader has recorded between two items. User code may request a state even while an item is being
computed. A state contains the newest mark (recorded state) before the requested position, and the number of items that
were delivered after the mark.
"""

from __future__ import annotations

import copy
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torchdata._handlers import FailuresSuppressed, is_of_handler, raise_if_of_handler
from torchdata.dataloader2.graph import set_graph_random_seed
from torchdata.dataloader2.graph.utils import has_method
from torchdata.dataloader2.random.seed_generator import SeedGenerator
from torchdata.dataloader2.services.worker_output import WorkerOutput
from torchdata.dataloader2.state.position import Position, WorkersPosition
from torchdata.dataloader2.state.shards import fitted, in_main
from torchdata.dataloader2.state.worker_positions import lasts, names_of_lasting
from torchdata.datapipes._pipe.datasets import UnorderedSet
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.state.iteration import counted_attributes, forget_one
from torchdata.datapipes._pipe.state.layout import PipeEntry
from torchdata.datapipes._pipe.state.record import record_of
from torchdata.datapipes.datapipe import token_of
from torchdata.datapipes.iter.threads.pinning import PinMemory
from torchdata.datapipes.iter.threads.prefetching import Prefetcher
from torchdata.datapipes.iter.threads.synchronizing import FullSync
from torchdata.datapipes.state import (
    entries_of,
    is_one_to_one,
    iterate,
    load_entries,
    load_generators,
    save_entries,
    save_generators,
    set_strictness,
    threads_paused,
)

if TYPE_CHECKING:
    from torchdata._native import Delivery
    from torchdata.dataloader2._pipeline import Pipeline

#: Classes of pipes that buffer items, and yield the items in the order of their source.
HOLDING = (Prefetcher, PinMemory, FullSync)


class Tracker:
    """Tracks the position of a loader in the running epoch; `run` is the `EpochRun` of the loader."""

    def __init__(self, run: Any) -> None:
        self._run = weakref.proxy(run)  # without a reference cycle, `del` frees a loader at once
        self._pipeline: Pipeline = run.pipeline
        self._delivery: Delivery = run.delivery
        self.output: WorkerOutput | None = None
        #: Whether the pipes in the main process yield exactly one item for each item of the workers.
        self.hands_on = False
        #: Whether the number of delivered items alone determines the state of the pipes in the main process.
        self._only_counts = self._may_count = False
        #: Whether a loader with workers or other ranks cannot load items that the main process's pipes hold, and
        #: recomputes the epoch instead.
        self._is_held = False
        #: `_is_resumed`: whether the running epoch was resumed from a loaded state. `_is_strict`: whether items that
        #: are recomputed for resuming must equal the items delivered earlier.
        self._is_resumed, self._is_strict = False, True
        #: In a resumed epoch, the number of items that had been delivered when the loaded state was saved; otherwise 0.
        self._before = 0
        #: In a resumed epoch, the number of workers' items that the main process had read when the loaded state was
        #: saved; otherwise 0.
        self._yielded_before = 0
        #: In a resumed epoch, the number of workers' items that the main process's pipes had buffered; otherwise 0.
        self._held_before = 0
        #: The number of delivered items in the loaded state, and the shards' positions after these items; -1 and None
        #: without a loaded state.
        self._loaded_apart: tuple[int, WorkersPosition | None] = -1, None
        #: The marks (recorded positions) of the running epoch, oldest first. The first mark is the position where the
        #: epoch began or resumed.
        self._marks: list[Position] = []
        #: Whether the loader has loaded a state from the end of an epoch, and has not begun an epoch since.
        self._follows_loaded = False
        #: The seeds at the finished epoch's beginning, if the loaded state is from between two epochs; otherwise None.
        self._ended_seeds: SeedGenerator | None = None
        #: The position at the end of the last epoch, or the reason why this position is unknown; needed only if pipes
        #: in the workers keep state beyond an epoch.
        self.end: Position | str | None = None
        # If the last attempt to begin an epoch failed, the number of epochs that had begun before this attempt;
        # otherwise None.
        self._epochs_before: int | None = None
        #: `_since`: the time when the epoch began or resumed. `_seconds_before`: in a resumed epoch, the duration of
        #: the epoch up to the saved position.
        self._since, self._seconds_before = time.monotonic(), 0.0
        #: The reason why the last attempt to save the state of the main process's pipes failed; None if it succeeded.
        self.unsaved: str | None = None
        # Whether the pipes draw the seeds of the epoch themselves.
        self.own_seeds = False

    # -- taking ------------------------------------------------------------------------------------

    def take(self, items_ago: int, *, looks: bool = True) -> Position | None:
        """Returns the loader's position `items_ago` items ago; None if the next epoch can begin from its seeds alone.

        Args:
            looks: whether to record the current state of the main process's pipes first; if not, an earlier recorded
                state is used.

        Raises:
            ValueError: `items_ago` exceeds the number of items delivered in this epoch, or since the epoch was resumed.
            RuntimeError: pipes keep state from earlier epochs, and the loader does not have the state of these pipes.
        """
        if not self._run.is_iterating:
            if items_ago:
                raise ValueError(f"items_ago must be 0, because no epoch is running, but got {items_ago}")
            return self._between()
        mark, received = self._taken(items_ago, looks)
        output, seconds = self.output, self._seconds_before + time.monotonic() - self._since
        if output is None:
            beginning = self._marks[0].beginning if self._is_held else mark.beginning
            return mark.at(received, seconds=seconds, own_seeds=self.own_seeds, beginning=beginning)
        if self._lacking(mark, output) is not None:
            mark = self._marks[0]
            why = None if self._is_resumed else self._lacking(mark, output)
            if why is not None:
                raise RuntimeError(why)
        self.unsaved, output.unsaved = self.unsaved or output.unsaved, None
        if received > mark.received and not output.repeats_order:
            raise RuntimeError(
                f"the state after item {received} would be recomputed from an earlier state, but with in_order=False "
                "the items may then arrive in another order, and pipes in the main process combine them: save the "
                "state between two items, without items_ago, or use in_order=True"
            )
        apart = self._without_held(mark, received, output)
        return mark.at(received, seconds=seconds, shards=output.shards, without_held=apart)

    def _without_held(self, mark: Position, received: int, output: WorkerOutput) -> WorkersPosition | None:
        """Returns `Position.without_held`: the shards' positions after the delivered items, or None if unknown."""
        drop = received - mark.received
        if not self.hands_on or (mark.graph is None and not drop):
            return None
        if mark.graph is not None and not drop and mark.graph[0].yielded == mark.graph[-1].yielded:
            return mark.workers  # the pipes hold nothing
        read = received - self._before - self._held_before
        position = output.position(read) if read >= 0 else None
        is_known = position is not None and output.lacking(position) is None
        return position if is_known else self._loaded_apart[1] if self._loaded_apart[0] == received else None

    @staticmethod
    def _lacking(mark: Position, output: WorkerOutput) -> str | None:
        """Returns the reason why `mark` lacks state that the workers' pipes keep from earlier iterations; None if
        `mark` is complete."""
        return output.lacking(None) if mark.workers is None else mark.lacking

    def _taken(self, items_ago: int, looks: bool) -> tuple[Position, int]:
        """Returns the newest recorded position before the last `items_ago` items, and the number of items delivered
        before these items.
        """
        received = self._delivery.received - items_ago
        if received < 0:
            raise ValueError(
                f"items_ago={items_ago} exceeds the number of items that were delivered since the epoch began or the "
                f"state was loaded, {self._delivery.received}"
            )
        if self._only_counts and self.output is not None:
            workers = self.output.position(received)
            if workers is not None:
                received += self._before
                return Position(
                    received, workers=workers, in_main=False, lacking=self.output.lacking(workers)
                ), received
        elif items_ago == 0 and looks:
            self._mark()
        received += self._before
        return next(mark for mark in reversed(self._marks) if mark.received <= received), received

    def _mark(self) -> None:
        """Records the current state of the main process's pipes as a mark, unless an item is being computed."""
        delivery = self._delivery
        with self._run.held:
            slow, delivery.slow = delivery.slow, True
            try:
                if delivery.busy or delivery.cut:
                    return
                mark = self._look(self._before + delivery.received)
            finally:
                delivery.slow = slow
        if mark is not None:
            self._marks[1:] = [*self._marks[1:][-1:], mark]

    def may_lose(self) -> bool:
        """Returns whether the pipes in the main process lose items if an exception such as KeyboardInterrupt interrupts
        the pipes.

        No items are lost if the last pipe takes items from workers or from a thread's queue. Ctrl-C interrupts neither
        workers nor threads that read ahead, and queues keep their items.
        """
        last = self._pipeline.datapipe
        if isinstance(last, (Prefetcher, PinMemory)):
            return last.has_ended()
        if isinstance(last, FullSync):
            return last._threads_at_work() is None  # with a single rank, `fullsync` reads its source without a thread
        return not isinstance(last, WorkerOutput) or last.is_local

    def _look(self, received: int, beginning: WorkersPosition | None = None) -> Position | None:
        """Returns the current position with the state of the main process's pipes; None if this state cannot be saved.

        Args:
            beginning: the workers' positions at the start of the epoch, which are used if the number of read items is
                unknown.
        """
        output, position = self.output, None
        run = None if output is None else output.run
        try:
            pipes = Graph(self._pipeline.datapipe)
            with threads_paused(pipes.pipes):  # pipes' threads draw random numbers and request items
                entries, generators = entries_of(pipes), save_generators()
                if output is not None:
                    own = pipes.index(output)
                    if output.is_unread and not token_of(output).armed:  # all items are of the previous epoch
                        entries[own] = PipeEntry(entries[own].type)
                    read = self._read_by_main(entries[own], output)
                    position = beginning if read is None else output.position(read)
        except Exception as error:  # items of pipes that cannot be saved are recomputed
            # A second pass over a set may yield the items in a different order, so items of a set cannot be recomputed.
            if isinstance(error, UnorderedSet) or is_of_handler(error):
                raise
            self.unsaved = str(error)
            return None
        if output is None:
            return Position(received, graph=entries, generators=generators)
        if position is None or output.run is not run:  # a thread has begun another iteration over the workers' items
            return None
        return Position(received, graph=entries, workers=position, in_main=False, lacking=output.lacking(position))

    def _read_by_main(self, entry: PipeEntry, output: WorkerOutput) -> int | None:
        """Returns how many items of the workers the main process had read when `entry` was saved.

        Returns:
            The number of items; None if the main process has read all items of the workers, or must reread the epoch
            from its beginning.
        """
        if entry.restores:
            # `entry.yielded` also counts the items before a loaded state, so their number is subtracted.
            return entry.yielded - self._yielded_before if output.is_in_first_pass else entry.yielded
        if not output.is_in_first_pass or output.delivered or (token_of(output).finished and not output.is_unread):
            return None
        return 0  # no pipe has read an item of the workers since the epoch began or resumed

    def _between(self) -> Position | None:
        pipeline = self._pipeline
        if pipeline.is_taken_over and self.output is not None:
            if isinstance(self.end, str):
                raise RuntimeError(self.end)
            graph = None if self.end is not None else self._saved_graph()
            return self.end if graph is None else Position(0, ended=True, graph=graph, in_main=False)
        if pipeline.datapipe is None or pipeline.contract.has_workers():
            return None
        graph = self._saved_graph()
        beginning = self._marks[0].beginning if self._marks and graph is not None else None
        return Position(0, ended=True, graph=graph, generators=save_generators(), beginning=beginning)

    def _saved_graph(self) -> Sequence[PipeEntry] | None:
        """Returns the state that the main process's pipes keep from earlier epochs; None if these pipes keep no state,
        or the state cannot be saved."""
        self._require_no_drift()
        with FailuresSuppressed():
            return save_entries(self._pipeline.datapipe) if self._has_lasting() else None
        return None

    def _has_lasting(self) -> bool:
        begun = self._run.epochs if self._epochs_before is None else self._epochs_before
        if not begun or self._pipeline.datapipe is self.output:  # a `WorkerOutput` keeps no state
            return False
        graph = Graph(self._pipeline.datapipe)
        return lasts(graph) or any(map(counted_attributes, graph))

    def _require_no_drift(self) -> None:
        """Raises RuntimeError if a pipe in the main process keeps state between epochs, and the last epoch was
        interrupted at its beginning."""
        names = names_of_lasting(self._pipeline.datapipe) if self._epochs_before and self._has_lasting() else []
        if names:
            raise RuntimeError(
                f"{names[0]} keeps a state from epoch to epoch, and the start of the next epoch was interrupted, for "
                "example by Ctrl-C: save the state before this epoch, or start the epoch again"
            )

    # -- epochs ------------------------------------------------------------------------------------

    def find_output(self) -> None:
        """Finds the `WorkerOutput` in the graph. `find_output` must be called after the reading service's `initialize`
        has returned the graph."""
        graph = Graph(self._pipeline.datapipe)
        self.output = graph.first(lambda pipe: isinstance(pipe, WorkerOutput))
        self.hands_on = self.output is not None and _below_counting(graph, WorkerOutput) is not None
        # If a thread in the main process reads shards ahead, the number of delivered items does not show how far each
        # shard was read.
        is_local = self.output is not None and self.output.is_local
        reads_ahead = is_local and any(isinstance(pipe, HOLDING) for pipe in graph.pipes)
        self._may_count = self.hands_on and not reads_ahead
        self._is_held = any(has_method(pipe, "is_replicable") and not pipe.is_replicable() for pipe in graph)

    def return_to(self, end: Position | str | None, epochs: int) -> None:
        """Undoes the beginning of an epoch after an error; `end` and `epochs` are the values from before this epoch."""
        self.end = end
        self._epochs_before = epochs if self._run.epochs > epochs else None

    def begin(self, resumed: Position | None, strict: bool) -> None:
        """Resets the tracker before the service begins an epoch; `resumed` is the position to resume from, if any."""
        self._delivery.received = 0
        self._delivery.cut = False
        self._is_resumed, self._is_strict = resumed is not None, strict
        self._before = 0
        self._since = time.monotonic()
        self._seconds_before = 0.0 if resumed is None else resumed.seconds or 0.0
        self.end = None
        unseeded = self._pipeline.service is None and self._run.seeds.seed is None
        self.own_seeds = unseeded and (resumed is None or resumed.own_seeds is not False)
        output = self.output
        # Restored pipes may contain undelivered items, so the number of delivered items does not show the state of
        # these pipes.
        self._only_counts = self._may_count and (resumed is None or resumed.graph is None)
        if output is not None:
            output.resumes = resumed is not None
            output.follow(self._delivery if self._only_counts else None)
        self._loaded_apart = -1, None
        if resumed is None:
            generators = None if output is not None else save_generators()
            self._marks = [Position(0, beginning=generators, in_main=output is None)]
            return
        self._require_same_process(resumed)
        if resumed.drop and output is not None and not output.repeats_order:
            raise ValueError(
                f"this state was saved {resumed.drop} items after the snapshot that it contains, and in_order=False "
                "may change their order: load it with in_order=True, or with at most 1 worker"
            )
        names = ("graph", "generators", "beginning", "workers", "in_main")
        self._loaded_apart = resumed.received, resumed.without_held
        mark = Position(resumed.received - resumed.drop, **{name: getattr(resumed, name) for name in names})
        self._marks = [mark]
        self._before = mark.received
        if output is not None and mark.workers is not None:
            output.resume_at(mark.workers, strict)
        elif mark.beginning is not None:
            load_generators(mark.beginning)

    def _require_same_process(self, position: Position) -> None:
        """Raises ValueError if only one of the two runs, the saved run and this run, has workers."""
        if position.in_main != (self.output is None):
            raise ValueError(
                f"this state was saved while {'workers' if self.output is None else 'the main process'} ran the "
                "pipeline: use the reading service that the state was saved with, or save a state between two epochs"
            )

    def iterate(self, resumed: Position | None) -> Iterator[Any]:
        """Returns the iterator over the main process's part of the graph, after the service has begun the epoch."""
        datapipe, output = self._pipeline.datapipe, self.output
        self._yielded_before = self._held_before = 0
        if resumed is not None:
            self._restore(Graph(datapipe), resumed)
        elif output is not None:
            forget_one(output)  # the loaded state belongs to the previous epoch
        is_later = self._run.epochs > 1 or self._follows_loaded
        beginning = output.position(0) if resumed is None and is_later and output is not None else None
        iterator: Iterator[Any] = iterate(datapipe)
        if resumed is None and is_later:
            self._note_beginning(beginning)
        self._follows_loaded = False
        self._epochs_before = None
        return iterator

    def _restore(self, graph: Graph, resumed: Position) -> None:
        if resumed.graph is not None:
            load_entries(graph, resumed.graph)
            if self.output is not None:
                self._yielded_before = token_of(self.output).yielded
                self._held_before = self._yielded_before - resumed.graph[-1].yielded
                if resumed.graph[graph.index(self.output)].finished:  # the main process had read all workers' items
                    self.output.read_out()
        if resumed.generators is not None:  # before threads start, which draw random numbers
            load_generators(resumed.generators)
        _spare_ranks(graph, resumed.drop)
        set_strictness(graph, self._is_strict)

    def _note_beginning(self, workers: WorkersPosition | None) -> None:
        """Adds the state that pipes keep from the previous epoch, if any, to the first mark (the epoch's beginning)."""
        output, (beginning, *_) = self.output, self._marks
        looked = self._look(0, workers) if self._has_lasting() else None
        if looked is not None:
            self._marks = [looked._replace(beginning=beginning.beginning)]
        elif output is not None and output.may_count:
            self._marks = [beginning._replace(workers=workers, lacking=output.lacking(workers))]

    def drop(self, resumed: Position | None) -> None:
        """Recomputes and drops the items that were delivered after the snapshot in the loaded state."""
        if resumed is None:
            return
        delivery = self._delivery
        for dropped in range(resumed.drop):
            try:
                delivery.step()
            except StopIteration:
                raise RuntimeError(
                    "this pipeline does not repeat itself, so it cannot resume from the state: it ended after "
                    f"{self._before + dropped} items, but {resumed.received} were delivered before the state was saved"
                ) from None
            delivery.received += 1

    def close(self) -> None:
        """Records the position at the end of an epoch if the workers' pipes keep state beyond the epoch."""
        output = self.output
        if output is None or not output.lasts:
            return
        before = self._marks[-1] if self._marks else None
        try:
            position = self.take(0)
        except Exception as error:
            raise_if_of_handler(error)
            self.end = str(error)  # a stored exception would keep the processes alive
            return
        # If the state of the pipes at the epoch's end could not be saved, `position` contains an earlier state. A
        # loader that resumes from this earlier state rereads items, so the workers' output is not marked as finished.
        is_at_end = position is not None and self._marks[-1] is not before and position.graph is self._marks[-1].graph
        if position is not None and is_at_end and position.graph is not None and position.workers is not None:
            position = position._replace(graph=self._with_output_read_out(position.graph, output))
        self.end = None if position is None else position._replace(ended=True)

    def _with_output_read_out(self, graph: Sequence[PipeEntry], output: WorkerOutput) -> Sequence[PipeEntry]:
        """Returns the states of the pipes in `graph`; the state of `output` is marked as finished if all items of the
        workers were read.
        """
        token = token_of(output)
        if not token.finished or output.is_unread:  # a pipe with a cache may not have read the workers' items
            return graph
        entries, own = [*graph], Graph(self._pipeline.datapipe).index(output)
        entries[own] = entries[own]._replace(restores=True, yielded=token.yielded, finished=True, state={})
        return entries

    def resume_between(self, position: Position) -> None:
        """Stores the ended epoch's seeds, and restores the global random generators."""
        self._ended_seeds = copy.copy(self._run.seeds.initial)
        if position.generators is not None:
            load_generators(position.generators)

    def load_between(self, position: Position) -> None:
        """Restores the state of the graph between two epochs, after the service has taken over the graph."""
        if position.graph is None:
            return
        graph = Graph(self._pipeline.datapipe)
        if self.output is None and not position.in_main:
            position = in_main(position, graph)
        elif self.output is not None and position.in_main and not (self.output.lasts or lasts(graph)):
            return  # the graph contains only attributes of pipes without a state
        assert position.graph is not None
        self._require_same_process(position)
        generators = save_generators()
        if position.beginning is not None:  # replayed pipes draw the same random numbers as before
            load_generators(position.beginning)
        self._follows_loaded = True
        if self._ended_seeds is not None and (self._pipeline.service is not None or self._run.seeds.seed is not None):
            set_graph_random_seed(self._pipeline.datapipe, self._ended_seeds)  # the ended epoch's seeds
        self._pipeline.datapipe, entries = fitted(self._pipeline.datapipe, position.graph)
        load_entries(self._pipeline.datapipe, entries)
        if self.output is not None:
            self.output.is_between_epochs = True
        iterate(self._pipeline.datapipe)  # moves the pipes to the end of their last iteration
        if self.output is not None:
            self.output.is_between_epochs = False
        load_generators(generators)


def _below_counting(graph: Graph, kind: type) -> Any:
    """Returns the last pipe of the class `kind` in the graph; None if a later pipe may combine, add, drop or reorder
    items."""
    pipe = graph.end
    while not isinstance(pipe, kind):
        known = type(pipe) in HOLDING or is_one_to_one(pipe)
        sources = graph.sources(pipe)
        if not known or len(sources) != 1:
            return None
        pipe = sources[0]
    return pipe


def _spare_ranks(graph: Graph, drop: int) -> None:
    """Prevents `fullsync` at the end of a graph from synchronizing with other ranks for items that are recomputed.

    The ranks may recompute different numbers of items, so the calls that synchronize the ranks would not match.

    Args:
        drop: the number of recomputed items to drop after loading the state.
    """
    fullsync = _below_counting(graph, FullSync)
    if fullsync is not None:
        loaded, below = (record_of(pipe).loaded or PipeEntry("") for pipe in (graph.end, fullsync))
        fullsync.recompute(drop + (loaded.drop or 0) - (below.yielded - loaded.yielded))
