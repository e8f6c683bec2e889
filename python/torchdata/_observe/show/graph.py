"""Draws the processes of a loader, their pipes, and the items that flow between the pipes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchdata._drawing.graph import Arrow, DrawnGraph, DrawnGroup, Node
from torchdata._observe.show.table import amount, duration, percent, size

if TYPE_CHECKING:
    from torchdata._observe.stats.model import LoaderStats, PipeStats, ProcessStats

_ROLES = {"main": 1, "worker": 2, "dispatching": 3}
_COLUMNS = ("dispatching", "worker", "main")
#: Up to `_DRAWN_APART` workers are drawn separately if their numbers of items differ by more than the factor `_UNEVEN`.
_DRAWN_APART, _UNEVEN = 4, 1.5

_End = tuple["Node", "list[ProcessStats]"]


def graph_of_stats(stats: LoaderStats) -> DrawnGraph:
    graph = DrawnGraph()
    ends: list[_End] = []
    for processes in _grouped(stats):
        _add_processes(graph, processes, stats, ends)
    graph.mark_ends()
    return graph


def _grouped(stats: LoaderStats) -> list[list[ProcessStats]]:
    """Returns groups of processes. Workers form one group if they have the same pipes and similar numbers of items."""
    workers: dict[tuple[str, ...], list[ProcessStats]] = {}
    for worker in stats.workers:
        if worker.pipes:
            workers.setdefault(tuple(pipe.name for pipe in worker.pipes), []).append(worker)
    groups: list[list[ProcessStats]] = []
    for group in workers.values():
        items = [worker.items for worker in group]
        uneven = len(group) <= _DRAWN_APART and max(items) > _UNEVEN * max(1, min(items))
        groups += [[worker] for worker in group] if uneven else [group]
    others = [[process] for process in (stats.dispatching, stats.main) if process is not None and process.pipes]
    return sorted([*groups, *others], key=lambda group: _COLUMNS.index(group[0].role))


def _add_processes(graph: DrawnGraph, processes: list[ProcessStats], stats: LoaderStats, ends: list[_End]) -> None:
    first = processes[0]
    nodes = [_node([process.pipes[index] for process in processes]) for index in range(len(first.pipes))]
    _heat(nodes, processes)
    before = list(ends)
    group = DrawnGroup(_title(processes), nodes, _COLUMNS.index(first.role))
    graph.add(group)
    rates = [sum(_rate(process, process.pipes[index]) for process in processes) for index in range(len(nodes))]
    for index, reader in enumerate(_readers(stats, first)):
        if reader is not None and reader < len(nodes):
            label = f"{amount(rates[index])}/s"
            graph.arrows.append(Arrow(nodes[index].key, nodes[reader].key, label))
    for index, pipe in enumerate(first.pipes):
        if pipe.items_in is not None or not pipe.waits:
            continue
        role = "dispatching" if first.role == "worker" else "worker"
        for last, senders in before:
            if senders[0].role == role:
                speed = sum(p.items_per_second for p in senders)
                bytes_ = sum(p.bytes / p.seconds for p in senders if p.seconds)
                label = f"{amount(speed)}/s, {size(bytes_)}/s"
                graph.arrows.append(Arrow(last.key, nodes[index].key, label, crosses=True))
    ends.append((nodes[-1], processes))


def _readers(stats: LoaderStats, process: ProcessStats) -> Sequence[int | None]:
    """Returns, for each pipe, the index of the pipe that reads it."""
    identity = process.pid, _ROLES[process.role], process.worker or 0
    for page in stats.reading.pages.values():
        if (page["pid"], page["role"], page["number"]) == identity:
            return [pipe["reader"] for pipe in page["pipes"]]
    return []


def _title(processes: list[ProcessStats]) -> str:
    first = processes[0]
    name = first.called if len(processes) == 1 else f"{len(processes)} workers"
    nodes = {process.node for process in processes if process.node is not None}
    if len(processes) > 1 and nodes:
        name += f" on {len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}"
    mean = [sum(getattr(p, what) for p in processes) / len(processes) for what in ("busy", "input", "room")]
    waits = f", for items {percent(mean[1])}" + (f", for room {percent(mean[2])}" if first.role != "main" else "")
    return f"{name}: busy {percent(mean[0])}{waits}"


def _rate(process: ProcessStats, pipe: PipeStats) -> float:
    return pipe.items_out / process.seconds if process.seconds else 0.0


def _node(pipes: list[PipeStats]) -> Node:
    first = pipes[0]
    lines = [first.location] if first.location else []
    items = sum(pipe.items_out for pipe in pipes)
    own = [pipe.own_seconds for pipe in pipes if pipe.own_seconds is not None]
    what = "waits" if first.waits else "own"
    if own and items:
        lines.append(f"{what} {duration(sum(own) / items)} an item")
    held = [pipe.buffered_items for pipe in pipes if pipe.buffered_items is not None]
    if held:
        capacity = sum(pipe.capacity or 0 for pipe in pipes)
        lines.append(f"holds {sum(held)}" + (f" of {capacity}" if capacity else ""))
    return Node(first.name, lines, kind="waits" if first.waits else "")


def _heat(nodes: list[Node], processes: list[ProcessStats]) -> None:
    """Labels each node with its pipe's share of the computing time, and colors the node by the pipe's share of the
    total time.
    """
    own = [sum(p.pipes[i].own_seconds or 0.0 for p in processes) for i in range(len(nodes))]
    known = [any(p.pipes[i].own_seconds is not None for p in processes) for i in range(len(nodes))]
    work = sum(time for time, node in zip(own, nodes, strict=True) if node.kind != "waits")
    busy = sum(process.busy for process in processes) / len(processes)
    for node, time, is_known in zip(nodes, own, known, strict=True):
        if is_known and work and node.kind != "waits":
            node.heat = busy * time / work
            node.lines.append(f"{percent(time / work)} of the work")
