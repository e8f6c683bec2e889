"""Describes in one sentence what limits a loader, and what would help.

Each rule recognizes one situation, and the first rule that applies determines the result. The thresholds are far above
random fluctuations.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from torchdata._observe.show.table import duration, percent, size
from torchdata._observe.stats.advice import advice_for
from torchdata._observe.stats.cores import workers_that_fit
from torchdata._observe.stats.model import added
from torchdata._observe.stats.processor import anonymous_memory

if TYPE_CHECKING:
    from torchdata._observe.stats.model import LoaderStats, PipeStats, ProcessStats

FEWEST = 10
MANY = 1000
#: A loader does not limit the program if the program waits for it for less than this fraction of the time.
SMALL_SHARE = 0.10
STALL = 5.0
#: If workers wait for cores but use less than this fraction of the cores, other programs are considered to use the
#: cores.
OWN_CORES = 0.1
_CHEAP_PIPES = frozenset(
    {"IterableWrapper", "MapToIterConverter", "SequenceWrapper", "Shuffler", "Batcher", "Enumerator", "Prefetcher"}
)
MOST_WORKERS = 64
#: The advice never asks to shorten the time of a pipe to less than this fraction of its present time, because this
#: would be unrealistic.
WITHIN_REACH = 0.1
#: An item must take at least this many seconds before more workers are suggested, because receiving an item takes half
#: a microsecond.
WORTH_A_WORKER = 2e-6
#: Pickling and copying limit a loader only if they take at least this many seconds per item.
WORTH_PACKING = 1e-3
#: The diagnosis reports a forked worker that has copied more than the fraction `MOST_COPIED` of its inherited memory.
#: Copies of up to `COPIED_BY_ANY` bytes are never reported, because even a small program has many objects.
MOST_COPIED, COPIED_BY_ANY = 0.25, 32 << 20


@dataclass(frozen=True)
class Verdict:
    """The limit of a loader.

    Attributes:
        kind: the situation: "empty", "stalled", "too early", "first item", "training", "memory", "cores",
            "dispatching", "network", "sending", "packing", "idle workers", "slow source", "work before sharding",
            "skewed shard", "slow worker" or "loading".
        text: one or two sentences that name the limit, with numbers, and what would help.
        process: the responsible process, if any.
        pipe: the responsible pipe, if known.
        location: the location of the pipe's function.
    """

    kind: str
    text: str
    process: str | None = None
    pipe: str | None = None
    location: str | None = None

    def __str__(self) -> str:
        return self.text


def _blaming(kind: str, text: str, process: str | None, pipe: PipeStats | None) -> Verdict:
    return Verdict(kind, text, process, *((pipe.name, pipe.location) if pipe is not None else (None, None)))


def diagnose(stats: LoaderStats) -> Verdict:
    for rule in RULES:
        verdict = rule(stats)
        if verdict is not None:
            return _with_skipped(verdict, stats)
    raise AssertionError("the last rule always returns a verdict")


def waited_for_long(stats: LoaderStats, loader: str, share: float) -> str | None:
    """Returns a message if the program has waited for more than `share` of the epoch, otherwise None."""
    first = (stats.first_item_seconds or 0.0) * stats.epochs
    inside = stats.loading if stats.loading is not None else stats.waiting
    whole = first + stats.seconds
    waited = (first + inside * stats.seconds) / whole if whole > 0 else 0.0
    verdict = diagnose(stats)
    if waited <= share or verdict.kind in ("training", "too early", "empty"):
        return None
    return (
        f"{loader}: in epoch {stats.epoch}, the program waited {percent(waited)} of {duration(whole)} for the loader. "
        f"{verdict} (wait_warning=None or TORCHDATA_WAIT_WARNING=0 turns this warning off)"
    )


def _with_skipped(verdict: Verdict, stats: LoaderStats) -> Verdict:
    skipped = added(
        {f"{kind} in {pipe.name}": count for kind, count in pipe.skipped_kinds.items()} for pipe in stats.pipes
    )
    if not skipped:
        return verdict
    counts = ", ".join(f"{count} {name}" for name, count in skipped.items())
    count = sum(skipped.values())
    return dataclasses.replace(verdict, text=f"{verdict.text} {count} items were skipped after errors: {counts}.")


def with_copied_memory(verdict: Verdict, stats: LoaderStats, inherited: int) -> Verdict:
    """Adds a sentence if a forked worker has copied much of the memory that it has inherited from the main process."""
    copied, workers = 0, stats.workers if inherited else ()
    for worker in workers:
        size_of_all, proportional = anonymous_memory(worker.pid)
        shared = min(size_of_all, (size_of_all - proportional) * (len(workers) + 1) // len(workers))
        copied = max(copied, min(size_of_all, inherited) - shared)
    if copied <= max(MOST_COPIED * inherited, COPIED_BY_ANY):
        return verdict
    text = (
        f"{verdict.text} A worker has copied {size(copied)} of the {size(inherited)} that it inherited from the main "
        "process, because even reading a Python object changes its reference count: store the dataset in arrays or "
        "Arrow tables."
    )
    return dataclasses.replace(verdict, text=text)


def empty(stats: LoaderStats) -> Verdict | None:
    if stats.items or stats.running or not stats.epochs:
        return None
    processes = sorted(stats.processes, key=lambda process: process.role == "main")
    pipes = [pipe for process in processes for pipe in process.pipes]
    empty = next((pipe for pipe in pipes if not pipe.items_out), None)
    what = ""
    if empty is not None:
        what = f"; its source, {_called(empty)}, yielded nothing"
        if empty.items_in:
            what = f"; {_called(empty)} received {empty.items_in} items and yielded none"
    text = f"The pipeline is empty: an epoch has ended without any item{what}."
    return _blaming("empty", text, None if empty is None else empty.process, empty)


def too_early(stats: LoaderStats) -> Verdict | None:
    if stats.items >= FEWEST and stats.seconds > 0:
        return None
    idle = idle_workers(stats)
    if idle is not None:
        return idle
    return Verdict(
        "too early", f"It is too early for a diagnosis: {stats.items} items were loaded, {FEWEST} are needed."
    )


def stalled(stats: LoaderStats) -> Verdict | None:
    main = stats.main
    if main is None or main.waits_seconds < STALL:
        return None
    if stats.items and main.waits_seconds < 20 * stats.seconds / stats.items:
        return None
    processes = {process.name: process for process in stats.processes}
    chain = blame(processes, main.waits_for or "")
    if not chain:
        return None
    where = f"To see its stack, run python -m torchdata top {main.pid}, and press s."
    if chain[-1].node is not None:
        where = "The loader's `stall_warning` shows its stack."
    return Verdict(
        "stalled",
        f"No item arrives: main has waited {duration(main.waits_seconds)} for "
        f"{', which waits for '.join(process.called for process in chain)}, which is {chain[-1].state}. {where}",
        chain[-1].name,
        chain[-1].runs,
    )


def blame(processes: Mapping[str, ProcessStats], name: str) -> list[ProcessStats]:
    """Returns a chain of processes: each process waits for the next process, and the last process is responsible."""
    chain: list[ProcessStats] = []
    while name in processes and processes[name] not in chain and processes[name].role != "main":
        chain.append(processes[name])
        name = processes[name].waits_for or ""
    return chain


def slow_first_item(stats: LoaderStats) -> Verdict | None:
    """Recognizes epochs that take longer to begin than to run."""
    main = stats.main
    first = stats.first_item_seconds
    if main is None or first is None or not stats.epochs:
        return None
    waited = first * stats.epochs
    if first < 0.5 or waited < 0.5 * (waited + stats.seconds):
        return None
    worst = _slowest_pipe([*stats.workers, main])
    where = f" The slowest pipe is {_called(worst)}." if worst is not None else ""
    return _blaming(
        "first item",
        f"The first item limits you: it takes {duration(first)}, {percent(waited / (waited + stats.seconds))} of the "
        f"time; all later items of an epoch take {duration(stats.seconds / stats.epochs)}.{where} Check what the pipes "
        "do before their first item (a shuffle fills its buffer, a source lists its files, workers import the program: "
        f"{advice_for(stats).start}).",
        None,
        worst,
    )


def training(stats: LoaderStats) -> Verdict | None:
    share = stats.loading if stats.loading is not None else stats.waiting if stats.workers else None
    if share is None or share >= SMALL_SHARE:
        return None
    spare = ""
    if len(stats.workers) > 1 and (stats.held_up or 0) > 0.5:
        spare = f" Workers waited {percent(stats.held_up)} of the time for free space: fewer workers are enough."
    return Verdict(
        "training",
        f"Training limits you: loading takes {percent(share)} of the time, and the step between two items takes "
        f"{duration(stats.step_seconds)}.{spare}",
        process="main",
    )


def full_memory(stats: LoaderStats) -> Verdict | None:
    fragments = stats.fragments * (64 << 10)
    if not stats.bytes or stats.copied_bytes + fragments < 0.2 * stats.bytes:
        return None
    what = []
    if stats.copied_bytes:
        what.append(f"{size(stats.copied_bytes)} were copied, because your program keeps items in more than half of it")
    if stats.fragments:
        what.append(f"{stats.fragments} fragments were sent without it because it had no free space")
    return Verdict(
        "memory",
        f"The memory budget of {size(stats.shared_memory_limit)} is full: of {size(stats.bytes)}, "
        f"{', and '.join(what)}. {advice_for(stats).memory}",
        process="main",
    )


def oversubscribed(stats: LoaderStats) -> Verdict | None:
    """Recognizes that more threads want to run than there are cores."""
    here = [p for p in stats.processes if p.role != "main" and p.node is None]
    children = [p for p in here if p.cpu_seconds is not None]
    ran = sum(child.cpu_seconds or 0.0 for child in children)
    queued = sum(child.waits_for_cpu_seconds or 0.0 for child in children)
    # The processor time of a process includes the start of the process, so the time is compared with the whole lifetime
    # of the process.
    wall = max((child.running_seconds or 0.0 for child in children), default=0.0)
    there = stats.cores * wall
    if not children or there <= 0 or queued < 0.6 * ran or ran < OWN_CORES * there or ran + queued < 1.3 * there:
        return None
    threads = (ran + queued) / wall
    each = threads / len(children)
    advice = (
        f"each runs {each:.1f} threads at once: set OMP_NUM_THREADS=1, or torch.set_num_threads(1) and "
        "cv2.setNumThreads(0) in worker_init_fn"
        if each > 1.5
        else f"use {max(1, stats.cores - 1)} to {stats.cores} workers"
    )
    return Verdict(
        "cores",
        f"Workers compete for cores: {threads:.0f} threads of {len(children)} processes share {stats.cores} cores, and "
        f"waited for a core for {percent(queued / (ran + queued))} of their time; {advice}.",
    )


def dispatching(stats: LoaderStats) -> Verdict | None:
    process = stats.dispatching
    if process is None or not stats.workers or process.room > 0.3 or _input_of(stats) < 0.4:
        return None
    worst = _slowest_pipe([process])
    where = f" It spends {percent(worst.share)} in {_called(worst)}, {_each(worst)}." if worst else ""
    return _blaming(
        "dispatching",
        f"The dispatching process limits you: the workers wait {percent(_input_of(stats))} of the time for its items, "
        f"and it waits {percent(process.room)} of the time for them to take items.{where} Move work after "
        "sharding_round_robin_dispatch, so that all workers share it.",
        process.name,
        worst,
    )


def _input_of(stats: LoaderStats) -> float:
    return sum(worker.input for worker in stats.workers) / len(stats.workers)


def network(stats: LoaderStats) -> Verdict | None:
    """Recognizes workers on other machines that wait for free space while the main process waits for items."""
    far = [worker for worker in stats.workers if worker.node is not None]
    if not far or stats.waiting < 0.5 or stats.dispatching is not None:
        return None
    held = sum(worker.room for worker in far) / len(far)
    if held < 0.4 or stats.items < FEWEST:
        return None
    return Verdict(
        "network",
        f"The network limits you: {size(stats.network_bytes_per_second)}/s arrive from {_counted(len(far), 'worker')}; "
        f"main waits {percent(stats.waiting)} of the time for items, and the workers wait {percent(held)} of the time "
        "for free space. More workers would not help. For large items, send fewer bytes (smaller types, decode in the "
        "main process). For small items, put `.batch(…)` at the end of the workers' pipes, or raise "
        "worker_prefetch_cnt.",
        "main",
    )


def sending(stats: LoaderStats) -> Verdict | None:
    """Recognizes small items that take longer to send than to create."""
    workers = stats.workers
    if not workers or stats.dispatching or stats.items < MANY or any(worker.node is not None for worker in workers):
        return None
    items = max(1, sum(worker.items for worker in workers))
    # For tiny items, a worker may wait for a core for longer than it works, so its waiting time is subtracted. Virtual
    # machines do not report every wait for a core. Therefore, if the sum of the pipes' own times is smaller than the
    # remaining busy time, this sum is used.
    worked = sum(max(0.0, worker.busy_seconds - (worker.waits_for_cpu_seconds or 0.0)) for worker in workers)
    in_pipes = [pipe.own_seconds for worker in workers for pipe in worker.pipes]
    each = worked / items
    if each < WORTH_PACKING and in_pipes and None not in in_pipes:
        each = min(each or math.inf, sum(filter(None, in_pipes)) / items)
    made = sum(worker.busy for worker in workers)
    if each > WORTH_A_WORKER and (stats.waiting < 0.5 or made > 0.6):
        return None
    return Verdict(
        "sending",
        f"Sending limits you: a worker makes an item in {duration(each)}, but main receives one every "
        f"{duration(stats.seconds / stats.items)}; the workers wait {percent(stats.held_up)} of the time for free "
        f"space. Use num_workers=0, or {advice_for(stats).larger}",
        "main",
    )


def packing(stats: LoaderStats) -> Verdict | None:
    """Recognizes items that take longer to pickle and copy than to create."""
    worker = max(stats.workers, key=lambda worker: stats.waited_for.get(worker.name, 0.0), default=None)
    if worker is None or not worker.items or stats.waiting < 0.5:
        return None
    known = [pipe.own_seconds for pipe in worker.pipes if pipe.own_seconds is not None and not pipe.waits]
    each = (worker.busy_seconds - sum(known)) / worker.items
    if not known or sum(known) > 0.5 * worker.busy_seconds or each < WORTH_PACKING:
        return None
    return Verdict(
        "packing",
        f"Packing limits you: {worker.called} works {duration(worker.busy_seconds / worker.items)} per item, and "
        f"{duration(each)} of this time is spent outside of your functions, to pickle and copy the item. Yield arrays "
        "or tensors instead of objects, or smaller items.",
        worker.name,
    )


def idle_workers(stats: LoaderStats) -> Verdict | None:
    """Recognizes epochs with fewer items (or blocks of items) than workers."""
    idle = [worker for worker in stats.workers if not worker.items]
    if not idle or stats.running or not stats.items:
        return None
    shared = {pipe.items_in for worker in stats.workers for pipe in worker.pipes if _shares(pipe)}
    most = max((items for items in shared if items), default=0)
    if not most or most > MOST_WORKERS:
        return None
    return Verdict(
        "idle workers",
        f"{len(idle)} of {len(stats.workers)} workers received no items: `ShardingFilter` divides "
        f"{_counted(most, 'item')} among the workers, and all go to "
        f"{', '.join(worker.name for worker in stats.workers if worker.items)}. Make blocks smaller "
        "(ShardingPolicy(block=1)), use fewer workers, or shard after the pipe that makes several items from each one.",
        idle[0].name,
    )


def _shares(pipe: PipeStats) -> bool:
    return pipe.name.startswith("ShardingFilter")


def work_before_sharding(stats: LoaderStats) -> Verdict | None:
    """Recognizes workers that process all items before they drop most of them."""
    if len(stats.workers) < 2:
        return None
    worker = max(stats.workers, key=lambda worker: stats.waited_for.get(worker.name, 0.0))
    index = next((number for number, pipe in enumerate(worker.pipes) if _shares(pipe)), None)
    if index is None:
        return None
    sharing, before, after = worker.pipes[index], worker.pipes[:index], worker.pipes[index + 1 :]
    if not sharing.items_in or sharing.items_in < 1.5 * max(1, sharing.items_out):
        return None
    if stats.full:
        free = [pipe for pipe in before if not pipe.waits and not pipe.put_off]
        worst = max(free, key=lambda pipe: pipe.own_seconds or 0.0, default=None)
        others = sum(pipe.own_seconds or 0.0 for pipe in worker.pipes if pipe is not worst)
        if worst is None or (_is_cheap(worst) and worst.items_in is not None):
            return None
        if (worst.own_seconds or 0.0) < others:
            return None
    else:  # without measured times, the diagnosis is certain only if nothing else is slow
        worst = next((pipe for pipe in before if _maps(pipe) and not pipe.put_off), None)
        if worst is None or not all(map(_is_cheap, [*after, *(pipe for pipe in before if not _maps(pipe))])):
            return None
    if worst.items_in is None:
        return _blaming(
            "slow source",
            f"Reading limits you: each of {len(stats.workers)} workers reads all {worst.items_out} items of "
            f"{_called(worst)}, {_each(worst)}, but keeps only {sharing.items_out}, so more workers do not help: put "
            "`.sharding_filter()` before the reading pipe, to divide its input (names of files, row groups), or make "
            "reading faster.",
            worker.name,
            worst,
        )
    function = worst.name.partition("(")[2].rstrip(")")
    call = f".map({function})" if function and _maps(worst) else f"`{worst.name}`"
    return _blaming(
        "work before sharding",
        f"Each of {len(stats.workers)} workers runs {_called(worst)} for all {sharing.items_in} items, but keeps only "
        f"{sharing.items_out}, so more workers do not help: move `.sharding_filter()` before {call}.",
        worker.name,
        worst,
    )


def _is_cheap(pipe: PipeStats) -> bool:
    return pipe.location is None and pipe.name.partition("(")[0] in _CHEAP_PIPES


def _maps(pipe: PipeStats) -> bool:
    return pipe.location is not None and "Mapper(" in pipe.name


def skewed_shard(stats: LoaderStats) -> Verdict | None:
    """Recognizes one worker with much more work than any other worker."""
    workers = stats.workers
    if len(workers) < 2:
        return None
    most = max(workers, key=lambda worker: worker.items)
    others = [worker for worker in workers if worker is not most]
    usual = median(worker.items for worker in others)
    if most.items < 1.5 * max(1, usual) or most.seconds < 1.3 * median(worker.seconds for worker in others):
        return None
    return Verdict(
        "skewed shard",
        f"A skewed shard limits you: {most.called} has {percent(most.items / stats.items) if stats.items else '-'} of "
        f"the items ({most.items}; other workers have {usual:.0f}) and works {duration(most.seconds)}, whereas other "
        f"workers work {duration(median(worker.seconds for worker in others))}. {advice_for(stats).shares}",
        process=most.name,
    )


def slow_worker(stats: LoaderStats) -> Verdict | None:
    """Recognizes a slow worker that makes all workers wait, because items are taken in strict order."""
    workers = [worker for worker in stats.workers if worker.items]
    if len(workers) < 2 or not stats.waiting_seconds:
        return None
    slow = max(workers, key=lambda worker: worker.busy_seconds / worker.items)
    each = slow.busy_seconds / slow.items
    others = [worker for worker in workers if worker is not slow]
    usual = median(other.busy_seconds / other.items for other in others)
    blamed = stats.waited_for.get(slow.name, 0.0) / stats.waiting_seconds
    # On a busy machine, the main process's waiting times may not reveal the slow worker. Therefore, a second sign of a
    # slow worker is that it waits much less than other workers for free space in its link to the main process.
    after = median(other.room for other in others) - slow.room > 0.3
    if each < 1.7 * usual or (blamed < 0.6 and not after):
        return None
    worst = _slowest_pipe([slow])
    where = f", most of it in {_called(worst)}" if worst else ""
    return _blaming(
        "slow worker",
        f"One slow worker limits you: {percent(blamed)} of main's waiting is for {slow.called} (pid {slow.pid}), which "
        f"takes {duration(each)} per item{where}, whereas other workers take {duration(usual)}. In strict order, all "
        "workers wait for it: check what is special about its share of the data, or use in_order=False.",
        slow.name,
        worst,
    )


def loading(stats: LoaderStats) -> Verdict | None:
    return _loading_in_workers(stats) if stats.waited_for else _loading_in_main(stats)


def _loading_in_workers(stats: LoaderStats) -> Verdict:
    name = max(stats.waited_for, key=lambda name: stats.waited_for[name], default="")
    worker = next((worker for worker in stats.workers if worker.name == name), stats.workers[0])
    worst = _slowest_pipe([worker])
    limit = "Loading limits you: " if (stats.loading or stats.waiting) >= SMALL_SHARE else ""
    text = f"{limit}main waits {percent(stats.waiting)} of the time, most of it for {worker.called}"
    main = stats.main
    if main is not None and main.busy > stats.waiting:
        worst = _slowest_pipe([main]) or worst
        text += f", and works {percent(main.busy)} of it in the pipes that stay in the main process"
    text += f"; {_where(worst, stats)}"
    if worst is not None and worst.process == worker.name:
        text += _remedy(stats, worker, worst)
    return _blaming("loading", text, worker.name, worst)


def _loading_in_main(stats: LoaderStats) -> Verdict:
    main = stats.main
    worst = _slowest_pipe([main]) if main is not None else None
    if stats.loading is None:
        text = f"This process loads {stats.items_per_second:.4g} items per second; nothing else was measured."
        return Verdict("loading", text, "main")
    text = f"Loading limits you: it takes {percent(stats.loading)} of the time, in this process; {_where(worst, stats)}"
    each = stats.loading * stats.seconds / stats.items
    if each < WORTH_A_WORKER:
        text += f" An item takes {duration(each)}, so workers would make the loader slower."
    elif stats.step_seconds:
        step = max(stats.step_seconds, 1e-9)
        workers, words = math.ceil(each / step), advice_for(stats).workers
        if worst is not None and worst.waits:
            workers, words = workers + 1, "{} times the workers"
        if workers <= MOST_WORKERS:
            text += _with_workers(stats, workers, words.format(workers))
    return _blaming("loading", text, "main", worst)


def _where(worst: PipeStats | None, stats: LoaderStats) -> str:
    if worst is not None:
        process = next((process.called for process in stats.processes if process.name == worst.process), worst.process)
        verb = "waits for" if worst.waits else f"spends {percent(worst.share)} of its work in"
        return f"{process} {verb} {_called(worst)}, {_each(worst)}."
    return (
        "where the time goes is not known yet."
        if stats.full
        else f"{advice_for(stats).full} or TORCHDATA_STATS=full shows which pipe takes the time."
    )


def _remedy(stats: LoaderStats, worker: ProcessStats, worst: PipeStats) -> str:
    """Suggests a number of workers that makes the loader as fast as the training step, or a maximum time for the
    slowest pipe."""
    step = stats.step_seconds
    busy = sum(one.busy_seconds for one in stats.workers)
    items = sum(one.items for one in stats.workers)
    if not step or not items or not worker.items or not worst.own_seconds or not worst.items_out:
        return ""
    each, now = busy / items, len(stats.workers)
    needed = max(now + 1, math.ceil(each / step))
    per_item = worst.own_seconds / worker.items
    allowed = step * now - (each - per_item)
    faster = allowed * worker.items / worst.items_out
    name = worst.name.partition("(")[2].rstrip(")") or worst.name
    cheaper = f"{name} took {duration(faster)}"
    possible = faster > WITHIN_REACH * (worst.seconds_per_item or 0.0)
    _, fit = workers_that_fit(stats)
    if min(needed, fit) > MOST_WORKERS:
        return f" Make {name} cheaper, or use more workers if they do not wait for the same disk or lock."
    if needed > fit:
        cores = "The only core is" if stats.cores == 1 else f"The {stats.cores} cores are"
        text = f" {cores} busy with {_counted(now, 'worker')}: more would not be faster."
        if fit > now:
            text = f" Use {fit:.0f} workers, which keep the {stats.cores} cores busy: more would not be faster."
        return f"{text} {f'If {cheaper}, {_limit(step)}' if possible else f'Make {name} cheaper, or use more cores'}."
    return _with_workers(stats, needed, f"{needed} workers{f', or if {cheaper},' if possible else ''}")


def _with_workers(stats: LoaderStats, workers: int, words: str) -> str:
    surely, _ = workers_that_fit(stats)
    text = f" With {words} {_limit(stats.step_seconds)}"
    if workers <= surely:
        return f"{text}."
    keep = f"{_counted(stats.cores, 'worker')} {'keeps' if stats.cores == 1 else 'keep'}"
    return f"{text} if workers mostly wait; if they compute, {keep} the {_counted(stats.cores, 'core')} busy."


def _limit(step: float | None) -> str:
    return f"the training step ({duration(step)}) would be the limit"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _slowest_pipe(processes: list[ProcessStats]) -> PipeStats | None:
    """Returns the slowest computing pipe, or a waiting pipe that takes more than twice the time of all computing
    pipes."""
    pipes = [pipe for process in processes for pipe in process.pipes if pipe.own_seconds]
    worst = max((pipe for pipe in pipes if not pipe.waits), key=_own, default=None)
    awaited = max((pipe for pipe in pipes if pipe.waits and pipe.items_in is not None), key=_own, default=None)
    if awaited is not None and sum(_own(pipe) for pipe in pipes if not pipe.waits) < 0.5 * _own(awaited):
        return awaited
    return worst


def _own(pipe: PipeStats) -> float:
    return pipe.own_seconds or 0.0


def _called(pipe: PipeStats) -> str:
    return f"`{pipe.name}` ({pipe.location})" if pipe.location else f"`{pipe.name}`"


def _each(pipe: PipeStats) -> str:
    return f"{duration(pipe.seconds_per_item)} per item"


RULES: tuple[Callable[[LoaderStats], Verdict | None], ...] = (
    stalled, empty, too_early, slow_first_item, training, full_memory, oversubscribed, dispatching, network, sending,
    packing, work_before_sharding, idle_workers, skewed_shard, slow_worker, loading,
)  # fmt: skip
