"""Counts the items and times of one process in its *page* of the loader's shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torchdata._observe.outside.stacks import answer_for_stacks, stop_answering, tidy
from torchdata._observe.stats.labels import describe_pipes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchdata._native import Collector, Sender, StatsBoard

#: The main process has the first page, the workers have the next pages, and the dispatching process has the last page.
MAIN_PAGE = 0
#: The maximum number of counted pipes per process, including the last pipe of the graph.
PIPES = 60
MAIN, WORKER, DISPATCHER = 1, 2, 3


class Pages(NamedTuple):
    """The counters of one `Group` of child processes. Several groups of a loader may share the memory for the
    counters."""

    counting: Counting
    first: int
    new_board: Callable[[], StatsBoard]


def _exchanged(rows: list[Any], one: int, other: int) -> list[Any]:
    """Exchanges two rows of a table, and updates the indices by which other rows refer to these rows."""
    swapped = {one: other, other: one}
    rows = [(*row[:3], swapped.get(row[3], row[3]), *row[4:]) for row in rows]
    rows[one], rows[other] = rows[other], rows[one]
    return rows


class Counting:
    def __init__(self, board: StatsBoard, page: int) -> None:
        self.board = board
        self.page = page
        self._bound: dict[int, Any] = {}
        self._epoch = 0

    def adopt_child(self, setup: Any, sender: Sender, dispatched: Collector | None, commands: Collector) -> None:
        """Begins to count items in a child process. In a worker, `dispatched` is the collector of items from
        the dispatching process."""
        self.board.adopt(self.page, DISPATCHER if setup.dispatches else WORKER, setup.number)
        sender.count_into(self.board, self.page, 0, setup.output_peers)
        commands.count_idle(self.board, self.page)
        if dispatched is not None:
            dispatched.count_into(self.board, self.page, 1, [setup.dispatcher_page], False)
        answer_for_stacks(self.board, self.page)

    def adopt_main(self) -> None:
        self.board.adopt(self.page, MAIN, 0)
        answer_for_stacks(self.board, self.page)

    def receive(self, collector: Collector, pages: Sequence[int], first: int = 0) -> None:
        """Counts the items that `collector` receives. Page `pages[i]` of the `StatsBoard` contains the counters of the
        worker that sends over link `first + i`."""
        collector.count_into(self.board, self.page, first, pages, True)

    def bind(self, datapipe: Any, shard: int = 0) -> None:
        """Registers the pipes of a graph. If a process runs several shards, their counts are added up."""
        if datapipe is self._bound.get(shard):
            return
        self._bound[shard] = datapipe
        rows = describe_pipes(datapipe, self.board.full)
        end = max(0, len(rows) - 1)
        if end >= PIPES:  # the last pipe yields the loader's items, so it must be counted
            rows, end = _exchanged(rows, end, PIPES - 1), PIPES - 1
        self.board.bind(self.page, rows, end)

    def begin(self, epoch: int | None = None) -> None:
        """Begins an epoch. If `epoch` is None, the next iteration over the graph belongs to the current epoch."""
        self._epoch = self._epoch if epoch is None else epoch
        tidy()
        self.board.begin_span(self.page, self._epoch)

    def end(self) -> None:
        self.board.end_span(self.page)

    def close(self) -> None:
        stop_answering(self.board, self.page)
