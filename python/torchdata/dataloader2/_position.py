"""Places of a loader inside an epoch: taking one at any moment, and going on from one.

Role: runs in the main process, in whichever thread asks for a state, a signal handler included. The `Delivery` of the
loader counts the items that the user was given; the engine's books, which a waiting reader does not hold, know the
places of the workers. So a place joins references and waits for nobody.

Pipes that run in main can be looked at between two items only. So there are *marks*: states of main's part of the graph
that were taken between two items, the epoch's beginning for one. A caller that asks while an item is being made, after
one was cut off (by Ctrl-C), or for some items ago, gets the newest mark before that, and how many items to drop behind
it.
"""

from __future__ import annotations

import copy
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from torchdata._engine.snapshots import seal
from torchdata.dataloader2.graph import set_graph_random_seed
from torchdata.dataloader2.random import SeedGenerator
from torchdata.dataloader2.services.worker_output import WorkerOutput
from torchdata.dataloader2.state.layout import entries_in, generators_in, sealed
from torchdata.dataloader2.state.places import lasts, names_of_lasting
from torchdata.dataloader2.state.position import Content, Position, Processes, WorkersPosition
from torchdata.datapipes._pipe.datasets import UnorderedSet
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.state.layout import Entry
from torchdata.datapipes._pipe.state.record import record_of
from torchdata.datapipes.datapipe import token_of
from torchdata.datapipes.iter.threads.pinning import PinMemory
from torchdata.datapipes.iter.threads.prefetching import Prefetcher
from torchdata.datapipes.iter.threads.synchronizing import FullSync
from torchdata.datapipes.state import (
    forget_state,
    is_one_to_one,
    iterate,
    load_entries,
    load_generators,
    save_entries,
    save_generators,
    set_strictness,
    standing_still,
)

if TYPE_CHECKING:
    from torchdata._native import Delivery
    from torchdata.dataloader2._pipeline import Pipeline
    from torchdata.dataloader2._rank_states import SavedPlaces
    from torchdata.dataloader2._seeds import Seeds

__all__ = ["Tracker"]

#: Pipes that hold items of their source, which they hand on in order.
HOLDING = (Prefetcher, PinMemory, FullSync)


class Run(Protocol):
    """The run of a loader's epochs, as far as a position looks at it."""

    pipeline: Pipeline
    seeds: Seeds
    delivery: Delivery
    epochs: int
    is_iterating: bool
    place: tuple[Position, bool] | None
    saved_places: SavedPlaces | None

    @property
    def held(self) -> AbstractContextManager[Any]:
        """The lock of the call that takes a state."""


