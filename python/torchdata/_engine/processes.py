"""The children of one loader, as main sees them: started together, commanded, watched, ended.

Role: main's side of the processes. Owns the links, the bells and the process objects; everything is released by
`shutdown`, which is bounded, idempotent and harmless in a forked child that inherited the object. How children start
and end stands in `starting` and `ending`, how others take their places in `restarting`, the words about one that died
in `obituary`.
"""

from __future__ import annotations

import multiprocessing.popen_fork  # noqa: F401 - multiprocessing would import it at the first start, 3 ms later
import os
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any, NoReturn

from torchdata._engine import snapshots
from torchdata._engine.calls import Noted
from torchdata._engine.child import MAIN, ChildSetup, run_child
from torchdata._engine.crew import Crew
from torchdata._engine.crossing import Handle, SharedPickle, pickle_graph, warn_of_lacks, why_unpicklable
from torchdata._engine.ending import ChildProcess, OwnsChildren, wait_for_any
from torchdata._engine.entering import CommonSetup
from torchdata._engine.errors import WorkerExitedError
from torchdata._engine.failures import reraise
from torchdata._engine.obituary import obituary
from torchdata._engine.program import Program
from torchdata._engine.restarting import Received, Restarts, Run
from torchdata._engine.starting import new_child, start_all
from torchdata._native import BellBoard, Collector, StatsBoard
from torchdata._stats.counting import MAIN_PAGE, PIPES, Counting, Room
from torchdata._stats.stacks import answer_no_more
from torchdata._tracing import state as tracing
from torchdata.datapipes._pipe.graph import Graph

__all__ = ["Children", "Place"]

#: How long a child may take to obey a command that main waits for.
OBEDIENCE = 600.0
#: How often main looks meanwhile whether anybody is held up.
GLANCE = 0.002


