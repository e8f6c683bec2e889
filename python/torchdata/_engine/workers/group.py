"""Starts, monitors and ends a group of child processes that run a program.

Until `shutdown`, a `Group` in the main process owns the children's process objects, and the shared memory for messages,
wake-ups and counters. `shutdown` is bounded in time, idempotent, and harmless in a forked child. A subclass of `Group`
runs graphs, datasets or functions of nodes. The subclass sends commands to the children through `members.commanders`,
and reads items through a `Collector`.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any, ClassVar, TypeVar

from torchdata._engine import snapshots
from torchdata._engine.items.codec import SharedMemoryHeld, dumps_by, refers_to_tensors
from torchdata._engine.processes.crossing import Handle, SharedPickle, main_without_file, warn_of_lacks
from torchdata._engine.processes.positions import SharedPositions
from torchdata._engine.processes.process import wait_for_all
from torchdata._engine.processes.shutdown import OwnsChildren
from torchdata._engine.processes.start import new_child, start_all, start_method_of
from torchdata._engine.workers.child import MAIN, ChildSetup, CommonSetup, raise_failure, run_child
from torchdata._engine.workers.hangs import Hangs, Survived
from torchdata._engine.workers.members import Members
from torchdata._engine.workers.program import Program
from torchdata._engine.workers.restart import Restarts
from torchdata._handlers import FailuresSuppressed, is_of_handler, raise_if_of_handler
from torchdata._native import BellBoard, Collector, Link, StatsBoard
from torchdata._observe.outside.stalls import warn_in_thread
from torchdata._observe.stats.counting import MAIN_PAGE, PIPES, Counting, Pages
from torchdata._observe.stats.processor import anonymous_memory
from torchdata._reporting import location_outside, warn_outside

R = TypeVar("R", bound=Restarts)

#: Buffers with fewer than `_LEAST_BUFFER` bytes stay in the pickle of a program.
_LEAST_BUFFER = 1024


def default_budget() -> int:
    """Returns a quarter of the machine's memory, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


