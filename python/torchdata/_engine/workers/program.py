"""The interface between the engine, which starts processes and connects them, and the programs that child processes
run.

`DataLoader2`, `StatefulDataLoader` and `torchdata.nodes` each have their own program for child processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from torchdata._engine.errors import WorkerExitedError
from torchdata._engine.processes.exit_messages import exit_message
from torchdata._engine.snapshots import Taken
from torchdata._native import SavedGlobals

if TYPE_CHECKING:
    from torchdata._engine.processes.process import ChildProcess


class Runner(Protocol):
    #: Whether a waiting command interrupts the loop that sends items, between two items.
    is_interrupted: ClassVar[bool]
    #: The encoded exception that prevented the preparation of the program, and that the runner sends instead of items.
    failure: tuple[Any, ...] | None

    def __init__(self, child: Any) -> None:
        """`child` is the `ChildLoop` that receives the commands."""

    def prepare(self, program: Any) -> None:
        """Called once, before the first command. An exception of `prepare` is stored in `failure`."""

    def execute(self, command: tuple[Any, ...]) -> bool:
        """Carries out a command; returns False if the command was to stop."""


class Program(ABC):
    runner: ClassVar[type[Runner]]
    worker_name: ClassVar[str] = "worker process {}"
    #: A phrase that describes what the workers do, for the error message about the exit of a worker.
    stage: ClassVar[str] = "reading items"
    #: Three phrases (`item`, `counted`, `to_correct`) for the error message about a worker that repeatedly exits at the
    #: same item, such as "item 7 in the epoch". The phrase `to_correct` names the part of the program that the user
    #: should correct.
    item: ClassVar[str] = "item"
    counted: ClassVar[str] = " in the epoch"
    to_correct: ClassVar[str] = "pipe"
    #: Large modules that are imported when the program is unpickled.
    modules: Sequence[str] = ()

    @abstractmethod
    def why_unpicklable(self, start_method: str, error: Exception) -> str:
        """Returns the message of the `TypeError` for a program that cannot be pickled although the start method
        requires pickling.
        """

    def holds_shared_memory(self) -> bool:
        """Returns True if the program contains objects that must not be copied, so that each process needs its own
        pickle.
        """
        return False

    @classmethod
    def exit_error(
        cls, process: ChildProcess, worker: int | None, text: str | None = None, item: int | None = None
    ) -> WorkerExitedError:
        """Returns the error for the exit of a process, with the message `text`, or with a standard message if `text` is
        None. `item` is the number of the item that the process was computing; None if the loader does not restart
        processes.
        """
        stage = cls.stage if worker is not None else "dispatching items"
        return WorkerExitedError(text or exit_message(process), worker, process.exitcode, stage, item)


class ChildInfo(NamedTuple):
    worker_id: int
    num_workers: int
    dispatches: bool
    open_dispatched: Callable[[], Iterator[Any]] | None
    #: A function that returns the number of the current iteration over the dispatched items, and the number and the
    #: checksum of the items received in this iteration.
    share: Callable[[], tuple[int, tuple[int, int]]] | None = None
    #: The size in bytes above which snapshots are sent only if the main process has requested large snapshots.
    largest_snapshot: int | None = None


class EpochProgram(Program):
    """If a method of a program raises an exception, the main process receives the exception instead of items."""

    datapipe: Any
    #: The number of the epoch, from 0, which the runner sets before `begin_epoch`.
    epoch: int = 0
    #: The variables and random generators of this shard, if the process runs several shards.
    globals: SavedGlobals

    @abstractmethod
    def prepare(self, child: ChildInfo) -> None:
        """Called once, before the first epoch."""

    @abstractmethod
    def begin_epoch(self, seeds: bytes, iter_reset_fn: Callable[[Any], Any] | None) -> None:
        """Called before each epoch.

        Args:
            iter_reset_fn: a function that may change the graph before it is read; None for no change.
        """

    def replicas(self, count: int) -> list[EpochProgram]:
        """Called before `prepare`; returns `count` programs, one per shard, including this one."""
        if count > 1:
            raise NotImplementedError(f"{type(self).__name__} runs one shard in a process")
        return [self]

    def end_epoch(self, has_failed: bool) -> None:
        """Called after each epoch. `has_failed` is true if this shard raised an exception."""

    def close(self) -> None:
        """Called after the last epoch, unless the process exits."""

    def enter(self) -> None:
        """Called when the process switches to this shard from another shard. The engine does not call `enter` if only
        `globals` must be exchanged.
        """

    def leave(self) -> None:
        """Called when the process switches from this shard to another shard, in the same cases as `enter`."""

    @abstractmethod
    def snapshot(self, most: int | None = None, *, begins: bool = False, waits: bool = True) -> Taken | None:
        """Called between two items. Returns a snapshot, which consists of the result of `share` and of bytes for
        `resume_from`; None if no snapshot is possible now.

        Args:
            most: the maximum size in bytes; a larger snapshot raises TooLargeError.
            begins: whether this is the first snapshot of an epoch.
            waits: whether to wait for read-ahead threads that are computing an item; if False, returns None while such
                a thread is busy.
        """

    def note(self) -> object:
        """Returns a message from this program to the `listener` of `Children` in the main process, or None. The engine
        calls `note` whenever it takes a snapshot, and at the end of each iteration.
        """
        return None

    @abstractmethod
    def resume_from(self, snapshot: bytes | None, strict: bool = True) -> Iterator[Any]:
        """Returns an iterator that resumes after the snapshot; if `snapshot` is None, the iterator begins with the
        first item. Called after `begin_epoch`.

        Args:
            strict: whether sources verify the items that they reread.
        """

    @abstractmethod
    def call(self, function: Callable[[Any], Any]) -> None:
        """Applies a function to the graph. If the function returns another graph, the next epoch uses this graph."""
