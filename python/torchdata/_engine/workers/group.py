"""A group of child processes that run a given program over links, as main sees it: started together, watched, ended.

Role: main's side. Owns the links, the bells, the counters and the process objects; `shutdown` releases everything. It
is bounded, idempotent and harmless in a forked child that inherited the object. The program says what is run, and what
its workers are called; the owner of the group commands them by `commanders`, and reads by the collectors that it makes.
`processes/start.py` starts children, `processes/shutdown.py` ends them.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any

from torchdata._engine import snapshots
from torchdata._engine.items.codec import dumps_by
from torchdata._engine.processes.crossing import Handle, SharedPickle, main_without_file, warn_of_lacks
from torchdata._engine.processes.interrupts import is_of_handler
from torchdata._engine.processes.positions import SharedPositions
from torchdata._engine.processes.process import wait_for_any
from torchdata._engine.processes.shutdown import OwnsChildren, Shutdown
from torchdata._engine.processes.start import new_child, start_all, start_method_of
from torchdata._engine.workers.child import MAIN, ChildSetup, CommonSetup, raise_failure, run_child
from torchdata._engine.workers.hangs import Hangs, Survived
from torchdata._engine.workers.members import Members
from torchdata._engine.workers.program import Program
from torchdata._native import BellBoard, Collector, Link, OwnedDescriptor, StatsBoard
from torchdata._observe.outside.stalls import warn_in_thread
from torchdata._observe.stats.counting import MAIN_PAGE, PIPES, Counting
from torchdata._reporting import place_outside

__all__ = ["Group", "default_budget", "pickled_program"]

#: Buffers of fewer bytes stay in the pickle of a program.
_LEAST_BUFFER = 1024


def default_budget() -> int:
    """Shared memory that all links of one group may use: a quarter of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


class Group(OwnsChildren):
    """Workers, and if something is to be dispatched the dispatching process. `start` starts them.

    Args:
        context: multiprocessing context that starts them.
        num_workers: number of workers.
        num_shards: number of shards that they run, at least as many as workers; None for one each.
        program: what each worker runs.
        dispatch: what the dispatching process runs; None if there is none.
        dispatch_window: items that the dispatching process may be ahead of each worker.
        memory_budget: bytes of shared memory for what they send; None for a quarter of the machine's.
        commands: bytes of shared memory for the commands to each; 0 for a ring, over which larger ones are streamed.
        full_stats: whether the time of each pipe is taken.

    Raises:
        TypeError: a program cannot be pickled, which the start method needs.
    """

    def __init__(
        self,
        context: BaseContext,
        num_workers: int,
        program: Program,
        dispatch: Program | None = None,
        *,
        num_shards: int | None = None,
        dispatch_window: int = 0,
        memory_budget: int | None = None,
        commands: int = 0,
        full_stats: bool = False,
    ) -> None:
        self._start_method = method = start_method_of(context)
        self.num_workers = num_workers
        num_shards = num_workers if num_shards is None else num_shards
        self.dispatches = dispatch is not None
        #: Bytes of shared memory for what they send.
        self.budget = default_budget() if memory_budget is None else memory_budget
        warn_of_lacks()
        count = num_workers + (dispatch is not None)
        self.bells = BellBoard(1 + count)
        new_stats = partial(StatsBoard, 1 + count, max(2, num_workers), PIPES, full_stats)
        self.stats = new_stats()
        common = CommonSetup.under(method, self.bells, place_outside())
        programs = [_shared(program, method)] * num_workers
        if dispatch is not None:
            programs.append(_shared(dispatch, method))
        kind = type(program)
        self.members = members = Members(
            num_workers, num_shards, self.dispatches, self.bells, self.budget, kind, commands
        )
        for index, lines in enumerate(members.new_lines(range(count))):
            worker = index < num_workers
            setup = ChildSetup(
                name=members.names[index],
                index=1 + index,
                worker_id=index if worker else 0,
                num_workers=num_workers,
                shards=members.shards_of(index) if worker else range(1),
                num_shards=num_shards,
                dispatches=not worker,
                program=programs[index],
                program_class=(kind.__module__, kind.__qualname__),
                common=common,
                stats=Handle(self.stats, new_stats),  # damaged counters are no reason for an error
                lines=lines,
                output_peers=[MAIN] if worker else list(range(1, 1 + num_workers)),
                dispatcher_index=count,
                dispatcher_page=count,
                window=dispatch_window,
                cadence=snapshots.cadence(count),
            )
            members.setups.append(setup)
            members.processes.append(new_child(context, members.names[index], run_child, (setup,)))
        controls = [members.control(index) for index in range(count)]
        self._own(list(members.processes), controls, self.bells)
        #: What watches files that the children share with each other.
        self._positions: SharedPositions | None = None
        #: The counters of main.
        self.counting = Counting(self.stats, MAIN_PAGE)
        # The owner may never come to an epoch: nobody else knows then that main answers.
        self._shutdown.afterwards = partial(_count_no_more, self.counting)

    @property
    def is_forked(self) -> bool:
        """Whether the children began as copies of the main process."""
        return self._start_method == "fork"

    @property
    def ending(self) -> Shutdown:
        """The shutdown of the children."""
        return self._shutdown

    def start(self, replaces: bool = False) -> list[Link]:
        """Starts all children before it waits for any. The caller shuts the group down if that fails.

        Args:
            replaces: whether others take the places of children that die, instead of an error.

        Returns:
            By worker, the link over which it sends.

        Raises:
            OSError: the system has no room for a process.
            WorkerExitedError: one has died already.
        """
        members, indices = self.members, range(len(self.members.processes))

        def see_to(index: int) -> None:
            if not replaces:
                # Starting the others may take long: a death that was there before is not to wait for them.
                members.check_alive(range(index))
            lines = members.setups[index].lines
            # The dispatching process is started last, and shares its descriptors with the workers.
            if index < members.num_workers:
                lines.control.shared.close_descriptor()
                for handle in lines.outputs:
                    handle.shared.close_descriptor()

        if self._start_method == "fork":  # children inherit the mappings, and open files
            members.close_descriptors(indices)
            self._positions = SharedPositions(members.pids, self.dispatches)
        start_all(members.processes, self._start_method, see_to)
        members.close_descriptors(indices)
        if not replaces:
            self.bells.close_descriptor()
        members.commanders += [members.commander(index) for index in indices]
        self._shutdown.commanders += members.commanders
        outputs = [members.items_of(worker) for worker in range(self.num_workers)]
        if not replaces:
            members.setups.clear()
        self.counting.adopt_main()
        return outputs

    def begin_epoch(self) -> None:
        """Notes that an epoch begins, in which the children read."""
        if self._positions is not None:
            self._positions.begin()

    def end_epoch(self) -> None:
        """Warns if the children have read a file through one position in the epoch; an epoch ends once."""
        words = None if self._positions is None else self._positions.look()
        if words is not None:
            warn_in_thread(RuntimeWarning(words))

    def shutdown(self) -> None:
        """Ends all children; see `OwnsChildren.shutdown`."""
        try:
            self.end_epoch()
        finally:  # a signal handler may raise
            super().shutdown()

    def collect(
        self,
        outputs: Sequence[Link],
        first: int = 0,
        *,
        num_shards: int | None = None,
        in_order: bool = True,
        timeout: float | None = None,
    ) -> Collector:
        """Makes the reader of the items that workers send.

        Args:
            outputs: the links of consecutive workers.
            first: the number of the first of these workers.
            num_shards: the number of shards that they run; None for one each.
            in_order: whether items are taken from the shards in strict turn.
            timeout: seconds to wait for an item; None for ever.
        """
        peers = [1 + first + index for index in range(len(outputs))]
        collector = Collector(
            outputs,
            self.bells,
            MAIN,
            peers,
            raise_failure,
            in_order=in_order,
            timeout=timeout,
            shards=num_shards,
        )
        self.counting.receive(collector, peers, first)
        return collector

    def hangs(self, survived: Survived, in_order: bool = True) -> Hangs | None:
        """What ends children that hang; None if nothing is to.

        Args:
            survived: the ends of children that are survived.
            in_order: whether main waits for one worker in particular.
        """
        if survived.hangs is None:
            return None
        return Hangs(self.members, self.stats, survived.hangs, survived.patience, in_order)

    def watch(self, collector: Collector) -> None:
        """Makes a collector raise the error of a child that dies while it waits for an item."""
        try:
            collector.watch(self.signs, self.members.report_exit)
        except ProcessLookupError:  # one has ended already, and was not reaped by us
            wait_for_any(self.members.processes, 1.0)
            self.members.check_alive()
            raise

    @property
    def pids(self) -> list[int]:
        """Process numbers, the dispatching process last."""
        return self.members.pids()

    @property
    def signs(self) -> list[tuple[int, int | OwnedDescriptor]]:
        """By child, what tells a collector of its end."""
        return [(index, process.sign) for index, process in enumerate(self.members.processes)]

    def release(self) -> None:
        """Ends all children if that was not done yet; for a `__del__`, at interpreter exit, too."""
        self._finalize(False)