class Group(OwnsChildren):
    """The processes that run a program. `start` starts them.

    Args:
        num_shards: the number of shards of all workers; None for one shard per worker.
        dispatch_window: the number of items that the dispatching process may be ahead of each worker.
        memory_budget: bytes of shared memory for items; None for a quarter of the machine's memory.
        commands: bytes of shared memory for the commands to each child; with 0, commands are streamed through a ring.
        pages: memory for the children's counters, from a loader that reads the group in threads; None creates new
            memory.
        snapshot_budget: bytes of the snapshots that the main process stores; None for no limit.
    """

    #: With full statistics and the start method "fork": the bytes of memory that each child inherits.
    inherited = 0

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
        pages: Pages | None = None,
        snapshot_budget: int | None = None,
    ) -> None:
        self._context, self._start_method = context, (method := start_method_of(context))
        #: Replaces exited children; None if the exit of a child is an error.
        self.restarts: Restarts | None = None
        self.num_workers = num_workers
        num_shards = num_workers if num_shards is None else num_shards
        self.dispatches = dispatch is not None
        self.budget = default_budget() if memory_budget is None else memory_budget
        warn_of_lacks()
        count = num_workers + (dispatch is not None)
        self.bells = BellBoard(1 + count)
        self._has_board = pages is None
        if pages is None:
            new = partial(StatsBoard, 1 + count, max(2, num_workers), PIPES, full_stats)
            pages = Pages(Counting(new(), MAIN_PAGE), 1, new)
        self.counting, self.first_page, new_board = pages
        self.stats = self.counting.board
        common = CommonSetup.under(method, self.bells, location_outside())
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
                page=self.first_page + index,
                worker_id=index if worker else 0,
                number=self.first_page + index - 1 if worker else 0,
                num_workers=num_workers,
                shards=members.shards_of(index) if worker else range(1),
                num_shards=num_shards,
                dispatches=not worker,
                program=programs[index],
                program_class=(kind.__module__, kind.__qualname__),
                common=common,
                stats=Handle(self.stats, new_board),  # a child that finds the counters damaged creates its own counters
                lines=lines,
                output_peers=[MAIN] if worker else list(range(1, 1 + num_workers)),
                dispatcher_index=count,
                dispatcher_page=self.first_page + num_workers,
                window=dispatch_window,
                cadence=snapshots.cadence(count),
                largest_snapshot=snapshots.largest(snapshot_budget, num_shards + (dispatch is not None)),
            )
            members.setups.append(setup)
            members.processes.append(new_child(context, members.names[index], run_child, (setup,), setup.modules))
        controls = [members.control(index) for index in range(count)]
        self._own(list(members.processes), controls, self.bells)
        #: Finds file positions that forked children share; None with other start methods.
        self._positions: SharedPositions | None = None
        if self._has_board:  # the counters must end even if no epoch is ever started
            self._shutdown.afterwards = partial(_stop_counting, self.counting)

    @property
    def is_forked(self) -> bool:
        return self._start_method == "fork"

    def replace_exited(self, kind: type[R], survived: Survived, in_order: bool = True) -> R | None:
        """Makes the group replace exited children. This method must be called before `start`."""
        if not survived:
            return None
        hangs = None
        if survived.hangs is not None:
            hangs = Hangs(self.members, self.stats, self.first_page, survived.hangs, survived.patience, in_order)
        self.restarts = restarts = kind(self.members, self._context, self._shutdown, hangs, survived.exits)
        return restarts

    def start(self) -> list[Link]:
        """Returns one link for each worker, over which the worker sends its items. If the start fails, the caller must
        shut the group down.
        """
        members, restarts = self.members, self.restarts
        indices = range(len(members.processes))

        def after_start(index: int) -> None:
            if restarts is None:
                # Starting further children may take long, so an earlier child's exit is reported first.
                members.check_alive(range(index))
            lines = members.setups[index].lines
            # The file descriptors of `lines.dispatched` stay open, because the dispatching process, which is started
            # last, needs them.
            if index < members.num_workers:
                lines.control.shared.close_descriptor()
                for handle in lines.outputs:
                    handle.shared.close_descriptor()

        if self._start_method == "fork":  # forked children inherit the mappings and the open files
            members.close_descriptors(indices)
            self._positions = SharedPositions(members.pids, self.dispatches)
            self.inherited = anonymous_memory(os.getpid())[0] if self.stats.full else 0
        start_all(members.processes, self._start_method, after_start)
        members.close_descriptors(indices)
        if restarts is None:
            self.bells.close_descriptor()
        members.commanders += [members.commander(index) for index in indices]
        self._shutdown.commanders += members.commanders
        outputs = [members.items_of(worker) for worker in range(self.num_workers)]
        if self._has_board:
            self.counting.adopt_main()
        if restarts is None:
            members.setups.clear()
        else:
            restarts.keep_forker()
        return outputs

    def begin_epoch(self) -> None:
        if self._positions is not None:
            self._positions.begin()

    def end_epoch(self) -> None:
        words = None if self._positions is None else self._positions.look()
        if words is not None:
            warn_in_thread(RuntimeWarning(words))

    def shutdown(self) -> None:
        try:
            self.end_epoch()
        finally:  # a signal handler may raise an exception in the `try` block
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
        """Creates the collector that receives the items of several workers with consecutive numbers, from `first` on.
        If `in_order` is True, the collector takes one item from each shard in turn.
        """
        peers = [1 + first + index for index in range(len(outputs))]
        collector = Collector(
            outputs, self.bells, MAIN, peers, raise_failure, in_order=in_order, timeout=timeout, shards=num_shards
        )
        if self._has_board:  # without an own board, threads wait for the items, and not the user's program
            self.counting.receive(collector, peers, first)
        return collector

    def watch(self, collector: Collector) -> None:
        """While the collector waits for an item, children that exit or hang are replaced, or an error is raised for
        them.
        """
        signs = [(index, process.sign) for index, process in enumerate(self.members.processes)]
        if self.restarts is not None:
            # A weak reference avoids a reference cycle between `collector`, `self.restarts` and the shutdown.
            own = weakref.ref(self.restarts)
            collector.watch_and_replace(
                signs,
                lambda *what: own().on_loss(*what),  # type: ignore[union-attr]
                lambda *what: own().on_replace(*what),  # type: ignore[union-attr]
            )
            if self.restarts.hangs is not None:
                collector.report_hang(self.restarts.hangs.look)
            return
        try:
            collector.watch(signs, self.members.report_exit)
        except ProcessLookupError:  # other code has reaped the exited child
            wait_for_all(processes := self.members.processes, 1.0, lambda: any(one.ended for one in processes))
            self.members.check_alive()
            raise

    @property
    def pids(self) -> list[int]:
        """The process ids of the children, with the dispatching process last; empty once the shutdown has begun."""
        return [] if self._shutdown.has_begun else self.members.pids()

    def check_alive(self, collector: Collector) -> bool:
        if self.restarts is None:
            self.members.check_alive()
            return False
        return self.restarts.replace_processes(collector)

    def look_at(self, worker: int) -> Callable[[], object]:
        """Returns a function that raises `Ended` if the worker has exited and will be replaced. If the worker has
        exited and will not be replaced, the function raises `WorkerExitedError` instead of `Ended`.
        """
        if self.restarts is None:
            return partial(self.members.check_alive, [worker])
        return self.restarts.look_at(worker)

    def release(self) -> None:
        self._finalize(False)


