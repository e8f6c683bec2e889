"""The statistics of a loader as plain, immutable values.

Times are in seconds, sizes in bytes, and fractions between 0 and 1. None means that a value was not measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from torchdata._observe.stats.declaring import counter, described, fields_summed, gauge, stat

Page = dict[str, Any]
#: Advice depends on these names of loaders, because the loaders have different arguments.
STATEFUL, NODES = "StatefulDataLoader", "nodes.Loader"


@described
@dataclass(frozen=True)
class PipeStats:
    name: str = stat("the class of the pipe, with the user's function: `Mapper(decode)`")
    location: str | None = stat("the function's file and line (`train.py:31`); None if all code belongs to the package")
    process: str = stat("the process that runs the pipe")
    items_in: int | None = stat("items that all sources of the pipe have yielded; None for a source", summed="workers")
    items_out: int = stat("items that the pipe has yielded", counter("items"), summed="workers")
    skipped: int = stat("items that `on_error` has skipped at the pipe", counter("skipped"), summed="workers")
    skipped_kinds: Mapping[str, int] = stat(
        "skipped items by the name of the exception's class; further classes are counted as others"
    )
    retries: int = stat("network requests that were repeated after a fault", counter("{request}"), summed="workers")
    own_seconds: float | None = stat(
        'time spent in this pipe alone, without its sources; None without `stats="full"`. If `waits` is '
        "True, this is waiting time",
        counter(),
        summed="workers",
    )
    share: float | None = stat("`own_seconds` as a fraction of the time that the process was busy")
    seconds_per_item: float | None = stat("`own_seconds` per item")
    p50: float | None = stat("the median time of an item", summed="most")
    p99: float | None = stat("the 99th percentile of the time of an item", summed="most")
    buffered_items: int | None = stat(
        "items that the pipe has read and not yielded yet; None for pipes that never hold items",
        gauge(),
        summed="workers",
    )
    capacity: int | None = stat("the maximum number of items that the pipe holds", summed="workers")
    waits: bool = stat("whether another process, or a thread that reads ahead, provides the items of the pipe")
    put_off: bool = stat("whether the pipe's work is postponed until `sharding_filter` has chosen the items of a share")


@described
@dataclass(frozen=True)
class ProcessStats:
    name: str = stat('"main", "worker process 1", "the dispatching process"')
    role: str = stat('"main", "worker" or "dispatching"')
    worker: int | None = stat("the number of the worker")
    pid: int = stat("the process number, on its machine")
    node: str | None = stat("the address of the machine in a Ray cluster; None for this machine")
    actor: str | None = stat("the Ray actor of the process, if it is on another machine")
    state: str = stat(
        'the current activity: "running", "waiting for the first item", "waiting for items", "waiting for room", '
        '"idle", "ended"'
    )
    waits_for: str | None = stat("the process that this process waits for now")
    waits_seconds: float = stat("the duration of the current wait; 0 if the process does not wait")
    runs: str | None = stat("the pipe that runs now; None if unknown")
    items: int = stat("items that the process has sent, or the main process has delivered", counter())
    items_per_second: float = stat("`items` per second of `seconds`")
    bytes: int = stat("bytes that the process has sent")
    network_bytes: int = stat("bytes that were received from the process over the network", counter())
    seconds: float = stat("time in epochs. In the main process, an epoch begins with its first item")
    busy_seconds: float = stat(
        "time in pipes, and for sending; in the main process, time in the pipes that stay there", counter()
    )
    input_seconds: float = stat("time in waits for items of another process", counter("input_wait_seconds"))
    room_seconds: float = stat(
        "time that the process waited until its readers requested more items, or for memory",
        counter("room_wait_seconds"),
    )
    busy: float = stat("`busy_seconds` as a fraction of `seconds`")
    input: float = stat("`input_seconds` as a fraction of `seconds`")
    room: float = stat("`room_seconds` as a fraction of `seconds`")
    waited_for: Mapping[str, float] = stat("`input_seconds` by process")
    in_flight: int = stat("items that the process has sent and that were not received yet", gauge("in_flight_items"))
    window: int = stat("the maximum number of items in flight, to all its readers")
    shared_memory: int = stat("bytes in use in the arenas of the process")
    shared_memory_peak: int = stat("the maximum number of bytes in use since the start")
    shared_memory_limit: int = stat("the maximum number of bytes that may be in use")
    copies: int = stat("received buffers that were copied out of shared memory, because the user keeps too many")
    copied_bytes: int = stat("bytes of those buffers")
    fragments: int = stat("pieces of buffers that did not fit into shared memory")
    wake_ups: int = stat("how often the process woke another process")
    restarts: int = stat("how often the process was replaced")
    snapshots: int = stat("states that the process has sent")
    cpu_seconds: float | None = stat("processor time of all threads; None if the system does not report it", counter())
    waits_for_cpu_seconds: float | None = stat(
        "time that its threads were ready to run but did not run; None if the system does not report it"
    )
    running_seconds: float | None = stat(
        "the period of these two measurements: since the start of the process; None if the system does not report them"
    )
    pipes: tuple[PipeStats, ...] = stat("the pipes of the process, sources first")

    @property
    def called(self) -> str:
        """The name of the process, followed by the name of its machine if the process does not run on the machine of
        the main process."""
        return self.name if self.node is None else f"{self.name} on node {self.node}"


@dataclass(frozen=True)
class Reading:
    """The counters of all processes at the time `at`, in nanoseconds of the monotonic clock. For each running process,
    `cpu` contains three times in seconds: running, waiting for a processor, and since the start of the process."""

    at: int
    full: bool
    pages: Mapping[int, Page]
    cpu: Mapping[int, tuple[float, float, float] | None] = field(default_factory=dict)
    alive: frozenset[int] = frozenset()


@described
@dataclass(frozen=True)
class LoaderStats:
    reading: Reading = field(repr=False, compare=False)
    full: bool = stat("whether the time of each pipe was measured")
    epoch: int = stat("the number of the current or last epoch, from 1; 0 before the first epoch", gauge())
    epochs: int = stat("the number of counted epochs")
    running: bool = stat("whether an epoch runs")
    seconds: float = stat("time in epochs, each measured from its first item", counter("epoch_seconds"))
    items: int = stat("items that the loader has delivered", counter())
    bytes: int = stat("bytes that workers have sent to the main process; 0 without workers", counter())
    items_per_second: float = stat("items per second of `seconds`", gauge())
    bytes_per_second: float = stat("bytes per second of `seconds`", gauge())
    network_bytes: int = stat("bytes received from workers on other machines; 0 without such workers", counter())
    network_bytes_per_second: float = stat("`network_bytes` per second of `seconds`", gauge())
    first_item_seconds: float | None = stat("average time until the first item of an epoch; None before the first item")
    loading: float | None = stat(
        "share of the time spent in the loader's `next`; the remaining time is the training step. None if unknown",
        gauge("loading_ratio"),
    )
    waiting: float = stat("share of the time that the main process waited for items of workers", gauge("waiting_ratio"))
    waiting_seconds: float = stat("time that the main process waited for items of workers", counter())
    waited_for: Mapping[str, float] = stat("`waiting_seconds` by worker")
    step_seconds: float | None = stat(
        "time between two items outside of the loader: the training step. None if unknown", gauge()
    )
    held_up: float | None = stat(
        "share of the time that workers waited until the main process requested more items, on average; None "
        "without workers",
        gauge("held_up_ratio"),
    )
    prefetched: int = stat("items that are ready for the main process, or for its pipes", gauge("prefetched_items"))
    prefetch_limit: int = stat("the maximum number of prefetched items")
    shared_memory: int = stat("bytes of shared memory in use", gauge("shared_memory_bytes"), summed="processes")
    shared_memory_peak: int = stat(
        "the maximum in use since the start, summed over links", gauge("shared_memory_peak_bytes"), summed="processes"
    )
    shared_memory_limit: int = stat(
        "the maximum number of bytes that may be in use", gauge("shared_memory_limit_bytes"), summed="processes"
    )
    copies: int = stat("buffers that were copied out of full shared memory", counter(), summed="processes")
    copied_bytes: int = stat("bytes of those buffers", counter(), summed="processes")
    fragments: int = stat("pieces of buffers that did not fit into shared memory", counter(), summed="processes")
    wake_ups: int = stat("how often a process woke another process", counter(), summed="processes")
    restarts: int = stat("how often a worker was replaced", counter(), summed="processes")
    snapshots: int = stat("states that workers have sent", counter(), summed="processes")
    cores: int = stat("processors that this process may use, by its affinity and its control groups")
    processes: tuple[ProcessStats, ...] = stat("the main process, the workers, the dispatching process")
    choices: tuple[str, ...] = stat('the choice of `num_workers="auto"`, and its reason', default=())

    @property
    def loader(self) -> str | None:
        main = self.main
        names = [] if main is None else [pipe.name for pipe in main.pipes if pipe.name in (STATEFUL, NODES)]
        return names[-1] if names else None

    @property
    def main(self) -> ProcessStats | None:
        return next((process for process in self.processes if process.role == "main"), None)

    @property
    def workers(self) -> tuple[ProcessStats, ...]:
        return tuple(process for process in self.processes if process.role == "worker")

    @property
    def dispatching(self) -> ProcessStats | None:
        return next((process for process in self.processes if process.role == "dispatching"), None)

    @property
    def pipes(self) -> tuple[PipeStats, ...]:
        return tuple(pipe for process in self.processes for pipe in process.pipes)

    def merged_pipes(self) -> tuple[PipeStats, ...]:
        """Returns the pipes of all processes. Replicas of a pipe in several workers are merged: counts and times are
        added up; `p50` and `p99` are taken from the slowest worker."""
        groups: dict[tuple[str, int], list[PipeStats]] = {}
        for process in self.processes:
            for index, pipe in enumerate(process.pipes):
                groups.setdefault((process.role, index), []).append(pipe)
        return tuple(_merged(pipes) for pipes in groups.values())

    def as_dict(self) -> dict[str, Any]:
        plain = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "reading"}
        plain["waited_for"] = dict(self.waited_for)
        plain["processes"] = [asdict(process) for process in self.processes]
        for process in plain["processes"]:
            process["pipes"] = list(process["pipes"])
        return plain


def added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for one in counts:
        sums.update(one)
    return dict(sums)


def _merged(pipes: list[PipeStats]) -> PipeStats:
    if len(pipes) == 1:
        return pipes[0]

    def known(name: str) -> list[Any]:
        return [value for pipe in pipes if (value := getattr(pipe, name)) is not None]

    merged: dict[str, Any] = {name: max(known(name), default=None) for name in fields_summed(PipeStats, "most")}
    for name in fields_summed(PipeStats, "workers"):
        merged[name] = sum(known(name)) if known(name) else None
    busy = [(pipe.own_seconds, pipe.share) for pipe in pipes if pipe.own_seconds and pipe.share]
    worked = sum(own / share for own, share in busy)
    own, out = merged["own_seconds"], merged["items_out"]
    merged["skipped_kinds"] = added(pipe.skipped_kinds for pipe in pipes)
    merged["share"] = sum(own for own, _ in busy) / worked if worked else max(known("share"), default=None)
    merged["seconds_per_item"] = own / out if own is not None and out else None
    return replace(pipes[0], process=f"{len(pipes)} workers", **merged)