def default_budget() -> int:
    """Shared memory that all links of one loader may use: a quarter of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


@dataclass(frozen=True)
class Place:
    """Where an earlier run of an epoch was left.

    Args:
        given: how far it had come with each worker.
        turn: whose turn it was.
        resumptions: by child, where it goes on.
        kept: the snapshots behind these, for the books.
    """

    given: list[snapshots.Account]
    turn: int
    resumptions: list[snapshots.Resumption | None]
    kept: tuple[list[snapshots.Kept | None], snapshots.KeptDealt | None]


class _Dying(Exception):
    """The child to which something is sent has died, or another one has its place by now."""


class Children(OwnsChildren):
    """Workers, and where something is to be dispatched the dispatching process.

    Args:
        context: multiprocessing context that starts them.
        num_workers: number of workers.
        program: what each worker runs.
        dispatch: what the dispatching process runs; None where there is none.
        window: items that each worker may be ahead of main.
        dispatch_window: items that the dispatching process may be ahead of each worker.
        memory_budget: bytes of shared memory for all of them; None for a quarter of the machine's.
        in_order: whether main takes items from the workers in strict turn.
        timeout: seconds that main waits for an item; None for ever.
        full_stats: whether the time of each pipe is taken.
        room: where they count, if they share a board with others whose place they take; None makes one.
        restarts: whether others take the places of those that die, instead of an error.
    """

    def __init__(
        self,
        context: BaseContext,
        num_workers: int,
        program: Program,
        dispatch: Program | None,
        *,
        window: int,
        dispatch_window: int,
        memory_budget: int | None,
        in_order: bool,
        timeout: float | None,
        full_stats: bool = False,
        room: Room | None = None,
        restarts: bool = False,
    ) -> None:
        self._owner_pid = os.getpid()
        self._num_workers = self.num_workers = num_workers
        self.dispatches = dispatch is not None
        self._window = window
        self._epoch = 0
        self._calls = 0
        self._timeout = timeout
        budget = default_budget() if memory_budget is None else memory_budget
        #: Bytes of shared memory for all of them.
        self.budget = budget
        warn_of_lacks()
        count = num_workers + (dispatch is not None)
        self._bells = BellBoard(1 + count)
        #: Whether others have taken their place.
        self.is_retired = False
        #: After how many seconds without an item main warns; None: never.
        self.stall_warning: float | None = None
        self.room = room or Room(StatsBoard(1 + count, max(2, num_workers), PIPES, full_stats))
        self.stats = self.room.board
        start_method = context.get_start_method()
        common = CommonSetup.under(start_method, self._bells)
        programs = [self._shared(program, start_method)] * num_workers
        if dispatch is not None:
            programs.append(self._shared(dispatch, start_method))
        self._crew = crew = Crew(num_workers, dispatch is not None, self._bells, budget)
        self._names, self._processes = crew.names, crew.processes
        for index, lines in enumerate(crew.new_lines(range(count))):
            worker = index < num_workers
            setup = ChildSetup(
                name=self._names[index],
                index=1 + index,
                pages_behind=self.room.first_page - 1,
                worker_id=index if worker else 0,
                num_workers=num_workers,
                dispatches=not worker,
                program=programs[index],
                module=type(program).__module__,
                common=common,
                stats=Handle(self.stats),
                lines=lines,
                output_peers=[MAIN] if worker else list(range(1, 1 + num_workers)),
                dispatcher_index=count,
                window=dispatch_window,
                cadence=snapshots.cadence(count),
            )
            crew.setups.append(setup)
            crew.processes.append(new_child(context, self._names[index], run_child, (setup,)))
        self._own(list(crew.processes), [crew.control(index) for index in range(count)], self._bells)
        # The loader may never come to an epoch: nobody else knows then that main answers.
        no_more = partial(answer_no_more, self.stats, MAIN_PAGE)
        if self.room.is_first:
            self._ending.afterwards = no_more
        self._restarts = Restarts(crew, context, self._ending, partial(_trace_of, self.room)) if restarts else None
        try:
            self._start(start_method)
            crew.commanders += [crew.commander(index) for index in range(count)]
            self._ending.commanders += crew.commanders
            self.collector = Collector(
                [crew.items_of(worker) for worker in range(num_workers)],
                self._bells,
                MAIN,
                list(range(1, 1 + num_workers)),
                _raise_failure,
                in_order=in_order,
                timeout=timeout,
            )
            counting = Counting(self.stats, MAIN_PAGE)
            if self.room.is_first:
                counting.adopt_main(self.collector, num_workers)
            else:
                counting.receive(self.collector, self.room, num_workers)
            self._watch()
            own = weakref.ref(self)  # and no WeakMethod, which would call Python code when it dies
            self.collector.tell_surplus(budget, lambda *what: own()._on_surplus(*what))  # type: ignore[union-attr]
        except BaseException:
            self.shutdown()
            raise
        if self._restarts is None:
            crew.setups.clear()
        self._ending.afterwards = no_more

    @staticmethod
    def _shared(program: Program, start_method: str) -> Program | SharedPickle:
        """The program as the children get it: as it is where they inherit it, else pickled once for all of them."""
        if start_method == "fork":
            return program
        try:
            return SharedPickle(pickle_graph(program))
        except Exception as error:
            if "inheritance" in str(error):
                return program  # pickled with each process, as such objects must be
            raise TypeError(why_unpicklable(Graph(program.datapipe).pipes, start_method)) from error

    def _start(self, start_method: str) -> None:
        crew, count = self._crew, len(self._processes)

        def see_to(index: int) -> None:
            if self._restarts is None:
                # Starting the others may take long: a death that was there before is not to wait for them.
                for before in range(index):
                    self._check(before)
            lines = crew.setups[index].lines
            # What the dispatching process needs, which is started last, it has in common with others.
            if index < crew.num_workers:
                lines.control.shared.close_descriptor()
                lines.outputs[0].shared.close_descriptor()

        if start_method == "fork":  # children inherit the mappings
            crew.close_descriptors(range(count))
        start_all(self._processes, start_method, see_to)
        crew.close_descriptors(range(count))
        if self._restarts is not None:
            self._restarts.keep_forker()
        if self._restarts is None or start_method == "fork":
            self._bells.close_descriptor()

    def _watch(self) -> None:
        restarts, processes = self._restarts, list(enumerate(self.pids))
        if restarts is not None:
            self.collector.watch_and_replace(processes, restarts.on_death, restarts.on_replace)
            return
        own = weakref.ref(self)
        try:
            self.collector.watch(processes, lambda index: own()._on_exit(index))  # type: ignore[union-attr]
        except ProcessLookupError:  # one has ended already, and was not reaped by us
            wait_for_any(self._processes, 1.0)
            self._check_alive()
            raise

    # -- what main asks of the children ------------------------------------------------------------

    def start_epoch(
        self,
        commands: Callable[[int], tuple[Any, Any]],
        resume: Callable[[Received], list[snapshots.Resumption | None]],
        *,
        announced: bool = False,
        place: Place | None = None,
    ) -> None:
        """Starts an epoch everywhere.

        Args:
            commands: by child, the seeds and the reset function.
            resume: from what was received of the workers, where each child goes on.
            announced: whether each worker begins with a snapshot, for which this waits.
            place: where an earlier run of the epoch was left; None for its beginning.
        """
        restarts, collector = self._restarts, self.collector
        if restarts is None:
            self._check_alive()
        before = self._end_of_run() if announced else None
        if restarts is not None and announced:
            restarts.await_repeated()
            self._await_obedience()  # where each was when it was told something, should this epoch be run again
        self._epoch += 1
        collector.start_epoch(self._epoch, self._window, *(() if place is None else (place.given, place.turn)))
        if place is not None:
            collector.keep(*place.kept)
        processes = list(self._processes)
        if restarts is not None:  # who takes a place from now on is told by whoever puts it there
            restarts.begin(Run(self._epoch, commands, resume, before))
            self._check_alive()
        # The dispatching process first: the others wait for it.
        for index in reversed(range(len(processes))):
            start = None if place is None else place.resumptions[index]
            command = (
                self._epoch,
                *commands(index),
                self._crew.announced(index) if announced else snapshots.Announced.NONE,
                start,
                _trace_of(self.room, index, self._names[index]),
            )
            self._send(index, "epoch", *command, to=processes[index])
        while announced:
            collector.await_snapshots(self.dispatches)
            if restarts is None or not self._check_alive():
                break

    def _end_of_run(self) -> tuple[Run, list[snapshots.Resumption | None]] | None:
        """The epoch that is over, and where each child would go on in it."""
        run = None if self._restarts is None else self._restarts.run
        found = self.collector.places()
        if run is None or found is None:
            return None
        places, _, dealt = found
        return replace(run, before=None), run.resume((places, dealt))

    def call(self, function: Callable[[Any], Any]) -> None:
        """Applies `function` to the graph of every child, between two items, and waits until all have done it.

        An epoch that runs goes on.
        """
        self._check_alive()
        restarts = self._restarts
        if restarts is None:
            self._calls += 1
            noted = Noted(self._calls, function)
        else:
            self._await_obedience()  # should the wait for an earlier one have been interrupted
            noted = restarts.note_call(function)
        for index in range(len(self._processes)):
            if self._is_resting(index):
                noted.places[index] = snapshots.BETWEEN  # for the one that takes its place in the next epoch
            else:
                self._send(index, "call", noted.serial, function, numbers=noted.numbers)
        self._await_obedience()

    def _is_resting(self, index: int) -> bool:
        return self._restarts is not None and self._restarts.rests(index)

    def _await_obedience(self) -> None:
        """Waits until all have obeyed their last command."""
        deadline = time.monotonic() + OBEDIENCE
        try:
            for index in range(len(self._processes)):
                while not self._is_resting(index) and not self._has_obeyed(index):
                    # A child that waits for the dispatching process comes to its next item only if nobody is held up.
                    self.collector.relieve(False)
                    if time.monotonic() >= deadline:
                        raise TimeoutError(
                            f"{self._names[index]} did not answer within {OBEDIENCE:.0f} s: its pipe is stuck"
                        )
        finally:
            self.collector.relieve(True)

    def ask_whether_ready(self) -> None:
        """Asks children that have just been started to say when they can begin; see `are_ready`."""
        for index in range(len(self._processes)):
            self._send(index, "call", 0, _nothing)

    def are_ready(self) -> bool:
        """Whether all have obeyed their last command. Does not wait.

        Raises:
            WorkerExitedError: one has died.
        """
        self._check_alive()
        return all(self._has_obeyed(index, 0.0) for index in range(len(self._processes)))

    def set_window(self, window: int) -> bool:
        """Lets each worker be so many items ahead of main, from now on. False while another thread reads."""
        if not self.collector.set_window(window):
            return False
        self._window = window
        return True

    @property
    def window(self) -> int:
        """Items that each worker may be ahead of main."""
        return self._window

    def retire(self) -> None:
        """Lets them go because others have taken their place, without waiting for them: `shutdown` does."""
        self.is_retired = True
        self._ending.afterwards = None
        self.collector.stop()
        for index in range(len(self._processes)):
            self.stats.set_replaced(self.room.first_page + index)
        self._ending.ask()

    @property
    def have_ended(self) -> bool:
        """Whether none of them runs any more."""
        return all(process.ended for process in self._processes)

    def _has_obeyed(self, index: int, seconds: float = GLANCE) -> bool:
        """Waits a little for the child to obey its last command; whether it has."""
        crew = self._crew
        try:
            return crew.commanders[index].wait_acknowledged(crew.sent[index], seconds, self._look_at(index))
        except _Dying:
            self._check_alive()
            return False

    def _send(
        self,
        index: int,
        kind: str,
        number: int,
        *content: Any,
        to: ChildProcess | None = None,
        numbers: dict[int, int] | None = None,
    ) -> None:
        """Sends a command, to that process alone if it is given, else to whoever has the place."""
        while to is None or self._processes[index] is to:
            try:
                tick = self._look_at(index)
                self._crew.send(index, kind, number, *content, seconds=self._timeout, tick=tick, numbers=numbers)
                return
            except _Dying:
                self._check_alive()
            except TimeoutError:
                raise TimeoutError(
                    f"{self._names[index]} has taken no command for {self._timeout:g} s (the `timeout` of the reading "
                    "service): its pipe is stuck in one item, or the process was stopped"
                ) from None

    def _look_at(self, index: int) -> Callable[[], object]:
        """What is looked at while a child is waited for."""
        if self._restarts is None:
            return self._check_alive
        process, rests = self._processes[index], self._restarts.rests
        # Whoever waits for the dispatching process in the midst of an item obeys when that goes on.
        others = range(len(self._processes)) if self.dispatches else ()

        def look() -> None:
            if process.ended or self._processes[index] is not process:
                raise _Dying
            if any(self._processes[other].ended for other in others if not rests(other)):
                raise _Dying

        return look

    # -- life and death ----------------------------------------------------------------------------

    def _check_alive(self) -> bool:
        """Raises the error of a child that has died, or sees to it that another one has its place; whether one has."""
        if self._restarts is None:
            for index in range(len(self._processes)):
                self._check(index)
            return False
        while True:
            rests = self._restarts.rests
            dead = [i for i, process in enumerate(self._processes) if process.ended and not rests(i)]
            if not dead or self.collector.replace_dead(dead):
                return bool(dead)
            time.sleep(GLANCE)  # a thread that reads finds out by itself

    def _check(self, index: int) -> None:
        if self._processes[index].ended:
            self._on_exit(index)

    def _on_exit(self, index: int) -> NoReturn:
        process = self._processes[index]
        process.wait(1.0)
        code = process.exitcode
        raise WorkerExitedError(
            obituary(process),
            worker=index if index < self._num_workers else None,
            exitcode=code,
            stage="dispatching items" if index == self._num_workers else "reading items",
        )

    def _on_surplus(self, waited_for: int, taken_in: int, size: int) -> None:
        warnings.warn(
            f"the main process holds {size / 2**20:.0f} MiB of items, more than the memory budget: it waits for "
            f"{self._names[waited_for]} in turn, which gets its next dispatched item only after "
            f"{self._names[taken_in]} has taken its own. The workers yield very different numbers of items for what is "
            "dispatched to them: use in_order=False, or even the numbers out (unbatch after the workers)",
            RuntimeWarning,
            stacklevel=2,
        )

    @property
    def pids(self) -> list[int]:
        """Process numbers, the dispatching process last."""
        return [process.pid for process in self._processes if process.pid is not None]


def _nothing(_graph: Any) -> None:
    """What children do that are asked whether they are ready."""


def _raise_failure(_peer: int, description: Any) -> NoReturn:
    reraise(description)


def _trace_of(room: Room, index: int, name: str) -> str | None:
    """Where a child writes its trace; None where nothing is traced."""
    writing = tracing.current
    return None if writing is None else writing.path_for(room.board, room.first_page + index, name)