def _stop_counting(counting: Counting) -> None:
    counting.end()
    counting.close()
    counting.board.close_descriptor()


class _PickledAtStart:
    """A program that is pickled for each child while the child is being started, because the locks and queues of
    multiprocessing can be pickled only then."""

    def __init__(self, program: Program, start_method: str) -> None:
        self.program, self.modules, self._start_method = program, program.modules, start_method

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import ForkingPickler

        try:
            return pickle.loads, (bytes(ForkingPickler.dumps(self.program)),)
        except Exception as error:  # for example, a local function cannot be pickled
            raise_if_of_handler(error)
        from torchdata._by_value import ByValuePickler

        file = io.BytesIO()

        class AtStart(ByValuePickler):
            dispatch_table: ClassVar[Any] = {**ForkingPickler(file).dispatch_table, **ByValuePickler.dispatch_table}

        try:
            AtStart(file, protocol=5).dump(self.program)
        except Exception as error:
            raise_if_of_handler(error)
            raise TypeError(self.program.why_unpicklable(self._start_method, error)) from error
        return pickle.loads, (file.getvalue(),)


def _shared(program: Program, start_method: str) -> Program | SharedPickle:
    """Returns the program unchanged if the children inherit it, otherwise a pickle for all children."""
    if start_method not in ("spawn", "forkserver") or program.holds_shared_memory():
        return program
    try:
        pickled, buffers = pickled_program(program, copies_shared=False)
        if modules := ["torch"] if refers_to_tensors(pickled) else []:
            from torchdata._engine.items.moving import move_tensors

            with FailuresSuppressed(), sys.modules["torch"]._C.DisableTorchFunctionSubclass():
                move_tensors(buffers)  # if this fails, each tensor is copied
        return SharedPickle(pickled, buffers, modules)
    except SharedMemoryHeld:
        program.modules = ["torch"]
        return program  # torch itself passes tensors in shared memory to each child
    except Exception as error:
        raise_if_of_handler(error)
        if "inheritance" in str(error):
            return _PickledAtStart(program, start_method)  # type: ignore[return-value]  # unpickling returns a `Program`
        raise TypeError(program.why_unpicklable(start_method, error)) from error


def _main_cannot_be_imported() -> bool:
    """Returns True in an interactive session, with `python -c`, and for a program from standard input."""
    main = sys.modules.get("__main__")
    has_none = getattr(main, "__spec__", None) is None and not getattr(main, "__file__", None)
    return has_none or main_without_file() is not None


def _why_by_value(obj: Any, refined: Callable[[Any], Any]) -> str | None:
    """Returns the reason why a child cannot import all functions and classes of the object, or None."""
    try:
        pickled = dumps_by(refined(pickle.Pickler), obj, _LEAST_BUFFER)[0]
    except Exception as error:  # for example, a lambda cannot be pickled
        raise_if_of_handler(error)
        return str(error)
    return "this program is not in a file" if b"__main__" in pickled else None


def pickled_program(
    obj: Any, refined: Callable[[Any], Any] = lambda base: base, copies_shared: bool = True
) -> tuple[bytes, list[bytes | memoryview]]:
    """Pickles an object for a child by pickle, or by cloudpickle if necessary (lambdas, local classes).

    Args:
        refined: a function that derives the pickler class from a given class.
        copies_shared: whether tensors in shared memory are always copied; otherwise, they are copied only if a child
            cannot import the object's functions and classes.

    Returns the pickle and its large buffers, where tensors that overlap share one buffer.

    Raises SharedMemoryHeld for tensors in shared memory that must not be copied.
    """
    if not _main_cannot_be_imported():
        try:
            return dumps_by(refined(pickle.Pickler), obj, _LEAST_BUFFER, copies_shared)[:2]
        except SharedMemoryHeld:
            raise
        except Exception as error:
            # Locks and queues of multiprocessing can be pickled only while a child is being started; otherwise, they
            # raise an error whose message contains "inheritance".
            if is_of_handler(error) or "inheritance" in str(error):
                raise
    from torchdata._by_value import ByValuePickler

    try:
        return dumps_by(refined(ByValuePickler), obj, _LEAST_BUFFER, copies_shared)[:2]
    except SharedMemoryHeld:
        reason = _why_by_value(obj, refined)
        if reason is None:
            raise
        warn_outside(
            "each worker gets its own copy of the tensors in shared memory, because the workers cannot import all "
            f"functions and classes ({reason}): define these at the top level of a module to share the tensors",
            RuntimeWarning,
        )
        return dumps_by(refined(ByValuePickler), obj, _LEAST_BUFFER)[:2]
