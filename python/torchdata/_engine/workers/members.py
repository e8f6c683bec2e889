"""The children of one loader, how main reaches each of them, and their links: what changes when another takes a place.

Role: main's side. `Group` makes it, and the group's owner commands by it; `Restarts` puts other processes into the
places of those that have died, links and all. Sending is locked, as a thread that reads may replace a child while
another commands it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from torchdata._engine.processes.crossing import Handle
from torchdata._engine.processes.process import ChildProcess
from torchdata._engine.snapshots import Announced, Resumption
from torchdata._engine.workers.child import MAIN, ChildSetup, Lines
from torchdata._engine.workers.program import Program
from torchdata._native import BellBoard, Link, Sender, order_of

__all__ = ["Members", "begins"]

#: Ring of a control link; larger commands are streamed.
CONTROL_RING = 64 << 10


class Members:
    """All lists are by child, the dispatching process last.

    Args:
        num_workers: how many workers there are.
        num_shards: how many shards they run; shard number i is run by worker i modulo `num_workers`.
        dispatches: whether there is a dispatching process.
        bells: the bells of all processes.
        budget: bytes of shared memory for all items.
        program_class: the class of what the workers run: it names them, and words their deaths.
        commands: bytes of shared memory for the commands to each child; 0 if a ring does.
    """

    def __init__(
        self,
        num_workers: int,
        num_shards: int,
        dispatches: bool,
        bells: BellBoard,
        budget: int,
        program_class: type[Program],
        commands: int = 0,
    ) -> None:
        self.num_workers, self.num_shards = num_workers, num_shards
        self.dispatches = dispatches
        self.names = [program_class.worker_name.format(worker) for worker in range(num_workers)]
        self.names += ["the dispatching process"] if dispatches else []
        self.bells = bells
        self.setups: list[ChildSetup] = []
        self.processes: list[ChildProcess] = []
        self.commanders: list[Sender] = []
        #: By child: how many commands it was sent.
        self.sent = [0] * len(self.names)
        # A forked child does not take it, as it commands no process.
        self.sending = threading.RLock()
        self._per_link = budget // (2 * num_workers if dispatches else num_workers)
        self._commands, self.program_class = commands, program_class

    def new_lines(self, indices: Sequence[int]) -> list[Lines]:
        """Links for children: for commands, for what they send, and for what is dispatched to them.

        The dispatching process sends to all workers, so all get new ones together.
        """
        dispatched = [Handle(Link(self._per_link)) for _ in range(self.num_workers)] if self.dispatches else []
        lines = []
        for index in indices:
            is_worker = index < self.num_workers
            outputs = [Handle(Link(self._per_link))] if is_worker else dispatched
            control = Handle(Link(self._commands) if self._commands else Link(0, CONTROL_RING))
            lines.append(Lines(control, outputs, dispatched[index] if is_worker and dispatched else None))
        return lines

    def shards_of(self, worker: int) -> range:
        """The numbers of the shards that a worker runs."""
        return range(worker, self.num_shards, self.num_workers)

    def pids(self) -> list[int]:
        """Process numbers of the children that were started."""
        return [process.pid for process in self.processes if process.pid is not None]

    def check_alive(self, indices: Sequence[int] | None = None) -> None:
        """Raises the error of a child that has died, of some or of all."""
        for index in range(len(self.processes)) if indices is None else indices:
            if self.processes[index].ended:
                self.report_exit(index)

    def report_exit(self, index: int) -> NoReturn:
        """Raises the error of a child that has died."""
        process = self.processes[index]
        process.wait(1.0)
        raise self.program_class.exit_error(process, index if index < self.num_workers else None)

    def starts_of(self, index: int, starts: Sequence[Resumption | None]) -> list[Resumption | None]:
        """Where the shards of a child go on, of a list by shard with the dispatching process at its end."""
        return [starts[shard] for shard in self.shards_of(index)] if index < self.num_workers else [starts[-1]]

    def seeds_of(self, index: int, commands: Callable[[int], tuple[Any, Any]]) -> tuple[list[Any], Any]:
        """The seeds of the shards of a child, and its reset function, by functions that know them by shard."""
        shards = self.shards_of(index) if index < self.num_workers else range(self.num_shards, self.num_shards + 1)
        each = [commands(shard) for shard in shards]
        return [seeds for seeds, _ in each], each[0][1]

    def announced(self, index: int, starts: Sequence[Resumption | None] | None = None) -> int:
        """With which snapshots a child begins an epoch that is to be told from its beginning on.

        Args:
            starts: where those go on that take the places of others, by shard and at last the dispatching process; one
                that has a snapshot already announces none.
        """
        if starts is None:
            return Announced.DEALT if index == 0 and self.dispatches else Announced.OWN
        if index == 0 and self.dispatches and begins(starts[-1]):
            return Announced.DEALT
        return Announced.OWN if any(map(begins, self.starts_of(index, starts))) else Announced.NONE

    def items_of(self, worker: int) -> Link:
        """The link over which a worker sends the items of all its shards."""
        return self.setups[worker].lines.outputs[0].shared

    def received_of(self, worker: int, received: Sequence[int]) -> int:
        """How many items were received of all shards of a worker, of a list by shard."""
        return sum(received[shard] for shard in self.shards_of(worker))

    def control(self, index: int) -> Link:
        """The link for a child's commands."""
        return self.setups[index].lines.control.shared

    def commander(self, index: int) -> Sender:
        """A way to command a child that has its links."""
        return Sender([self.control(index)], self.bells, MAIN, [1 + index])

    def close_descriptors(self, indices: Sequence[int]) -> None:
        """Closes what was passed to all who should have it, so that main keeps no descriptor for a link."""
        for handle in [handle for index in indices for handle in self.setups[index].lines.all()]:
            handle.shared.close_descriptor()

    def send(
        self,
        index: int,
        kind: str,
        number: int,
        *content: Any,
        seconds: float | None = None,
        tick: Callable[[], object] | None = None,
        numbers: dict[int, int] | None = None,
    ) -> None:
        """Sends a command to a child.

        Args:
            index: the child.
            kind: "epoch", "repeat" or "call".
            number: of the epoch, or of the function.
            content: the rest of the command.
            seconds: how long to wait for room; None for ever.
            tick: is called meanwhile.
            numbers: takes, by child, the number of the command on its link, before the command is sent.
        """
        with self.sending:
            self.sent[index] += 1
            if numbers is not None:
                numbers[index] = self.sent[index]
            command = kind, self.sent[index], number, *content
            self.commanders[index].send_message(command, seconds, order_of(kind, number), tick)


def begins(start: Resumption | None) -> bool:
    """Whether nothing but the epoch's beginning is there to go on from."""
    return start is None or start.content is None
