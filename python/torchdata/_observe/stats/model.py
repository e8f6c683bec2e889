"""The statistics of a loader as plain, immutable values.

Role: the data of what `DataLoader2.stats` returns. `reading` builds it from what the processes have counted. Times are
in seconds, sizes in bytes, shares between 0 and 1. None stands for what was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

__all__ = ["LoaderStats", "Page", "PipeStats", "ProcessStats", "Reading", "SlowItem"]

Page = dict[str, Any]


@dataclass(frozen=True)
class SlowItem:
    """An item that took long to make.

    Attributes:
        process: the process that made it.
        epoch: in which of the process's epochs, from 1 on.
        index: which of the process's items of that epoch, from 0 on.
        seconds: how long it took, all pipes of the process together.
    """

    process: str
    epoch: int
    index: int
    seconds: float


@dataclass(frozen=True)
class PipeStats:
    """A pipe in one process.

    Attributes:
        name: its class, with the user's function: `Mapper(decode)`.
        location: where that function stands, `train.py:31`; None where all code is the package's.
        process: the process.
        items_in: items of all pipes that it reads; None for a source.
        items_out: items that it has yielded.
        own_seconds: time spent in it alone, without the pipes that it reads; None without `stats="full"`. Where
            `waits` is True this is waiting.
        share: `own_seconds` as a part of the time that the process was busy.
        seconds_per_item: `own_seconds` by item.
        p50: seconds that half of its items take at most.
        p99: seconds that 99 of 100 items take at most.
        buffered_items: items that it has read and not yielded yet; None where it holds none by design.
        buffered_bytes: their size, taking them to be as large as the process's items usually are; None where
            that is not known.
        capacity: the most items that it holds.
        waits: whether its items come from another process, or from a thread that reads ahead.
    """

    name: str
    location: str | None
    process: str
    items_in: int | None
    items_out: int
    own_seconds: float | None
    share: float | None
    seconds_per_item: float | None
    p50: float | None
    p99: float | None
    buffered_items: int | None
    buffered_bytes: int | None
    capacity: int | None
    waits: bool


@dataclass(frozen=True)
class ProcessStats:
    """A process of the loader.

    Attributes:
        name: "main", "worker process 1", "the dispatching process".
        role: "main", "worker", "dispatching", or "replaced" where others have taken the process's place for good
            (`num_workers="auto"`).
        worker: the number of the worker.
        pid: the process number.
        state: what it does now: "running", "waiting for the first item", "waiting for items", "waiting for room",
            "idle", "ended".
        waits_for: for which process it waits now.
        waits_seconds: since when; 0 where it does not wait.
        runs: the pipe that runs now; None where that is not known.
        items: items that it has sent, or in main, handed out.
        items_per_second: by second of `seconds`.
        bytes: bytes that it has sent.
        seconds: time in epochs. In main they begin with their first item.
        busy_seconds: time in pipes, with what it takes to send; in main, in the pipes that stay there.
        input_seconds: time that it waited for items of another process.
        room_seconds: time that it waited for its readers to want more, or for memory.
        busy, input, room: these as parts of `seconds`.
        waited_for: seconds of `input_seconds` by process.
        in_flight: items that it has sent and that were not taken yet.
        window: the most items that may be so, over all its readers.
        shared_memory: bytes of its arenas in use.
        shared_memory_peak: the most that ever were.
        shared_memory_limit: the most that may be.
        copies: buffers that it copied out of shared memory, because its user holds too many.
        copied_bytes: their bytes.
        fragments: pieces in which it sent buffers that found no room in shared memory.
        wake_ups: how often it woke another process.
        sleeps: how often it waited for another one.
        restarts: how often it was started again.
        snapshots: states that it has sent.
        cpu_seconds: processor time of all its threads; None where the system does not tell.
        waits_for_cpu_seconds: time that its threads were ready to run and did not; None as before.
        lived_seconds: time in which these two were counted: since the process was started; None as before.
        pipes: its pipes, sources first.
    """

    name: str
    role: str
    worker: int | None
    pid: int
    state: str
    waits_for: str | None
    waits_seconds: float
    runs: str | None
    items: int
    items_per_second: float
    bytes: int
    seconds: float
    busy_seconds: float
    input_seconds: float
    room_seconds: float
    busy: float
    input: float
    room: float
    waited_for: Mapping[str, float]
    in_flight: int
    window: int
    shared_memory: int
    shared_memory_peak: int
    shared_memory_limit: int
    copies: int
    copied_bytes: int
    fragments: int
    wake_ups: int
    sleeps: int
    restarts: int
    snapshots: int
    cpu_seconds: float | None
    waits_for_cpu_seconds: float | None
    lived_seconds: float | None
    pipes: tuple[PipeStats, ...]


@dataclass(frozen=True)
class Reading:
    """What was read of a board.

    Attributes:
        at: when, in nanoseconds of the monotonic clock.
        full: whether the time of each pipe is taken.
        pages: by index, what each process has counted.
        cpu: by index, seconds of processor time, of waiting for it and of life; None where the system does not tell.
        alive: the indices of processes that run.
    """

    at: int
    full: bool
    pages: Mapping[int, Page]
    cpu: Mapping[int, tuple[float, float, float] | None] = field(default_factory=dict)
    alive: frozenset[int] = frozenset()


@dataclass(frozen=True)
class LoaderStats:
    """What a loader has counted, in all epochs or since an earlier `LoaderStats`.

    Attributes:
        full: whether the time of each pipe was taken.
        epoch: the epoch that runs, or ran last, from 1 on; 0 before the first.
        running: whether an epoch runs.
        seconds: time in epochs, from the first item of each on.
        items: items that the loader has handed out.
        bytes: bytes that workers have sent to main; 0 without workers.
        items_per_second, bytes_per_second: by second of `seconds`.
        first_item_seconds: how long the first items of epochs took, on average; None before the first.
        loading: share of the time spent in the loader's `next`; the rest is the training step. None where not known.
        waiting: share of the time that main waited for items of workers.
        waiting_seconds: the same in seconds.
        waited_for: seconds of it by worker.
        step_seconds: seconds between two items that were not the loader's: the training step. None where not known.
        held_up: share of the time that workers waited for main to want more, on average; None without workers.
        prefetched: items that lie ready for main, or for the pipes in it.
        prefetch_limit: the most that may.
        occupancy: `prefetched` by `prefetch_limit`; None where nothing is read ahead.
        shared_memory, shared_memory_peak, shared_memory_limit: bytes of shared memory in use, the most that ever
            were (the sum over links), and that may be.
        copies, copied_bytes, fragments, wake_ups, restarts, snapshots: sums over the processes.
        cores: processors that this process may use, by its affinity and its control groups.
        choices: what `"auto"` has chosen so far, and why, in the order of time.
        processes: main, the workers, the dispatching process.
        slowest: items that took longest, from all processes; empty without `stats="full"`.
    """

    full: bool
    epoch: int
    running: bool
    seconds: float
    items: int
    bytes: int
    items_per_second: float
    bytes_per_second: float
    first_item_seconds: float | None
    loading: float | None
    waiting: float
    waiting_seconds: float
    waited_for: Mapping[str, float]
    step_seconds: float | None
    held_up: float | None
    prefetched: int
    prefetch_limit: int
    occupancy: float | None
    shared_memory: int
    shared_memory_peak: int
    shared_memory_limit: int
    copies: int
    copied_bytes: int
    fragments: int
    wake_ups: int
    restarts: int
    snapshots: int
    cores: int
    processes: tuple[ProcessStats, ...]
    slowest: tuple[SlowItem, ...]
    #: What it was made of, so that later statistics can count from here.
    reading: Reading = field(repr=False, compare=False)
    choices: tuple[str, ...] = ()

    @property
    def main(self) -> ProcessStats | None:
        """The main process."""
        return next((process for process in self.processes if process.role == "main"), None)

    @property
    def workers(self) -> tuple[ProcessStats, ...]:
        """The workers."""
        return tuple(process for process in self.processes if process.role == "worker")

    @property
    def dispatching(self) -> ProcessStats | None:
        """The dispatching process, if there is one."""
        return next((process for process in self.processes if process.role == "dispatching"), None)

    @property
    def pipes(self) -> tuple[PipeStats, ...]:
        """The pipes of all processes."""
        return tuple(pipe for process in self.processes for pipe in process.pipes)

    def merged_pipes(self) -> tuple[PipeStats, ...]:
        """The pipes of all processes, where those of the workers, which run replicas, are taken together.

        Counts and times are sums, `p50` and `p99` those of the worker that took longest.
        """
        groups: dict[tuple[str, int], list[PipeStats]] = {}
        for process in self.processes:
            for place, pipe in enumerate(process.pipes):
                groups.setdefault((process.role, place), []).append(pipe)
        return tuple(_merged(pipes) for pipes in groups.values())

    def as_dict(self) -> dict[str, Any]:
        """All of it in dictionaries, lists, numbers and strings, as JSON has them."""
        plain = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "reading"}
        plain["waited_for"] = dict(self.waited_for)
        plain["processes"] = [asdict(process) for process in self.processes]
        for process in plain["processes"]:
            process["pipes"] = list(process["pipes"])
        plain["slowest"] = [asdict(slow) for slow in self.slowest]
        return plain


def _merged(pipes: list[PipeStats]) -> PipeStats:
    if len(pipes) == 1:
        return pipes[0]

    def total(name: str) -> Any:
        known = [value for pipe in pipes if (value := getattr(pipe, name)) is not None]
        return sum(known) if known else None

    def most(name: str) -> Any:
        return max((value for pipe in pipes if (value := getattr(pipe, name)) is not None), default=None)

    busy = [(pipe.own_seconds, pipe.share) for pipe in pipes if pipe.own_seconds and pipe.share]
    worked = sum(own / share for own, share in busy)
    own = total("own_seconds")
    out = sum(pipe.items_out for pipe in pipes)
    return replace(
        pipes[0],
        process=f"{len(pipes)} workers",
        items_in=total("items_in"),
        items_out=out,
        own_seconds=own,
        share=sum(own for own, _ in busy) / worked if worked else most("share"),
        seconds_per_item=own / out if own is not None and out else None,
        p50=most("p50"),
        p99=most("p99"),
        buffered_items=total("buffered_items"),
        buffered_bytes=total("buffered_bytes"),
        capacity=total("capacity"),
    )