def _count_no_more(counting: Counting) -> None:
    """Ends main's counting after a group whose counters belong to no loader."""
    counting.end()
    counting.close()
    counting.board.close_descriptor()


def _shared(program: Program, start_method: str) -> Program | SharedPickle:
    """The program as the children get it: as it is if they inherit it, else pickled once for all of them."""
    if start_method not in ("spawn", "forkserver") or program.holds_shared_memory():
        return program
    try:
        return SharedPickle(*pickled_program(program))
    except Exception as error:
        if is_of_handler(error):
            raise
        if "inheritance" in str(error):
            return program  # pickled with each process, as such objects must be
        raise TypeError(program.why_unpicklable(start_method, error)) from error


def _main_cannot_be_imported() -> bool:
    """Whether a child could not import what `__main__` defines (an interactive session, `python -c`, stdin)."""
    main = sys.modules.get("__main__")
    has_none = getattr(main, "__spec__", None) is None and not getattr(main, "__file__", None)
    return has_none or main_without_file() is not None


def pickled_program(obj: Any, refined: Callable[[Any], Any] = lambda base: base) -> tuple[bytes, list[memoryview]]:
    """Pickles what a child needs: by pickle if it can, else by cloudpickle (lambdas, local classes).

    Args:
        obj: what is pickled.
        refined: returns the class of picklers to use, which is derived from the one that it is given.

    Returns:
        The pickle, and the large buffers that belong to it. Tensors that overlap share one buffer.
    """
    if not _main_cannot_be_imported():
        try:
            return dumps_by(refined(pickle.Pickler), obj, _LEAST_BUFFER)[:2]
        except Exception as error:
            # Locks and queues of multiprocessing travel only while a child is started.
            if is_of_handler(error) or "inheritance" in str(error):
                raise
    from torchdata._by_value import ByValuePickler

    return dumps_by(refined(ByValuePickler), obj, _LEAST_BUFFER)[:2]
