"""Computes the statistics of a loader from the counters of its processes. The counters are not read at the same moment,
so sums may deviate slightly."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchdata._machine import cores
from torchdata._observe.outside.stacks import letter_of
from torchdata._observe.show.shown import ShownStats
from torchdata._observe.stats.declaring import fields_summed
from torchdata._observe.stats.labels import Flag
from torchdata._observe.stats.model import LoaderStats, Page, PipeStats, ProcessStats, Reading
from torchdata._observe.stats.processor import processor_times
from torchdata._redacting import printable

if TYPE_CHECKING:
    from torchdata._native import StatsBoard

_ROLES = {1: "main", 2: "worker", 3: "dispatching"}
_ORDER = tuple(_ROLES.values())
_NS = 1e-9


def read_board(board: StatsBoard, numbers: Mapping[int, int] | None = None) -> Reading:
    """Reads all counters. `numbers` maps the loader's process ids to process ids in this container; None if the loader
    runs in this container."""
    pages = {page["page"]: _as_seen_here(page, numbers) for page in board.read()}
    alive = frozenset(i for i, page in pages.items() if _is_alive(page))
    cpu = {index: _cpu(pages[index]) for index in alive}
    return Reading(time.monotonic_ns(), board.full, pages, cpu, alive)


def _as_seen_here(page: Page, numbers: Mapping[int, int] | None) -> Page:
    """Escapes control characters in texts, and converts the process id to the process id in this container (0 if
    unknown)."""
    for pipe in page["pipes"]:
        pipe["label"], pipe["location"] = printable(pipe["label"]), printable(pipe["location"])
    page["machine"] = printable(page["machine"])
    if numbers is not None and not page["machine"]:
        page["pid"] = numbers.get(page["pid"], 0)
    return page


def _is_alive(page: Page) -> bool:
    pid = page["pid"]
    if page["machine"]:
        return not page["exited"]
    if pid == os.getpid():
        return True
    return letter_of(pid) not in ("", "Z", "X") or not os.path.isdir("/proc/self")


def _cpu(page: Page) -> tuple[float, float, float] | None:
    if page["machine"]:
        return (page["ran"] * _NS, page["queued"] * _NS, page["lived"] * _NS) if page["lived"] else None
    return processor_times(page["pid"])


def _elapsed(wait: Mapping[str, int], at: int) -> int:
    return wait["total"] + (max(0, at - wait["since"]) if wait["since"] else 0)


def _as_of(page: Page | None, reading: Reading) -> int:
    """Returns the time when the counters of a process were read or, for a process on another machine, were received."""
    return min(reading.at, page["arrived"]) if page is not None and page["arrived"] else reading.at


class _Interval:
    def __init__(self, now: Reading, earlier: Reading | None, index: int) -> None:
        self.page = now.pages[index]
        self.at = _as_of(self.page, now)
        before = earlier.pages.get(index) if earlier is not None else None
        self.before = before
        self.before_at = _as_of(before, earlier) if earlier is not None else 0
        cpu, cpu_before = now.cpu.get(index), earlier.cpu.get(index) if earlier is not None else None
        same = before is not None and before["pid"] == self.page["pid"]
        self.cpu = cpu
        if cpu is not None and cpu_before is not None and same:
            self.cpu = (cpu[0] - cpu_before[0], cpu[1] - cpu_before[1], cpu[2] - cpu_before[2])

    def count(self, name: str) -> int:
        return int(self.page[name] - (self.before[name] if self.before else 0))

    def wait(self, name: str) -> int:
        before = _elapsed(self.before[name], self.before_at) if self.before else 0
        return max(0, _elapsed(self.page[name], self.at) - before)

    def average(self, name: str) -> float | None:
        now, before = self.page[name], self.before[name] if self.before else {"total": 0, "count": 0}
        times = now["count"] - before["count"]
        return (now["total"] - before["total"]) * _NS / times if times > 0 else None

    def both(self, what: str) -> list[tuple[Page, Page | None]]:
        """Returns a pair of present and earlier counters for each flow of items (if `what` is "flows") or for each pipe
        of the process (if `what` is "pipes").
        """
        before = self.before[what] if self.before else []
        return [(each, before[i] if i < len(before) else None) for i, each in enumerate(self.page[what])]

    def flow_sum(self, name: str, sends: bool | None = None) -> int:
        return sum(
            flow[name] - (before[name] if before else 0)
            for flow, before in self.both("flows")
            if sends is None or flow["sends"] == sends
        )

    def flow_wait(self, flow: Page, before: Page | None) -> int:
        earlier = _elapsed(before["wait"], self.before_at) if before else 0
        return max(0, _elapsed(flow["wait"], self.at) - earlier)

    def flow_waits(self, sends: bool) -> int:
        return sum(self.flow_wait(flow, before) for flow, before in self.both("flows") if flow["sends"] == sends)


def summarise(now: Reading, earlier: Reading | None = None) -> ShownStats:
    names = {index: name_of_process(page) for index, page in now.pages.items()}
    intervals = {index: _Interval(now, earlier, index) for index in sorted(now.pages)}
    processes = [_process(since, now, names) for since in intervals.values()]
    processes.sort(key=lambda process: _ORDER.index(process.role))
    main = next((p for p in processes if p.role == "main"), None)
    workers = [p for p in processes if p.role == "worker"]
    seconds = main.seconds if main else 0.0
    items = main.items if main else 0
    size = sum(since.flow_sum("bytes", sends=True) for since in intervals.values() if since.page["role"] == 2)
    network = sum(process.network_bytes for process in processes)
    waiting = main.input_seconds if main else 0.0
    main_since = next((s for s in intervals.values() if s.page["role"] == 1), None)
    page = main_since.page if main_since else None
    inside = _inside(main_since, waiting, seconds)
    held, capacity = _held(main)
    return ShownStats(
        full=now.full,
        epoch=page["epoch"] if page else 0,
        epochs=main_since.count("epoch") if main_since else 0,
        running=bool(page and page["span"]["since"]),
        seconds=seconds,
        items=items,
        bytes=size,
        items_per_second=_rate(items, seconds),
        bytes_per_second=_rate(size, seconds),
        network_bytes=network,
        network_bytes_per_second=_rate(network, seconds),
        first_item_seconds=main_since.average("first") if main_since else None,
        loading=None if inside is None else _share(inside, seconds),
        waiting=_share(waiting, seconds),
        waiting_seconds=waiting,
        waited_for=main.waited_for if main else {},
        step_seconds=None if inside is None or items < 2 else max(0.0, seconds - inside) / items,
        held_up=sum(w.room for w in workers) / len(workers) if workers else None,
        prefetched=sum(w.in_flight for w in workers) + held,
        prefetch_limit=sum(w.window for w in workers) + capacity,
        cores=cores(),
        processes=tuple(processes),
        reading=now,
        **{name: sum(getattr(p, name) for p in processes) for name in fields_summed(LoaderStats, "processes")},
    )


def _inside(main: _Interval | None, waiting: float, seconds: float) -> float | None:
    """Estimates the seconds that the program has spent in the loader's `next`, including `waiting` seconds of
    waiting."""
    if main is None or not main.count("inside_samples"):
        return None
    return min(seconds, max(waiting, main.count("inside") * _NS))


def _held(process: ProcessStats | None) -> tuple[int, int]:
    """Returns the number of items that threads have read ahead, and the maximum number of such items."""
    held = [pipe for pipe in process.pipes if pipe.capacity] if process else []
    return sum(pipe.buffered_items or 0 for pipe in held), sum(pipe.capacity or 0 for pipe in held)


def name_of_process(page: Page) -> str:
    if page["role"] == 2:
        return f"worker process {page['number']}"
    return "main" if page["role"] == 1 else "the dispatching process"


def _process(since: _Interval, now: Reading, names: Mapping[int, str]) -> ProcessStats:
    page = since.page
    role = _ROLES[page["role"]]
    seconds = since.wait("span") * _NS
    input_seconds = min(seconds, since.flow_waits(sends=False) * _NS)
    room_seconds = min(seconds, since.flow_waits(sends=True) * _NS)
    state, awaited, waited = _state(page, now, names)
    pipes = page["pipes"]
    sent = since.flow_sum("items", sends=True)
    if role == "main":
        ends = [(pipe, before) for pipe, before in since.both("pipes") if pipe["reader"] is None]
        sent = sum(pipe["items"] - (before["items"] if before else 0) for pipe, before in ends)
        if not ends:
            sent = since.flow_sum("items")
    busy = max(0.0, seconds - input_seconds - room_seconds)
    if role == "main":
        inside = _inside(since, input_seconds, seconds)
        busy = 0.0 if inside is None else max(0.0, inside - input_seconds)
    size = since.flow_sum("bytes", sends=True)
    in_flight, window = _in_flight(page, now)
    return ProcessStats(
        name=names[page["page"]],
        role=role,
        worker=page["number"] if page["role"] == 2 else None,
        pid=page["pid"],
        node=page["machine"].partition(" ")[0] or None,
        actor=page["machine"].partition(" ")[2] or None,
        state=state,
        waits_for=awaited,
        waits_seconds=waited,
        runs=pipes[page["current"] - 1]["label"] if 0 < page["current"] <= len(pipes) else None,
        items=sent,
        items_per_second=_rate(sent, seconds),
        bytes=size,
        network_bytes=since.count("carried"),
        seconds=seconds,
        busy_seconds=busy,
        input_seconds=input_seconds,
        room_seconds=room_seconds,
        busy=_share(busy, seconds),
        input=_share(input_seconds, seconds),
        room=_share(room_seconds, seconds),
        waited_for={
            names.get(flow["peer"], "another process"): since.flow_wait(flow, before) * _NS
            for flow, before in since.both("flows")
            if not flow["sends"]
        },
        in_flight=in_flight,
        window=window,
        shared_memory=sum(flow["arena_used"] for flow in page["flows"]),
        shared_memory_peak=sum(flow["arena_peak"] for flow in page["flows"]),
        shared_memory_limit=sum(flow["arena_capacity"] for flow in page["flows"]),
        copies=since.flow_sum("copies"),
        copied_bytes=since.flow_sum("copied"),
        fragments=since.flow_sum("fragments"),
        wake_ups=since.flow_sum("wakes"),
        restarts=since.count("restarts"),
        snapshots=since.count("snapshots"),
        cpu_seconds=since.cpu[0] if since.cpu else None,
        waits_for_cpu_seconds=since.cpu[1] if since.cpu else None,
        running_seconds=since.cpu[2] if since.cpu else None,
        pipes=_pipes(since, names[page["page"]]),
    )


def _state(page: Page, now: Reading, names: Mapping[int, str]) -> tuple[str, str | None, float]:
    def since(wait: Mapping[str, int]) -> float:
        return max(0, now.at - wait["since"]) * _NS

    if page["page"] not in now.alive:
        return "ended", None, 0.0
    first, flows = page["first"], page["flows"]
    if first["since"]:
        if 0 < first["whom"] <= len(flows):
            awaited = names.get(flows[first["whom"] - 1]["peer"])
            return "waiting for the first item", awaited, since(first)
        return "running", None, 0.0
    for flow in flows:
        if flow["wait"]["since"]:
            state = "waiting for room" if flow["sends"] else "waiting for items"
            return state, names.get(flow["peer"]), since(flow["wait"])
    if page["idle"]["since"] or (page["role"] != 1 and not page["span"]["since"]):
        return "idle", None, 0.0
    return "running", None, 0.0


def _in_flight(page: Page, now: Reading) -> tuple[int, int]:
    """Returns the number of items that were sent but not received yet, and the largest possible number of such
    items."""
    items = limit = 0
    for flow in page["flows"]:
        if not flow["sends"] or flow["peer"] not in now.pages:
            continue
        for other in now.pages[flow["peer"]]["flows"]:
            if not other["sends"] and other["peer"] == page["page"]:
                items += max(0, flow["items"] - other["items"])
                limit += min(other["window"], 1 << 40)
    return items, limit


def _pipes(since: _Interval, process: str) -> tuple[PipeStats, ...]:
    grown = [(pipe, pipe["items"] - (b["items"] if b else 0), b) for pipe, b in since.both("pipes")]
    inputs: dict[int, int] = {}
    all_inputs: dict[int, int] = {}
    for pipe, items, _ in grown:
        if pipe["reader"] is not None:
            inputs[pipe["reader"]] = inputs.get(pipe["reader"], 0) + items
            all_inputs[pipe["reader"]] = all_inputs.get(pipe["reader"], 0) + pipe["items"]
    own = [max(0, pipe["own"] - (b["own"] if b else 0)) * _NS for pipe, _, b in grown]
    working = sum(
        time for time, (pipe, _, _) in zip(own, grown, strict=True) if not pipe["flags"] & (Flag.INPUT | Flag.THREAD)
    )
    found = []
    for number, ((pipe, items, before), time_) in enumerate(zip(grown, own, strict=True)):
        timed = pipe["samples"] > (before["samples"] if before else 0)
        waits = bool(pipe["flags"] & (Flag.INPUT | Flag.THREAD))
        held = None
        if pipe["flags"] & Flag.HOLDS and number in all_inputs:
            held = max(0, all_inputs[number] - pipe["items"])
        quantiles = pipe["quantiles"]
        found.append(
            PipeStats(
                name=pipe["label"],
                location=pipe["location"] or None,
                process=process,
                items_in=inputs.get(number),
                items_out=items,
                skipped=pipe["skipped"] - (before["skipped"] if before else 0),
                skipped_kinds=_skipped_kinds(pipe, before),
                retries=pipe["retries"] - (before["retries"] if before else 0),
                own_seconds=time_ if timed else None,
                share=_share(time_, working) if timed and not waits else None,
                seconds_per_item=time_ / items if timed and items else None,
                p50=quantiles[0] * _NS if quantiles else None,
                p99=quantiles[1] * _NS if quantiles else None,
                buffered_items=held,
                capacity=pipe["capacity"] or None,
                waits=waits,
                put_off=bool(pipe["flags"] & Flag.PUT_OFF),
            )
        )
    return tuple(found)


def _skipped_kinds(pipe: Page, before: Page | None) -> dict[str, int]:
    earlier = dict(before["skipped_kinds"]) if before else {}
    grown = {kind: count - earlier.get(kind, 0) for kind, count in pipe["skipped_kinds"]}
    others = pipe["skipped"] - (before["skipped"] if before else 0) - sum(grown.values())
    return {printable(kind): count for kind, count in (*grown.items(), ("others", others)) if count > 0}


def pipe_at_work(page: Page) -> str | None:
    """Returns the running pipe, or None if it is unknown. If times are measured, the counters name the running pipe.
    If times are not measured, the running pipe is guessed: a pipe that yields one item per source item is running if it
    has yielded fewer items than its source."""
    pipes, current = page["pipes"], page["current"]
    if 0 < current <= len(pipes):
        return str(printable(pipes[current - 1]["label"]))
    for source in pipes:
        reader = pipes[source["reader"]] if source["reader"] is not None and source["reader"] < len(pipes) else None
        if reader is not None and reader["flags"] & Flag.ONE_TO_ONE and source["yielded"] == reader["yielded"] + 1:
            return str(printable(reader["label"]))
    return None


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _share(part: float, whole: float) -> float:
    return max(0.0, min(1.0, part / whole)) if whole > 0 else 0.0
