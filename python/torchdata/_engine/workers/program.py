"""The programs of a group's children, as the engine sees them: a program, and the runner that carries out commands for
it.

Role: the contract between the engine, which knows processes, links and commands, and the three that have something to
run in them: `DataLoader2`'s graphs, `StatefulDataLoader`'s datasets and the functions of nodes. Main pickles a program
once for all children that run it; its class names the runner and words what differs between the three.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from torchdata._engine.errors import WorkerExitedError
from torchdata._engine.processes.exit_messages import exit_message

if TYPE_CHECKING:
    from torchdata._engine.processes.process import ChildProcess

__all__ = ["ChildInfo", "EpochProgram", "Listener", "Program", "Runner"]


class Runner(Protocol):
    """Carries out main's commands in one child."""

    #: Whether a command that waits ends the pump's run between two items; else the runner looks for commands itself.
    is_interrupted: ClassVar[bool]
    #: Why the program cannot be run, described; the runner reports it in the place of items.
    failure: tuple[Any, ...] | None

    def __init__(self, child: Any) -> None:
        """`child` is the `Child` whose commands are carried out."""

    def prepare(self, program: Any) -> None:
        """Called once, before the first command. Its error becomes the `failure`."""

    def obey(self, command: tuple[Any, ...]) -> bool:
        """Carries out a command; returns whether another one is to follow."""


class Program(ABC):
    """The program of a group's workers."""

    #: The class of the runner.
    runner: ClassVar[type[Runner]]
    #: The name of each worker in messages, by its number.
    worker_name: ClassVar[str] = "worker process {}"
    #: The work of a worker, in the words of the error that reports its death.
    stage: ClassVar[str] = "reading items"
    #: What a worker makes one of after the other, from when on these are counted, and what is to be mended where one
    #: ends its process each time.
    item: ClassVar[str] = "item"
    counted: ClassVar[str] = " in the epoch"
    mended: ClassVar[str] = "pipe"

    @abstractmethod
    def why_unpicklable(self, start_method: str, error: Exception) -> str:
        """The message of the `TypeError` if the program cannot be pickled, which a start method needs."""

    def holds_shared_memory(self) -> bool:
        """Whether something in it must not be copied, so that it is pickled with each process."""
        return False

    @classmethod
    def exit_error(
        cls, process: ChildProcess, worker: int | None, text: str | None = None, item: int | None = None
    ) -> WorkerExitedError:
        """The error that reports the death of a worker, or of the dispatching process if `worker` is None.

        Args:
            process: the one that has died.
            worker: its number.
            text: what is said; None for what happened, and what to do.
            item: the number of the item at which it died, where another process would have taken its place.
        """
        stage = cls.stage if worker is not None else "dispatching items"
        return WorkerExitedError(text or exit_message(process), worker, process.exitcode, stage, item)


@dataclass(frozen=True)
class ChildInfo:
    """Where in the loader a program runs.

    Args:
        worker_id: the number of the worker, from 0; 0 in the dispatching process as well.
        num_workers: the number of workers.
        dispatches: whether this is the dispatching process.
        open_dispatched: makes an iterator over the items that are dealt to this worker; None if nothing is
            dispatched.
    """

    worker_id: int
    num_workers: int
    dispatches: bool
    open_dispatched: Callable[[], Iterator[Any]] | None
    #: The part of the dispatched items that was read: the pass; items and checksum.
    share: Callable[[], tuple[int, tuple[int, int]]] | None = None


class Listener(Protocol):
    """Receives the notes of the workers, in the main process."""

    def begin(self) -> None:
        """Called before each epoch."""

    def hear(self, worker: int, note: Any) -> None:
        """Called for each note, before later items of that worker are delivered. The user gets its exceptions."""


class EpochProgram(Program):
    """A program that is iterated once in each epoch. Main gets what its methods raise in the place of items."""

    #: The pipe that is iterated in each epoch.
    datapipe: Any
    #: The number of the epoch, from 0. Set before `begin_epoch`.
    epoch: int = 0

    @abstractmethod
    def prepare(self, child: ChildInfo) -> None:
        """Called once, before the first epoch."""

    @abstractmethod
    def begin_epoch(self, seeds: bytes, iter_reset_fn: Callable[[Any], Any] | None) -> None:
        """Called before each epoch.

        Args:
            seeds: the child's seed generator, exported.
            iter_reset_fn: changes the graph before it is read; None leaves it as it is.
        """

    @abstractmethod
    def beginning_unread(self) -> AbstractContextManager[None]:
        """Context for `go_on_from` in which nothing is read ahead of the first item, so that a snapshot can be made."""

    def replicas(self, count: int) -> list[EpochProgram]:
        """Programs for so many shards, this one among them, before any is prepared."""
        if count > 1:
            raise NotImplementedError(f"{type(self).__name__} runs one shard in a process")
        return [self]

    def enter(self) -> None:
        """Called before this program runs where another shard's has run in the process."""

    def leave(self) -> None:
        """Called before another shard's program runs."""

    @abstractmethod
    def snapshot(self) -> tuple[int, tuple[int, int], bytes] | None:
        """Called between two items.

        Returns:
            The part of the dispatched items that was read (the pass; items and checksum), and bytes for `go_on_from`;
            None if there is nothing to go on from now.
        """

    def note(self) -> object:
        """Returns a note for the main process, or None. Called with each snapshot and at the end of a pass."""
        return None

    @abstractmethod
    def go_on_from(self, snapshot: bytes | None, strict: bool = True) -> Iterator[Any]:
        """Called after `begin_epoch`: an iterator that goes on behind a snapshot; None begins with the first item.

        Args:
            snapshot: what `snapshot` returned.
            strict: whether sources compare what they read again.
        """

    @abstractmethod
    def call(self, function: Callable[[Any], Any]) -> None:
        """Applies a function of main's to the graph; what it returns, if anything, replaces that in the next epoch."""
