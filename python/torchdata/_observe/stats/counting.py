"""The counters of a process: its page on the loader's board.

Role: takes the page when the process starts, names the pipes on it when the graph is known, says when epochs begin and
end. Runs in main and in each child; writes that process's page alone. The counting itself is done by the extension.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchdata._observe.outside.stacks import answer_for_stacks, answer_no_more, tidy
from torchdata._observe.stats.labels import describe_pipes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchdata._native import Collector, Sender, StatsBoard

__all__ = ["MAIN_PAGE", "PIPES", "Counting"]

#: The page of main; those of the children follow, the dispatching process last.
MAIN_PAGE = 0
#: Pipes of one process that are counted; the last one is among them.
PIPES = 60
MAIN, WORKER, DISPATCHER = 1, 2, 3


def _exchanged(rows: list[Any], one: int, other: int) -> list[Any]:
    """Described pipes of which two have each other's place; so do those that they are read by."""
    places = {one: other, other: one}
    rows = [(*row[:3], places.get(row[3], row[3]), *row[4:]) for row in rows]
    rows[one], rows[other] = rows[other], rows[one]
    return rows


class Counting:
    """A process's page.

    Args:
        board: the loader's counters.
        page: the index of the page.
    """

    def __init__(self, board: StatsBoard, page: int) -> None:
        self.board = board
        self.page = page
        self._bound: dict[int, Any] = {}
        self._epoch = 0

    def adopt_child(self, setup: Any, sender: Sender, dispatched: Collector | None, commands: Collector) -> None:
        """Takes the page of a worker, or of the dispatching process.

        Args:
            setup: the `ChildSetup`.
            sender: where its items go out.
            dispatched: where a worker gets items of the dispatching process, if it does.
            commands: where it gets its commands.
        """
        self.board.adopt(self.page, DISPATCHER if setup.dispatches else WORKER, setup.worker_id)
        sender.count_into(self.board, self.page, 0, setup.output_peers)
        commands.count_idle(self.board, self.page)
        if dispatched is not None:
            dispatched.count_into(self.board, self.page, 1, [setup.dispatcher_page], False)
        answer_for_stacks(self.board, self.page)

    def adopt_main(self) -> None:
        """Takes the page of main."""
        self.board.adopt(self.page, MAIN, 0)
        answer_for_stacks(self.board, self.page)

    def receive(self, collector: Collector, pages: Sequence[int], first: int = 0) -> None:
        """Counts in main what workers send over links that are counted from that number on; `pages` are theirs."""
        collector.count_into(self.board, self.page, first, pages, True)

    def bind(self, datapipe: Any, shard: int = 0) -> None:
        """Counts the pipes of the graph that ends in `datapipe`, unless they are counted already.

        Args:
            datapipe: the last pipe.
            shard: which shard of this process it is; their counts are added up.
        """
        if datapipe is self._bound.get(shard):
            return
        self._bound[shard] = datapipe
        rows = describe_pipes(datapipe, self.board.full)
        end = max(0, len(rows) - 1)  # a service may give an iterator that is no pipe
        if end >= PIPES:  # its items are the loader's: it takes the place of another one
            rows, end = _exchanged(rows, end, PIPES - 1), PIPES - 1
        self.board.bind(self.page, rows, end)

    def begin(self, epoch: int | None = None) -> None:
        """An epoch begins, or goes on with another pass, in a child."""
        self._epoch = self._epoch if epoch is None else epoch
        tidy()
        self.board.begin_span(self.page, self._epoch)

    def end(self) -> None:
        """The epoch is over, or given up."""
        self.board.end_span(self.page)

    def close(self) -> None:
        """The process is about to end."""
        answer_no_more(self.board, self.page)
