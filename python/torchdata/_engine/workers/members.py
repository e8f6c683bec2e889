"""The children of a loader and their links, which change when a child is replaced.

Sending requires a lock, because a thread that reads items may replace a child while another thread sends a command to
this child.
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

#: The size in bytes of a control link's ring; larger commands are streamed.
CONTROL_RING = 64 << 10


class Members:
    """The child processes of a loader. In each list of child processes, the dispatching process is last.

    Args:
        num_shards: the number of shards. Worker `i % num_workers` runs shard i.
        budget: bytes of shared memory for the items of all children together.
        program_class: the class that defines the names of the workers and the messages about their exits.
        commands: bytes of shared memory for commands, per child; with 0, commands are streamed through a small ring
            instead.
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
        self.sent = [0] * len(self.names)
        self.sending = threading.RLock()
        self._per_link = budget // (2 * num_workers if dispatches else num_workers)
        self._commands, self.program_class = commands, program_class

    def new_lines(self, indices: Sequence[int]) -> list[Lines]:
        """The dispatching process sends items to all workers, so all workers get new links together."""
        dispatched = [Handle(Link(self._per_link)) for _ in range(self.num_workers)] if self.dispatches else []
        lines = []
        for index in indices:
            is_worker = index < self.num_workers
            outputs = [Handle(Link(self._per_link))] if is_worker else dispatched
            control = Handle(Link(self._commands) if self._commands else Link(0, CONTROL_RING))
            lines.append(Lines(control, outputs, dispatched[index] if is_worker and dispatched else None))
        return lines

    def shards_of(self, worker: int) -> range:
        return range(worker, self.num_shards, self.num_workers)

    def pids(self) -> list[int]:
        return [process.pid for process in self.processes if process.pid is not None]

    def check_alive(self, indices: Sequence[int] | None = None) -> None:
        for index in range(len(self.processes)) if indices is None else indices:
            if self.processes[index].ended:
                self.report_exit(index)

    def report_exit(self, index: int) -> NoReturn:
        process = self.processes[index]
        process.wait(1.0)
        raise self.program_class.exit_error(process, index if index < self.num_workers else None)

    def starts_of(self, index: int, starts: Sequence[Resumption | None]) -> list[Resumption | None]:
        """Returns the positions from which the shards of child `index` start. In `starts`, the position of the
        dispatching process is last."""
        return [starts[shard] for shard in self.shards_of(index)] if index < self.num_workers else [starts[-1]]

    def seeds_of(self, index: int, commands: Callable[[int], tuple[Any, Any]]) -> tuple[list[Any], Any]:
        shards = self.shards_of(index) if index < self.num_workers else range(self.num_shards, self.num_shards + 1)
        each = [commands(shard) for shard in shards]
        return [seeds for seeds, _ in each], each[0][1]

    def announced(self, index: int, starts: Sequence[Resumption | None] | None = None) -> int:
        """Returns which snapshots child `index` must send at the beginning of an epoch, as a code of `Announced`. If
        the positions `starts` of a new process already contain snapshots, the process does not send these snapshots.
        """
        if starts is None:
            return Announced.DISPATCHED if index == 0 and self.dispatches else Announced.OWN
        if index == 0 and self.dispatches and begins(starts[-1]):
            return Announced.DISPATCHED
        return Announced.OWN if any(map(begins, self.starts_of(index, starts))) else Announced.NONE

    def items_of(self, worker: int) -> Link:
        return self.setups[worker].lines.outputs[0].shared

    def control(self, index: int) -> Link:
        return self.setups[index].lines.control.shared

    def commander(self, index: int) -> Sender:
        return Sender([self.control(index)], self.bells, MAIN, [1 + index])

    def close_descriptors(self, indices: Sequence[int]) -> None:
        """`close_descriptors` must be called after all processes have received the file descriptors."""
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
    ) -> None:
        """Waits up to `seconds` for free space in the link, and calls `tick` repeatedly during the wait."""
        with self.sending:
            self.sent[index] += 1
            command = kind, self.sent[index], number, *content
            self.commanders[index].send_message(command, seconds, order_of(kind, number), tick)


def begins(start: Resumption | None) -> bool:
    return start is None or start.content is None