class Tracker:
    """How far a loader has come in the epoch that runs.

    Args:
        run: whose position it is. Owns this object.
    """

    def __init__(self, run: Run) -> None:
        self._run: Run = weakref.proxy(run)  # no circle: a loader ends with its last reference
        self._pipeline, self._delivery = run.pipeline, run.delivery
        self.output: WorkerOutput | None = None
        #: Whether the pipes in main yield one item for each item of the workers.
        self.hands_on = False
        #: Whether that is so, so that counting tells their state.
        self._only_counts = self._may_count = False
        #: Whether the epoch was gone on with at a place that an earlier run had reached.
        self._is_resumed, self._is_strict = False, True
        #: Behind how many items of this run the last one was cut off with which the loader has gone on, and how many
        #: items of the workers are lost in main by that.
        self._cut_at = self._lost = 0
        #: Items that earlier runs of the epoch gave.
        self._before = 0
        #: Items of the workers that main's pipes had read in them.
        self._yielded_before = 0
        #: Oldest first; the first is the epoch's beginning, or where this run began.
        self._marks: list[Position] = []
        #: Whether the epoch that begins follows one that another loader has run.
        self._is_behind_loaded = False
        #: The seeds with which that one began.
        self._ended_seeds: SeedGenerator | None = None
        #: Where the last epoch ended, as far as it matters to the next one, or why nobody knows that.
        self.end: Position | str | None = None
        #: How many epochs had begun before one whose beginning was cut off, if one was and none has begun since.
        self._epochs_before: int | None = None
        #: When this run of the epoch began, and the seconds that earlier ones had taken.
        self._since, self._seconds_before = time.monotonic(), 0.0
        #: Why main's part of the graph could not be saved, if it could not.
        self.unsaved: str | None = None
        #: Whether the pipes draw the seeds of the epoch by themselves, because nobody gives them any.
        self.own_seeds = False

    # -- taking ------------------------------------------------------------------------------------

    def take(self, items_ago: int, *, looks: bool = True) -> Position | None:
        """Where the loader was so many items ago; None at the beginning of an epoch that follows from its seeds.

        Args:
            items_ago: how many.
            looks: whether main's part of the graph may be looked at, rather than go on from an earlier look.

        Raises:
            ValueError: so many items were not given since the epoch, or this run of it, began.
            RuntimeError: nobody knows what the processes remember of earlier epochs.
        """
        run = self._run
        if not run.is_iterating:
            if items_ago:
                raise ValueError(f"no item of an epoch was given {items_ago} items ago: none is under way")
            return self._between() if run.place is None else self._cut_beginning()
        mark, given = self._taken(items_ago, looks)
        output, seconds = self.output, self._seconds_before + time.monotonic() - self._since
        if output is None:
            return mark.at(given, seconds=seconds, own_seeds=self.own_seeds)
        if self._untold(mark, output) is not None:
            mark = self._beginning(output)
        self.unsaved, output.unsaved = self.unsaved or output.unsaved, None
        processes = Processes(output.num_shards, output.dispatches, output.in_order)
        return mark.at(given, seconds=seconds, processes=processes, shards=output.shards_begun)

    @staticmethod
    def _untold(mark: Position, output: WorkerOutput) -> str | None:
        """Why a mark does not tell what lasts beyond passes, if it does not."""
        return output.untold(None) if mark.workers is None else mark.untold

    def _beginning(self, output: WorkerOutput) -> Position:
        """Returns the mark at which this run of the epoch began."""
        beginning = self._marks[0]
        why = None if self._is_resumed else self._untold(beginning, output)
        if why is not None:
            raise RuntimeError(why)
        return beginning

    def _taken(self, items_ago: int, looks: bool) -> tuple[Position, int]:
        """The newest mark of so many items ago, and how many items had been given by then."""
        given = self._delivery.given - items_ago
        if given < 0:
            raise ValueError(
                f"the state of {items_ago} items ago was asked for, but {self._delivery.given} items were given "
                "since the epoch began or the loader was loaded"
            )
        if given < self._cut_at:
            raise ValueError(
                f"the state of {items_ago} items ago was asked for, but an item behind that was cut off, by Ctrl-C for "
                "one, and the loader has gone on without it"
            )
        if self._only_counts and self.output is not None:
            workers = self.output.place(given + self._lost)
            if workers is not None:
                given += self._before
                return Position(given, workers=workers, in_main=False, untold=self.output.untold(workers)), given
        elif items_ago == 0 and looks:
            self._mark()
        given += self._before
        newest = next((mark for mark in reversed(self._marks) if mark.given <= given), None)
        if newest is None:
            raise RuntimeError(
                "an item was cut off, by Ctrl-C for one, the loader has gone on without it, and its pipes cannot be "
                f"saved, so that nothing tells where it is: {self.unsaved}"
            )
        return newest, given

    def _mark(self) -> None:
        """Looks at main's part of the graph, if no item is being made."""
        delivery = self._delivery
        with self._run.held:
            slow, delivery.slow = delivery.slow, True
            try:
                if delivery.busy or delivery.cut:
                    return
                mark = self._look(self._before + delivery.given)
            finally:
                delivery.slow = slow
        if mark is not None:
            self._marks[1:] = [*self._marks[1:][-1:], mark]

    def go_on_cut(self) -> None:
        """Notes that the loader goes on though its last item was cut off, which may be lost to its pipes.

        Nothing before that is gone on from any more: an item that is made again would not be cut off.

        Raises:
            TimeoutError: a thread that reads ahead in main does not come to the end of its item.
        """
        delivery = self._delivery
        with self._run.held:
            if self._only_counts and self.output is not None:
                self._lost = self._lost_in_main(self.output)
            else:
                mark, beginning = self._look(self._before + delivery.given), self._marks[:1]
                self._marks = [] if mark is None else [mark._replace(beginning=one.beginning) for one in beginning]
                self._is_resumed = True
            self._cut_at = int(delivery.given)
        delivery.cut = False

    def _lost_in_main(self, output: WorkerOutput) -> int:
        """Items that pipes in main, which hand on one by one, have read and neither hold nor handed on."""
        pipes = Graph(self._pipeline.datapipe).pipes
        holding = [pipe for pipe in pipes if isinstance(pipe, HOLDING)]
        if len(holding) + 1 == len(pipes):
            return 0  # what the threads read is out of the reach of what cuts main off
        with standing_still(pipes):
            held = sum(len(pipe.state_dict()["items"]) for pipe in holding)
            return token_of(output).yielded - self._yielded_before - held - int(self._delivery.given)

    def _look(self, given: int, beginning: WorkersPosition | None = None) -> Position | None:
        """Looks at main's part of the graph.

        Args:
            given: items that the user has by now.
            beginning: where the workers were when the epoch began, if it has only just begun.
        """
        output = self.output
        run = None if output is None else output.run
        try:
            pipes = Graph(self._pipeline.datapipe)
            with standing_still(pipes.pipes):  # threads draw random numbers, too
                entries, generators = save_entries(pipes), save_generators()
        except UnorderedSet:  # reading it again would give other items
            raise
        except Exception as error:  # what cannot be saved is made again
            self.unsaved = str(error)
            return None
        if output is None:
            return Position(given, graph=sealed(Content(entries)), generators=seal(generators))
        own = pipes.index(output)
        if output.is_unread and not token_of(output).armed:  # what it yielded was of the epoch before
            entries[own] = Entry(entries[own].type)
        read = self._read_by_main(entries[own], output)
        if read is not None:
            place = output.place(read)  # threads may have taken more since
        elif beginning is not None:
            place = beginning  # a pipe may have read some of it while it began
        else:
            return None
        if place is None or output.run is not run:  # a thread reads another pass by now
            return None
        return Position(
            given, graph=sealed(Content(entries)), workers=place, in_main=False, untold=output.untold(place)
        )

    def _read_by_main(self, entry: Entry, output: WorkerOutput) -> int | None:
        """Items of the workers' pass, since it began here, that main's part of the graph had read where it goes on.

        Returns:
            None if a pipe above is replayed, and reads all of the epoch again, or has come to the workers' end.
        """
        if entry.restores:
            # If the pipes above are replayed that is where this run began.
            return entry.yielded - self._yielded_before if output.is_in_first_pass else entry.yielded
        if not output.is_in_first_pass or output.delivered or (token_of(output).finished and not output.is_unread):
            return None
        return 0  # nobody has read them: they stand where this run found them

    def _cut_beginning(self) -> Position:
        """The place at which an epoch was to go on whose beginning has failed, or was cut off."""
        saved = self._run.saved_places
        if saved is not None and len(saved.places) > 1:
            raise RuntimeError("the states of all ranks were loaded: call iter(loader) before state_dict()")
        assert self._run.place is not None
        return self._run.place[0]

    def _between(self) -> Position | None:
        """The place between two epochs."""
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
        return Position(0, ended=True, graph=graph, generators=seal(save_generators()), beginning=beginning)

    def _saved_graph(self) -> bytes | None:
        """Main's part of the graph, if epochs have left something in it, and it can be saved."""
        self._require_no_drift()
        try:
            return sealed(Content(save_entries(self._pipeline.datapipe))) if self._has_lasting() else None
        except Exception:
            return None

    def _has_lasting(self) -> bool:
        """Whether epochs have left something in main's part of the graph."""
        begun = self._run.epochs if self._epochs_before is None else self._epochs_before
        return bool(begun) and lasts(self._pipeline.datapipe)

    def _require_no_drift(self) -> None:
        """Raises RuntimeError if what lasts in main's part of the graph is of an epoch that has not begun."""
        names = names_of_lasting(self._pipeline.datapipe) if self._epochs_before and self._has_lasting() else []
        if names:
            raise RuntimeError(
                f"{names[0]} keeps a state from epoch to epoch, and the beginning of the next one was cut off, by "
                "Ctrl-C for one: save the state before, or begin that epoch once more"
            )

    # -- epochs ------------------------------------------------------------------------------------

    def find_output(self) -> None:
        """Finds out who runs what, once the service has taken over the graph."""
        graph = Graph(self._pipeline.datapipe)
        self.output = graph.first(lambda pipe: isinstance(pipe, WorkerOutput))
        self.hands_on = self.output is not None and _only_counts(graph)
        self._may_count = self.hands_on and self.output is not None and not self.output.is_local

    def go_back(self, end: Position | str | None, epochs: int) -> None:
        """Goes back to between two epochs, the second of which was to begin and has not.

        Args:
            end: the `end` of before.
            epochs: how many had begun by then.
        """
        self.end = end
        self._epochs_before = epochs if self._run.epochs > epochs else None

    def begin(self, resumed: Position | None, strict: bool) -> None:
        """Begins an epoch, before the service is told; `resumed` is the place at which it goes on, if any."""
        self._delivery.given = 0
        self._delivery.cut = False
        self._is_resumed, self._is_strict = resumed is not None, strict
        self._before = self._cut_at = self._lost = 0
        self._since = time.monotonic()
        self._seconds_before = 0.0 if resumed is None else resumed.seconds or 0.0
        self.end = None
        unseeded = self._pipeline.service is None and self._run.seeds.seed is None
        self.own_seeds = unseeded and (resumed is None or resumed.own_seeds is not False)
        output = self.output
        # Items that main's pipes held when a state was saved did not come here.
        self._only_counts = self._may_count and (resumed is None or resumed.graph is None)
        if output is not None:
            output.resumes = resumed is not None
            output.follow(self._delivery if self._only_counts else None)
        if resumed is None:
            generators = None if output is not None else seal(save_generators())
            self._marks = [Position(0, beginning=generators, in_main=output is None)]
            return
        self._require_same_place(resumed, "inside an epoch that", "or save a state between two epochs")
        names = ("graph", "generators", "beginning", "workers", "in_main")
        mark = Position(resumed.given - resumed.drop, **{name: getattr(resumed, name) for name in names})
        self._marks = [mark]
        self._before = mark.given
        if output is not None and mark.workers is not None:
            output.go_on_at(mark.workers, strict)
        elif mark.beginning is not None:
            load_generators(generators_in(mark.beginning))

    def _require_same_place(self, place: Position, moment: str, advice: str) -> None:
        """Raises ValueError if workers run the graph now and did not when the place was taken, or the reverse."""
        if place.in_main != (self.output is None):
            raise ValueError(
                f"this state was saved {moment} "
                + ("ran in worker processes" if self.output is None else "ran in the main process")
                + f", and its pipeline runs elsewhere now: use the reading service with which it was saved, {advice}"
            )

    def iterate(self, resumed: Position | None) -> Iterator[Any]:
        """The iterator over main's part of the graph, after the service was told."""
        datapipe = self._pipeline.datapipe
        graph = None if resumed is None else Graph(datapipe)
        self._yielded_before = 0
        if resumed is None and self.output is not None:
            forget_state(self.output)  # what was loaded into it was of the epoch before
        if graph is not None and resumed is not None and resumed.graph is not None:
            entries = entries_in(resumed.graph)
            load_entries(graph, entries)
            if self.output is not None:
                self._yielded_before = token_of(self.output).yielded
                if entries[graph.index(self.output)].finished:  # main had come to the end of the workers' items
                    self.output.read_out()
        if resumed is not None and resumed.generators is not None:  # first: threads begin with the iterator
            load_generators(generators_in(resumed.generators))
        if graph is not None and resumed is not None:
            _spare_ranks(graph, resumed.drop)
            set_strictness(graph, self._is_strict)
        output, is_later = self.output, self._run.epochs > 1 or self._is_behind_loaded
        beginning = output.place(0) if resumed is None and is_later and output is not None else None
        iterator: Iterator[Any] = iterate(datapipe)
        if resumed is None and is_later:
            self._note_beginning(beginning)
        self._is_behind_loaded = False
        self._epochs_before = None
        return iterator

    def _note_beginning(self, workers: WorkersPosition | None) -> None:
        """Makes a mark of the epoch's beginning if what lasted beyond the last one matters to it.

        Args:
            workers: where the workers began.
        """
        output, (beginning, *_) = self.output, self._marks
        looked = self._look(0, workers) if lasts(self._pipeline.datapipe) else None
        if looked is not None:
            self._marks = [looked._replace(beginning=beginning.beginning)]
        elif output is not None and output.lasts:
            self._marks = [beginning._replace(workers=workers, untold=output.untold(workers))]

    def drop(self, resumed: Position | None) -> None:
        """Drops what was given behind the mark."""
        if resumed is None:
            return
        delivery = self._delivery
        for dropped in range(resumed.drop):
            try:
                delivery.step()
            except StopIteration:
                raise RuntimeError(
                    "this pipeline does not repeat itself, so it cannot go on from the state: it ended after "
                    f"{self._before + dropped} items, but {resumed.given} were given before the state was saved"
                ) from None
            delivery.given += 1

    def close(self) -> None:
        """Notes where an epoch has ended, as far as that matters to the next one."""
        output = self.output
        if output is None or not output.lasts:
            return
        before = self._marks[-1] if self._marks else None
        try:
            place = self.take(0)
        except Exception as error:
            self.end = str(error)  # the error itself would keep the processes
            return
        # If main's part cannot be looked at now, it goes on from an earlier mark, and reads to the end once more.
        is_at_end = place is not None and self._marks[-1] is not before and place.graph is self._marks[-1].graph
        if place is not None and is_at_end and place.graph is not None and place.workers is not None:
            place = place._replace(graph=self._with_output_read_out(place.graph, output))
        self.end = None if place is None else place._replace(ended=True)

    def _with_output_read_out(self, graph: bytes, output: WorkerOutput) -> bytes:
        """The state of main's part, which has ended, and in it whether the workers' items had all been read."""
        token = token_of(output)
        if not token.finished or output.is_unread:  # a cache may have spared main the workers' items of this epoch
            return graph
        entries, own = entries_in(graph), Graph(self._pipeline.datapipe).index(output)
        entries[own] = entries[own]._replace(restores=True, yielded=token.yielded, finished=True, state={})
        return sealed(Content(entries))

    def go_on_between(self, place: Position) -> None:
        """Goes on between two epochs that ran in main, before the seeds of the next one are drawn."""
        self._ended_seeds = copy.copy(self._run.seeds.initial)
        if place.generators is not None:
            load_generators(generators_in(place.generators))

    def load_between(self, place: Position) -> None:
        """The same for the graph, once the service has taken it over."""
        if place.graph is None:
            return
        self._require_same_place(place, "after an epoch that", "as it holds what pipes remember beyond epochs")
        generators = save_generators()
        if place.beginning is not None:  # what is replayed draws what it drew
            load_generators(generators_in(place.beginning))
        self._is_behind_loaded = True
        if self._ended_seeds is not None and (self._pipeline.service is not None or self._run.seeds.seed is not None):
            set_graph_random_seed(self._pipeline.datapipe, self._ended_seeds)  # as that epoch began
        load_entries(self._pipeline.datapipe, entries_in(place.graph))
        if self.output is not None:
            self.output.is_between_epochs = True
        iterate(self._pipeline.datapipe)  # the pass that has ended; the next one begins anew
        if self.output is not None:
            self.output.is_between_epochs = False
        load_generators(generators)


