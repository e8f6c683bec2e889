"""What a child runs, as the engine sees it: a program that is handed to it.

Role: the contract between the engine, which knows processes, links and commands, and whoever has something to run in
them. The engine calls a program in the child, between two items; main pickles it once for all children of a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["ChildInfo", "Program"]


@dataclass(frozen=True)
class ChildInfo:
    """Where in the loader a program runs.

    Args:
        worker_id: the number of the worker, from 0; 0 in the dispatching process as well.
        num_workers: the number of workers.
        dispatches: whether this is the dispatching process.
        open_dispatched: makes an iterator over the items that are dealt to this worker; None where nothing is
            dispatched.
    """

    worker_id: int
    num_workers: int
    dispatches: bool
    open_dispatched: Callable[[], Iterator[Any]] | None
    #: What was read of the dispatched items: the pass; items and checksum.
    share: Callable[[], tuple[int, tuple[int, int]]] | None = None


class Program(Protocol):
    """What runs in a child. What its methods raise is reported to main in the place of items."""

    #: What is iterated in each epoch.
    datapipe: Any

    def prepare(self, child: ChildInfo) -> None:
        """Called once, before the first epoch."""

    def begin_epoch(self, seeds: bytes, iter_reset_fn: Callable[[Any], Any] | None) -> None:
        """Called before each epoch.

        Args:
            seeds: the child's seed generator, exported.
            iter_reset_fn: changes the graph before it is read; None leaves it as it is.
        """

    def beginning_unread(self) -> AbstractContextManager[None]:
        """Context for `go_on_from` in which nothing is read ahead of the first item, so that a snapshot can be made."""

    def snapshot(self) -> tuple[int, tuple[int, int], bytes] | None:
        """Called between two items.

        Returns:
            What was read of the dispatched items (the pass; items and checksum), and bytes for `go_on_from`; None where
            there is nothing to go on from now.
        """

    def go_on_from(self, snapshot: bytes | None) -> Iterator[Any]:
        """Called after `begin_epoch`: an iterator that goes on behind a snapshot; None begins with the first item."""

    def call(self, function: Callable[[Any], Any]) -> None:
        """Applies a function of main's to the graph; what it returns, if anything, replaces that in the next epoch."""
