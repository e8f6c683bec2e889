"""The counters of one process: a page in the loader's shared memory of counters.

Role: registers the process when it starts, registers the pipes once the graph is known, and records when epochs begin
and end. The extension counts the items. The code runs in the main process and in each child process, and each process
writes only its own page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torchdata._observe.outside.stacks import answer_for_stacks, answer_no_more, tidy
from torchdata._observe.stats.labels import describe_pipes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchdata._native import Collector, Sender, StatsBoard

__all__ = ["MAIN_PAGE", "PIPES", "Counting", "Pages"]

#: The index of the main process's page of counters. The next pages belong to the workers, and the last page to the
#: dispatching process.
MAIN_PAGE = 0
#: The maximum number of counted pipes per process. The last pipe of a graph is always counted.
PIPES = 60
MAIN, WORKER, DISPATCHER = 1, 2, 3


class Pages(NamedTuple):
    """The pages of counters of one group of processes. The memory with a loader's counters may serve several groups."""

    #: The counters of the main process.
    counting: Counting
    #: The index of the first page of the group.
    first: int
    #: Creates new memory for counters, with the same number of pages.
    new_board: Callable[[], StatsBoard]


def _exchanged(rows: list[Any], one: int, other: int) -> list[Any]:
    """Swaps two rows in a list of pipes, and updates the indices in all rows that refer to these two rows."""
    places = {one: other, other: one}
    rows = [(*row[:3], places.get(row[3], row[3]), *row[4:]) for row in rows]
    rows[one], rows[other] = rows[other], rows[one]
    return rows


class Counting:
    """The page of counters of a process.

    Args:
        board: the shared memory with the counters of all processes of the loader.
        page: the index of the page.
    """

    def __init__(self, board: StatsBoard, page: int) -> None:
        self.board = board
        self.page = page
        self._bound: dict[int, Any] = {}
        self._epoch = 0

    def adopt_child(self, setup: Any, sender: Sender, dispatched: Collector | None, commands: Collector) -> None:
        """Registers this process (a worker or the dispatching process) as the writer of its page of counters.

        Args:
            setup: the `ChildSetup`.
            sender: the link over which the process sends its items.
            dispatched: the link over which a worker receives items of the dispatching process; None if there is no such
                link.
            commands: the link over which the process receives its commands.
        """
        self.board.adopt(self.page, DISPATCHER if setup.dispatches else WORKER, setup.number)
        sender.count_into(self.board, self.page, 0, setup.output_peers)
        commands.count_idle(self.board, self.page)
        if dispatched is not None:
            dispatched.count_into(self.board, self.page, 1, [setup.dispatcher_page], False)
        answer_for_stacks(self.board, self.page)

    def adopt_main(self) -> None:
        """Registers this process as the writer of the main process's page of counters."""
        self.board.adopt(self.page, MAIN, 0)
        answer_for_stacks(self.board, self.page)

    def receive(self, collector: Collector, pages: Sequence[int], first: int = 0) -> None:
        """Makes the main process count the items that it receives from workers. `pages` are the indices of the workers'
        pages of counters. The worker with the first page sends over the link number `first`.
        """
        collector.count_into(self.board, self.page, first, pages, True)

    def bind(self, datapipe: Any, shard: int = 0) -> None:
        """Counts the pipes of the graph that ends in `datapipe`, unless they are already counted. If a process runs
        several shards, the counts of a pipe in all shards are added up."""
        if datapipe is self._bound.get(shard):
            return
        self._bound[shard] = datapipe
        rows = describe_pipes(datapipe, self.board.full)
        end = max(0, len(rows) - 1)  # a service may provide an iterator that is not a pipe
        if end >= PIPES:  # the last pipe yields the loader's items, so it must be counted
            rows, end = _exchanged(rows, end, PIPES - 1), PIPES - 1
        self.board.bind(self.page, rows, end)

    def begin(self, epoch: int | None = None) -> None:
        """Records, in a child process, that an epoch begins, or that the same epoch continues with another pass."""
        self._epoch = self._epoch if epoch is None else epoch
        tidy()
        self.board.begin_span(self.page, self._epoch)

    def end(self) -> None:
        self.board.end_span(self.page)

    def close(self) -> None:
        answer_no_more(self.board, self.page)
