"""The counters of a process: its page on the loader's board.

Role: takes the page when the process starts, names the pipes on it when the graph is known, says when epochs begin and
end. Runs in main and in each child; writes that process's page alone. The counting itself is done by the extension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchdata._observe.outside.stacks import answer_for_stacks, answer_no_more, tidy
from torchdata._observe.stats.labels import describe_pipes

if TYPE_CHECKING:
    from torchdata._native import Collector, Sender, StatsBoard

__all__ = ["MAIN_PAGE", "PIPES", "Counting", "Room"]

#: The page of main; those of the children follow, the dispatching process last.
MAIN_PAGE = 0
#: Pipes of one process that are counted; the last one is among them.
PIPES = 60
MAIN, WORKER, DISPATCHER = 1, 2, 3


@dataclass(frozen=True)
class Room:
    """Where on a board the children count.

    Args:
        board: the board.
        first_page: the page of the first of them; those of the others follow.
        first_flow: where main counts what it gets from the first of them.
    """

    board: StatsBoard
    first_page: int = 1
    first_flow: int = 0

    @property
    def is_first(self) -> bool:
        """Whether nobody has counted there before, main neither."""
        return self.first_flow == 0

    def behind(self, num_workers: int, dispatches: bool) -> Room:
        """The room for those that take the place of so many workers."""
        return Room(self.board, self.first_page + num_workers + dispatches, self.first_flow + num_workers)


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
        self._bound: Any = None
        #: The described pipes of the graphs that take turns here, each at its own place on the page.
        self._graphs: dict[bool, list[Any]] = {}
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
        sender.count_into(self.board, self.page, 0, setup.output_pages)
        commands.count_idle(self.board, self.page)
        if dispatched is not None:
            dispatched.count_into(self.board, self.page, 1, [setup.dispatcher_page], False)
        answer_for_stacks(self.board, self.page)

    def adopt_main(self) -> None:
        """Takes the page of main."""
        self.board.adopt(self.page, MAIN, 0)
        answer_for_stacks(self.board, self.page)

    def receive(self, collector: Collector, room: Room, num_workers: int) -> None:
        """Counts in main what so many workers send that have their pages there."""
        pages = range(room.first_page, room.first_page + num_workers)
        collector.count_into(self.board, self.page, room.first_flow, pages, True)

    def bind(self, datapipe: Any, has_workers: bool = False) -> None:
        """Counts the pipes of the graph that ends in `datapipe`, unless they are counted already.

        Args:
            datapipe: the last pipe.
            has_workers: whether it reads from workers. In main, a graph that does and one that does not may take turns;
                their pipes are counted apart.
        """
        if datapipe is self._bound:
            return
        self._bound = datapipe
        self._graphs[has_workers] = describe_pipes(datapipe, self.board.full)
        rows: list[Any] = []
        ends: dict[bool, int] = {}
        for graph, described in self._graphs.items():
            before = len(rows)
            rows += [
                (token, name, place, None if reader is None else before + reader, flags, capacity)
                for token, name, place, reader, flags, capacity in described
            ]
            if described:  # a service may give an iterator that is no pipe
                ends[graph] = len(rows) - 1
        end = ends.get(has_workers, len(rows))
        for last, room in zip(ends.values(), range(PIPES - 1, 0, -1), strict=False):
            if last >= PIPES:  # its items are the loader's: it takes the place of another one
                rows = _exchanged(rows, last, room)
                end = room if end == last else end
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
