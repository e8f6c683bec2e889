"""`python -m torchdata top`: a continuously updated view of loaders in other processes."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torchdata._observe.outside.attaching import Attached, NoLoaderError, attach
from torchdata._observe.show.table import (
    amount,
    as_table,
    duration,
    network_line,
    percent,
    pipe_rows,
    process_rows,
    size,
)
from torchdata._observe.stats.diagnosis import diagnose
from torchdata._observe.stats.model import LoaderStats
from torchdata._optional import optional_import

#: The columns of the tables, the most important columns first.
_PROCESS_COLUMNS = "process,items/s,busy,for items,for room,pid,state,in flight,items,memory"
_PIPE_COLUMNS = "pipe,out,share,own,process,held,in,p50,p99"

WINDOW = 10.0


class _View:
    def __init__(self, attached: Attached) -> None:
        self.attached = attached
        self._history: deque[tuple[float, LoaderStats]] = deque()

    def look(self) -> LoaderStats:
        now = time.monotonic()
        whole = self.attached.stats()
        while self._history and now - self._history[0][0] > WINDOW:
            self._history.popleft()
        recent = self.attached.stats(self._history[0][1]) if self._history else whole
        self._history.append((now, whole))
        return recent if recent.seconds > 0.2 or whole.items == 0 else whole

    def is_readable(self) -> bool:
        return self.attached.board.damage() is None


def print_once(pid: int | None, stacks: bool, write: Callable[[str], object] = print) -> None:
    for attached in attach(pid):
        stats = attached.stats()
        write(f"loader of process {attached.pid}: {attached.command}")
        write(as_table(stats))
        write(f"\n{diagnose(stats)}\n")
        if stacks:
            for head, stack in attached.stacks():
                write(f"{head}\n{stack}\n")


def live(pid: int | None, interval: float, stacks: bool) -> None:
    rich = partial(optional_import, extra="top", needed_by="the live view")
    console = rich("rich.console").Console()
    live_view = rich("rich.live").Live
    views = {one.board.made(): _View(one) for one in attach(pid)}
    last: list[str] = []
    with _keys() as pressed, live_view(console=console, screen=True, auto_refresh=False) as screen:
        while True:
            running = [view for view in views.values() if view.attached.is_running() and view.is_readable()]
            if not running:
                break
            screen.update(_screen(running, stacks, console), refresh=True)
            last = [as_table(view.attached.stats()) for view in running]
            key = pressed(interval)
            if key in ("q", "\x03", "\x04"):
                return
            if key == "s":
                stacks = not stacks
            with contextlib.suppress(NoLoaderError, OSError):
                found = {one.board.made(): one for one in attach(pid)}
                views = {made: views.get(made) or _View(one) for made, one in found.items()}
    print("\n\n".join(last))
    print("the loader has ended")


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yields a function that waits for a keypress, at most the given number of seconds, and returns the key."""
    if not sys.stdin.isatty():

        def nothing(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield nothing
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> str:
        if select.select([descriptor], [], [], seconds)[0]:
            return os.read(descriptor, 1).decode(errors="replace") or "q"
        return ""

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _screen(views: list[_View], stacks: bool, console: Any) -> Any:
    from rich.console import Group
    from rich.segment import SegmentLines
    from rich.text import Text

    parts: list[Any] = []
    for view in views:
        parts += _loader(view, stacks, console.width)
    lines, room = console.render_lines(Group(*parts), pad=False), console.height - 1
    below = "q quit   s stacks"
    if (more := len(lines) - room) > 0:
        below += f"   {more} more lines do not fit"
        below += "; `top PID` shows one process" if len(views) > 1 else ""
    return Group(SegmentLines(lines[:room], new_lines=True), Text(below, style="dim", no_wrap=True))


def _loader(view: _View, stacks: bool, width: int) -> list[Any]:
    from rich.text import Text

    stats = view.look()
    attached = view.attached
    head = Text()
    head.append(f"{attached.command} ", style="bold")
    head.append(f"pid {attached.pid}, epoch {stats.epoch}", style="dim")
    network = f"  {network_line(stats)}" if stats.network_bytes else ""
    line = Text(
        f"{amount(stats.items_per_second)} items/s  {size(stats.bytes_per_second)}/s  loading {percent(stats.loading)} "
        f" waiting {percent(stats.waiting)}  step {duration(stats.step_seconds)}  ahead "
        f"{stats.prefetched}/{stats.prefetch_limit}  memory {size(stats.shared_memory)} of "
        f"{size(stats.shared_memory_limit)}{network}"
    )
    verdict = Text(str(diagnose(stats)), style="bold yellow")
    parts: list[Any] = [head, line, verdict, _table(process_rows(stats.processes), _PROCESS_COLUMNS, width)]
    if stacks:
        for title, stack in attached.stacks():
            parts += [Text(title, style="bold"), Text(stack)]
    elif stats.pipes:
        parts.append(_table(pipe_rows(stats.merged_pipes()), _PIPE_COLUMNS, width))
    parts.append(Text())
    return parts


def _table(rows: list[list[str]], columns: str, width: int) -> Any:
    """Returns a table without the columns that do not fit into `width` characters."""
    from rich.table import Table

    kept: list[int] = []
    for name in columns.split(","):
        index = rows[0].index(name)
        longest = [max(len(row[one]) for row in rows) for one in [*kept, index]]
        if sum(longest) + 2 * len(kept) <= width:
            kept.append(index)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index in sorted(kept):
        table.add_column(rows[0][index], justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows[1:]:
        table.add_row(*(row[index] for index in sorted(kept)))
    return table
