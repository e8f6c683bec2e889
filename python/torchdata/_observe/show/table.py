"""Displays statistics as a plain text table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdata._observe.stats.model import LoaderStats, PipeStats, ProcessStats

#: If a value is at least this fraction of the next unit, it is shown in the next unit, because rounding would turn it
#: into a whole unit.
_ROUNDS_UP = 0.9995


def amount(number: float) -> str:
    """Formats a number with at most four digits: "12.3 k"."""
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if number >= _ROUNDS_UP * unit:
            return f"{number / (unit if unit != 1e4 else 1e3):.3g}{name}"
    return f"{number:.3g}" if number < _ROUNDS_UP * 1000 else f"{number:.0f}"


def size(number: float) -> str:
    """Formats a number of bytes: "1.5 MiB"."""
    for unit, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >= 1 << unit:
            return f"{number / (1 << unit):.1f} {name}"
    return f"{number:.0f} B"


def duration(seconds: float | None) -> str:
    """Formats a duration: "4.1 ms"; a dash if the duration is unknown."""
    if seconds is None:
        return "-"
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= _ROUNDS_UP * unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e9:.0f} ns" if seconds else "0 s"


def percent(share: float | None) -> str:
    """Formats a fraction: "62 %"; a dash if the fraction is unknown."""
    return "-" if share is None else f"{100 * share:.0f} %"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if not i else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def process_rows(processes: Sequence[ProcessStats]) -> list[list[str]]:
    rows = [["process", "pid", "state", "items", "items/s", "busy", "for items", "for room", "in flight", "memory"]]
    for process in processes:
        awaited = f" ({process.waits_for})" if process.waits_for else ""
        rows.append(
            [
                process.called,
                str(process.pid),
                process.state + awaited,
                amount(process.items),
                amount(process.items_per_second),
                percent(process.busy),
                percent(process.input),
                percent(process.room),
                f"{process.in_flight}/{process.window}" if process.window else "-",
                size(process.shared_memory) if process.shared_memory_limit else "-",
            ]
        )
    return rows


def pipe_rows(pipes: Sequence[PipeStats]) -> list[list[str]]:
    rows = [["pipe", "process", "in", "out", "own", "share", "p50", "p99", "held"]]
    for pipe in pipes:
        held = "-" if pipe.buffered_items is None else str(pipe.buffered_items)
        rows.append(
            [
                f"{pipe.name} ({pipe.location})" if pipe.location else pipe.name,
                pipe.process,
                "-" if pipe.items_in is None else amount(pipe.items_in),
                amount(pipe.items_out),
                duration(pipe.own_seconds) + (" (waits)" if pipe.waits and pipe.own_seconds is not None else ""),
                percent(pipe.share),
                duration(pipe.p50),
                duration(pipe.p99),
                held if not pipe.capacity else f"{held}/{pipe.capacity}",
            ]
        )
    return rows


def network_line(stats: LoaderStats) -> str:
    far = [worker for worker in stats.workers if worker.node is not None]
    nodes = len({worker.node for worker in far})
    return (
        f"network {size(stats.network_bytes_per_second)}/s, {size(stats.network_bytes)} from {len(far)} workers on "
        f"{nodes} {'node' if nodes == 1 else 'nodes'}"
    )


def as_table(stats: LoaderStats) -> str:
    state = "running" if stats.running else "not running"
    lines = [
        f"epoch {stats.epoch} ({state}): {amount(stats.items)} items in {duration(stats.seconds)}, "
        f"{amount(stats.items_per_second)} items/s, {size(stats.bytes_per_second)}/s",
        f"loading {percent(stats.loading)}, waiting {percent(stats.waiting)}, step {duration(stats.step_seconds)}, "
        f"first item {duration(stats.first_item_seconds)}, read ahead {stats.prefetched}/{stats.prefetch_limit}",
    ]
    if stats.shared_memory_limit:
        lines.append(
            f"shared memory {size(stats.shared_memory)}, peak {size(stats.shared_memory_peak)} of "
            f"{size(stats.shared_memory_limit)}; {amount(stats.copies)} copies, {amount(stats.fragments)} fragments, "
            f"{amount(stats.wake_ups)} wake-ups, {stats.restarts} restarts, {stats.snapshots} snapshots"
        )
    if stats.network_bytes:
        lines.append(network_line(stats))
    lines += [f"chosen: {choice}" for choice in stats.choices]
    lines += ["", *columns(process_rows(stats.processes))]
    if stats.pipes:
        lines += ["", *columns(pipe_rows(stats.pipes))]
    kinds = [(pipe, *counted) for pipe in stats.pipes for counted in pipe.skipped_kinds.items()]
    skipped = [f"  {amount(count)}  {kind} in {pipe.name}, {pipe.process}" for pipe, kind, count in kinds]
    if skipped:
        lines += ["", "skipped items", *skipped]
    retried = [f"  {amount(pipe.retries)}  {pipe.name}, {pipe.process}" for pipe in stats.pipes if pipe.retries]
    if retried:
        lines += ["", "requests sent again after a fault", *retried]
    return "\n".join(lines)
