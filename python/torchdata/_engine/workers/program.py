"""The interface between the engine and the programs that children run. The interface consists of a program, and of a
runner that carries out commands for the program.

Role: the engine itself handles only processes, links and commands. The engine runs three kinds of programs: the graphs
of `DataLoader2`, the datasets of `StatefulDataLoader` and the functions of nodes. The main process pickles a program
once for all children that run it. Each kind is a subclass of `Program`, which specifies the runner and the wording of
error messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from torchdata._engine.errors import WorkerExitedError
from torchdata._engine.processes.exit_messages import exit_message
from torchdata._native import SavedGlobals

if TYPE_CHECKING:
    from torchdata._engine.processes.process import ChildProcess


class Runner(Protocol):
    """Carries out the main process's commands in one child."""

    #: Whether the pump, which sends the items, returns between two items if a command is waiting. If `is_interrupted`
    #: is False, the runner checks for commands itself.
    is_interrupted: ClassVar[bool]
    #: The encoded exception that prevents the program from running; the runner sends it instead of items.
    failure: tuple[Any, ...] | None

    def __init__(self, child: Any) -> None:
        """`child` is the `ChildLoop` that receives the commands."""

    def prepare(self, program: Any) -> None:
        """The child calls this method once, before the first command. If `prepare` raises an exception, this exception
        is stored in `failure`."""

    def obey(self, command: tuple[Any, ...]) -> bool:
        """Carries out a command. Returns False after the command to stop."""


class Program(ABC):
    """Describes what the workers of a group run."""

    runner: ClassVar[type[Runner]]
    #: The name of each worker in messages, by its number.
    worker_name: ClassVar[str] = "worker process {}"
    #: The activity of a worker, in the words of the error that reports its exit.
    stage: ClassVar[str] = "reading items"
    #: Words for messages: the name of one result of a worker, the scope in which results are counted, and what the user
    #: should correct if computing one result always ends the process.
    item: ClassVar[str] = "item"
    counted: ClassVar[str] = " in the epoch"
    mended: ClassVar[str] = "pipe"
    #: The names of modules that need much memory, and that are imported when the program is unpickled.
    modules: Sequence[str] = ()

    @abstractmethod
    def why_unpicklable(self, start_method: str, error: Exception) -> str:
        """Returns the message of the `TypeError` for a program that cannot be pickled although the start method
        requires this.
        """

    def holds_shared_memory(self) -> bool:
        """Returns whether the program contains objects that must not be copied, so that it must be pickled for each
        process."""
        return False

    @classmethod
    def exit_error(
        cls, process: ChildProcess, worker: int | None, text: str | None = None, item: int | None = None
    ) -> WorkerExitedError:
        """Returns the error that reports the exit of a worker, or of the dispatching process if `worker` is None.

        Args:
            text: the message; None for the standard description and advice.
            item: the number of the item at which the process exited, if restarts were allowed.
        """
        stage = cls.stage if worker is not None else "dispatching items"
        return WorkerExitedError(text or exit_message(process), worker, process.exitcode, stage, item)


@dataclass(frozen=True)
class ChildInfo:
    """Describes the process in which a program runs.

    Args:
        worker_id: the number of the worker, from 0; always 0 in the dispatching process.
        num_workers: the number of workers.
        dispatches: whether this is the dispatching process.
        open_dispatched: returns an iterator over the items that are dispatched to this worker; None if nothing is
            dispatched.
    """

    worker_id: int
    num_workers: int
    dispatches: bool
    open_dispatched: Callable[[], Iterator[Any]] | None
    #: Returns how many dispatched items this worker has read: the number of the pass over these items, and the count
    #: and the checksum of the items that were read in this pass.
    share: Callable[[], tuple[int, tuple[int, int]]] | None = None
    #: Snapshots with more bytes are sent only if the main process has requested large snapshots; None for no limit.
    largest_snapshot: int | None = None


class Listener(Protocol):
    """Receives, in the main process, the results of `EpochProgram.note` from the workers."""

    def begin(self) -> None:
        """The main process calls this method before each epoch."""

    def hear(self, worker: int, note: Any) -> None:
        """The main process calls this method for each result that is not None, before it delivers later items of the
        worker. If this method raises an exception, the user's program receives this exception."""


class EpochProgram(Program):
    """A program that is iterated once in each epoch. Exceptions of its methods are sent to the main process instead of
    items.
    """

    #: The pipe that is iterated in each epoch.
    datapipe: Any
    #: The number of the epoch, from 0. The runner sets `epoch` before it calls `begin_epoch`.
    epoch: int = 0
    #: The variables and random generators of the shard, if `replicas` returns several programs.
    globals: SavedGlobals

    @abstractmethod
    def prepare(self, child: ChildInfo) -> None:
        """The runner calls this method once, before the first epoch."""

    @abstractmethod
    def begin_epoch(self, seeds: bytes, iter_reset_fn: Callable[[Any], Any] | None) -> None:
        """The runner calls this method before each epoch.

        Args:
            iter_reset_fn: a function that changes the graph before it is read; None leaves the graph unchanged.
        """

    @abstractmethod
    def beginning_unread(self) -> AbstractContextManager[None]:
        """Returns a context in which `go_on_from` reads no items, so that a snapshot can be taken before the first
        item.
        """

    def replicas(self, count: int) -> list[EpochProgram]:
        """Returns `count` programs, one per shard, including this one. The runner calls this method before it prepares
        the programs."""
        if count > 1:
            raise NotImplementedError(f"{type(self).__name__} runs one shard in a process")
        return [self]

    def close(self) -> None:
        """The runner calls this method after the last epoch, if the process continues."""

    def enter(self) -> None:
        """The runner calls this method when the process switches from another shard's program to this program. The
        runner skips this call if it is enough to save and restore `globals`."""

    def leave(self) -> None:
        """The runner calls this method before it switches the process to another shard's program; see `enter`."""

    @abstractmethod
    def snapshot(self, most: int | None = None, *, begins: bool = False) -> tuple[int, tuple[int, int], bytes] | None:
        """The runner calls this method between two items.

        Args:
            most: the largest number of bytes of the snapshot; None for no limit.
            begins: whether this is the snapshot with which an epoch begins.

        Returns:
            The position in the dispatched items (the pass, the number of items that were read, and their checksum), and
            bytes for `go_on_from`; None if no snapshot can be taken now.

        Raises:
            TooLargeError: the snapshot has more bytes than `most`.
        """

    def note(self) -> object:
        """Returns an object to send to the main process's `Listener`, or None to send nothing. The runner calls this
        method whenever it takes a snapshot, and at the end of each iteration."""
        return None

    @abstractmethod
    def go_on_from(self, snapshot: bytes | None, strict: bool = True) -> Iterator[Any]:
        """Returns an iterator that resumes after a snapshot; with None, the iterator begins with the first item. The
        runner calls this method after `begin_epoch`.

        Args:
            snapshot: a result of the method `snapshot`.
            strict: whether sources verify the items that they reread.
        """

    @abstractmethod
    def call(self, function: Callable[[Any], Any]) -> None:
        """Applies a function that the main process has sent to the graph. If the function returns a graph, this graph
        replaces the old graph in the next epoch.
        """