def _only_counts(graph: Graph) -> bool:
    """Whether all pipes between the workers' output and the end hand items on one by one, and hold nothing else."""
    return _below_counting(graph, WorkerOutput) is not None


def _below_counting(graph: Graph, kind: type) -> Any:
    """The uppermost pipe of a class, if those behind it hand items on one by one, and hold nothing else; else None."""
    pipe = graph.end
    while not isinstance(pipe, kind):
        known = type(pipe) in HOLDING or is_one_to_one(pipe)
        sources = graph.sources(pipe)
        if not known or len(sources) != 1:
            return None
        pipe = sources[0]
    return pipe


def _spare_ranks(graph: Graph, drop: int) -> None:
    """Lets `fullsync` at the end of a graph ask for votes from the item on that the user is given next.

    All ranks were given as many items. They make different numbers of items again, and pipes behind `fullsync` hold
    different numbers.

    Args:
        graph: the graph, into which a state was loaded, if there is one.
        drop: how many items are dropped behind that.
    """
    fullsync = _below_counting(graph, FullSync)
    if fullsync is not None:
        loaded, below = (record_of(pipe).loaded or Entry("") for pipe in (graph.end, fullsync))
        fullsync.make_again(drop + (loaded.drop or 0) - (below.yielded - loaded.yielded))
