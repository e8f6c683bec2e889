"""Makes ranks fail at random moments, and checks which errors and leftovers the remaining ranks produce.

A job has 2 to 4 ranks that run a few short epochs. The seed of a job determines how the ranks run, which rank fails,
and how and when it fails. Rank 0 may host torch's key-value store, as in programs without torchrun. The function
`judge` contains the rules that jobs must follow."""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from drivers.frame import Driver, Leaves
from watchdog import session

#: Surviving ranks must raise an error at most `GRACE` seconds after the timeout. The documents promise 1.5 s.
GRACE = 3.0

EXIT_GRACE = 30.0

MOMENTS = ["before the loader", "opening", "first item", "epoch", "between epochs", "last epoch", "shutdown"]

ACTIONS = ["kill", "stop", "stop and go on soon", "stop and go on late", "raise", "hang"]

EPOCHS, ITEMS = 3, 8


@dataclass
class Plan:
    seed: int
    ranks: int
    timeout: float
    mode: str  # "service", "workers" or "fullsync"
    store: str  # "rank 0" or "outside"
    victim: int
    action: str
    moment: str
    delay: float  # seconds between the moment and the fault
    pace: float  # seconds of work for each item
    pause: float  # seconds between epochs
    leaves: bool = False  # whether all ranks leave the second epoch early
    results: str | None = None  # a line about the job is appended to this file

    @classmethod
    def draw(cls, seed: int) -> Plan:
        rng = random.Random(seed)
        ranks = rng.choice([2, 3, 3, 4])
        return cls(
            seed=seed,
            ranks=ranks,
            timeout=rng.choice([2.0, 3.0]),
            mode=rng.choice(["service", "service", "workers", "fullsync"]),
            store=rng.choice(["rank 0", "rank 0", "outside"]),
            victim=rng.choice([0, rng.randrange(ranks)]),
            action=rng.choice(ACTIONS),
            moment=rng.choice(MOMENTS),
            delay=rng.choice([0.0, rng.random() * 0.05, rng.random() * 0.5]),
            pace=rng.choice([0.0, 0.01, 0.03]),
            pause=rng.choice([0.0, 0.1, 0.3]),
            leaves=rng.random() < 0.4,
        )

    @property
    def signals(self) -> bool:
        return self.action not in ("raise", "hang")


class Chaos(Exception):
    """The exception that a rank's user code raises on purpose."""


class Diary:
    def __init__(self, folder: Path, rank: int) -> None:
        self.file = os.open(folder / f"{rank}.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def note(self, event: str, **more: Any) -> None:
        line = json.dumps({"event": event, "at": time.monotonic(), **more})
        os.write(self.file, line.encode() + b"\n")


def hold_store(folder: Path) -> Any:
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    (folder / "port.tmp").write_text(str(store.port))
    (folder / "port.tmp").rename(folder / "port")
    return store


def run_agent(folder: Path) -> None:
    """Holds torch's key-value store in a process that is not a rank, as torchrun's agent does."""
    store = hold_store(folder)
    while store is not None:
        signal.pause()


def run_rank(plan: Plan, rank: int, folder: Path) -> None:
    from datetime import timedelta

    import torch.distributed as dist

    from torchdata.dataloader2 import (
        DataLoader2,
        DistributedReadingService,
        MultiProcessingReadingService,
        SequentialReadingService,
    )
    from torchdata.datapipes.iter import FullSync, IterableWrapper

    diary = Diary(folder, rank)
    mine = rank == plan.victim and not plan.signals
    home = os.getpid()

    def reached(moment: str) -> None:
        if os.getpid() == home:
            diary.note("moment", moment=moment)
        if mine and moment == plan.moment:
            time.sleep(plan.delay)
            if os.getpid() == home:
                diary.note("fault")
            if plan.action == "raise":
                raise Chaos("in the user's code")
            time.sleep(1000)

    if plan.store == "rank 0" and rank == 0:
        store = hold_store(folder)
    else:
        while not (folder / "port").exists():
            time.sleep(0.005)
        store = dist.TCPStore("127.0.0.1", int((folder / "port").read_text()), is_master=False)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=store, rank=rank, world_size=plan.ranks, timeout=timedelta(seconds=60))
    counts: list[int] = []
    loader: Any = None
    diary.note("joined")
    # Errors that torch raises before all ranks have joined are not tested.
    while sum(path.suffix == ".joined" for path in folder.iterdir()) < plan.ranks:
        (folder / f"{rank}.joined").touch()
        time.sleep(0.01)
    try:
        reached("before the loader")

        def pace(item: int) -> int:
            time.sleep(plan.pace)
            return item

        source = IterableWrapper(range(plan.ranks * ITEMS)).sharding_filter().map(pace)
        if plan.mode == "fullsync":
            loader = FullSync(IterableWrapper(range(ITEMS)).map(pace), timeout=plan.timeout)
        else:
            service: Any = DistributedReadingService(plan.timeout)
            if plan.mode == "workers":
                service = SequentialReadingService(service, MultiProcessingReadingService(1))
            loader = DataLoader2(source, reading_service=service)
        for epoch in range(EPOCHS):
            count = 0
            reached("opening" if epoch == 0 else "between epochs" if epoch == 1 else "last epoch")
            items = iter(loader)
            if epoch == 0:
                reached("first item")
            for _ in items:
                count += 1
                if epoch == 1 and count == ITEMS // 2:
                    reached("epoch")
                    if plan.leaves:
                        break
            counts.append(count)
            diary.note("epoch", count=count)
            time.sleep(plan.pause)
        reached("shutdown")
        loader.shutdown()
        diary.note("outcome", kind="complete", text="", counts=counts)
    except BaseException as error:
        diary.note("outcome", kind=type(error).__name__, text=str(error), counts=counts)
        if loader is not None:
            loader.shutdown()
        sys.exit(3 if isinstance(error, Chaos) else 4)
    finally:
        diary.note("leaves")


class Rank:
    def __init__(self, pid: int, folder: Path, rank: int) -> None:
        self.pid, self.rank = pid, rank
        self.path = folder / f"{rank}.log"
        self.events: list[dict[str, Any]] = []
        self.exit: tuple[float, int] | None = None
        self._read = 0

    def look(self) -> None:
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(self._read)
            lines = file.read()
            whole = lines.rfind(b"\n") + 1
            self._read += whole
            self.events += [json.loads(line) for line in lines[:whole].splitlines()]
        if self.exit is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.exit = (time.monotonic(), os.waitstatus_to_exitcode(status))

    def find(self, event: str, **more: Any) -> dict[str, Any] | None:
        for found in self.events:
            if found["event"] == event and all(found.get(key) == value for key, value in more.items()):
                return found
        return None

    def signal(self, number: int) -> None:
        if self.exit is None:
            os.kill(self.pid, number)


def begin(program: Callable[[], None]) -> NoReturn:
    _ranks.add(os.getpid())
    raise Leaves(program)


def run_job(plan: Plan, folder: Path) -> dict[str, Any]:
    agent = os.fork() if plan.store == "outside" else None
    if agent == 0:
        begin(lambda: run_agent(folder))
    ranks = []
    for number in range(plan.ranks):
        pid = os.fork()
        if pid == 0:
            os.setsid()
            output = os.open(folder / f"{number}.out", os.O_CREAT | os.O_WRONLY, 0o600)
            os.dup2(output, 1)
            os.dup2(output, 2)
            begin(functools.partial(run_rank, plan, number, folder))
        ranks.append(Rank(pid, folder, number))
    try:
        struck, resumed = watch(plan, ranks)
        left = []
        for rank in ranks:
            rank_left = [pid for pid in session(rank.pid) if pid != rank.pid]
            if rank_left and rank.exit is not None:
                time.sleep(2)  # workers notice that their main process has exited, and exit
                rank_left = session(rank.pid)
                left += rank_left
    finally:
        for rank in ranks:
            for pid in {rank.pid, *session(rank.pid)}:
                with contextlib.suppress(ProcessLookupError):
                    if rank.exit is None or pid != rank.pid:
                        os.kill(pid, signal.SIGKILL)
            if rank.exit is None:
                os.waitpid(rank.pid, 0)
        if agent is not None:
            os.kill(agent, signal.SIGKILL)
            os.waitpid(agent, 0)
    outputs = {rank.rank: (folder / f"{rank.rank}.out").read_text(errors="replace") for rank in ranks}
    return judge(plan, ranks, struck, resumed, left, outputs)


def watch(plan: Plan, ranks: list[Rank]) -> tuple[float | None, float | None]:
    victim = ranks[plan.victim]
    due: float | None = None
    struck: float | None = None
    resumed: float | None = None
    begin = time.monotonic()
    while True:
        now = time.monotonic()
        for rank in ranks:
            rank.look()
        if struck is None and plan.signals:
            found = victim.find("moment", moment=plan.moment)
            if due is None and found is not None:
                due = found["at"] + plan.delay
            if due is not None and now >= due:
                victim.signal(signal.SIGKILL if plan.action == "kill" else signal.SIGSTOP)
                struck = time.monotonic()
        elif struck is None:
            found = victim.find("fault")
            struck = found["at"] if found is not None else None
        if struck is not None and resumed is None:
            if plan.action == "stop and go on soon" and now > struck + plan.timeout / 4:
                victim.signal(signal.SIGCONT)
                resumed = now
            # The suspended victim resumes after all other ranks have exited. Before Python 3.14, a rank that exits
            # while it uses torch may abort.
            others_exited = all(rank.exit is not None for rank in ranks if rank is not victim)
            late = struck + 2 * plan.timeout + (1 if others_exited else 12)
            if plan.action == "stop and go on late" and now > late:
                victim.signal(signal.SIGCONT)
                resumed = now
        awaited = [
            rank
            for rank in ranks
            if rank is not victim or plan.action == "raise" or plan.action.startswith("stop and go on")
        ]
        if all(rank.exit is not None for rank in awaited) and (struck is not None or victim.exit is not None):
            return struck, resumed
        if now > begin + 22 + 3 * plan.timeout:
            return struck, resumed
        time.sleep(0.003 if struck is None else 0.02)


def judge(
    plan: Plan, ranks: list[Rank], struck: float | None, resumed: float | None, left: list[int], outputs: dict[int, str]
) -> dict[str, Any]:
    """Every rank except the victim must end in time, with whole epochs or with an error that names the victim."""
    broken: list[str] = []
    shown: list[dict[str, Any]] = []
    resumes_soon = plan.action == "stop and go on soon"
    for rank in ranks:
        is_victim = rank.rank == plan.victim
        leaves = rank.find("leaves")
        if is_victim and plan.action in ("kill", "stop", "hang", "raise"):
            continue
        outcome = rank.find("outcome")
        if outcome is None:
            broken.append("the victim hangs after it continued" if is_victim else "hang")
            shown.append({"rank": rank.rank, "hang": True})
            continue
        since = outcome["at"] - (struck if struck is not None else outcome["at"])
        shown.append({"rank": rank.rank, "after": round(since, 2), "kind": outcome["kind"], "text": outcome["text"]})
        shown[-1]["shutdown"] = round(leaves["at"] - outcome["at"], 2) if leaves else None
        shown[-1]["exit"] = round(rank.exit[0] - outcome["at"], 2) if rank.exit else None
        whole = [ITEMS, ITEMS // 2 if plan.leaves else ITEMS, ITEMS]
        if outcome["counts"] != whole[: len(outcome["counts"])]:
            broken.append("an epoch ended as if complete")
        if outcome["kind"] == "complete":
            if len(outcome["counts"]) != EPOCHS:
                broken.append("not all epochs")
        elif resumes_soon:
            broken.append("an error although the rank continued in time")
        elif is_victim:
            if resumed is not None and outcome["at"] - resumed > plan.timeout + GRACE:
                broken.append("late error of the victim")
        else:
            if since > plan.timeout + plan.pause + GRACE:
                broken.append("late error")
            if plan.victim not in blamed(outcome["text"]):
                broken.append("not named")
            if outcome["kind"] not in ("RanksLostError", "PrefetchTimeoutError", "RuntimeError"):
                broken.append(f"a {outcome['kind']}")
        if rank.exit is None:
            broken.append("no exit")
        elif rank.exit[0] - max(outcome["at"], (resumed or 0) if is_victim else 0) > EXIT_GRACE:
            broken.append("late exit")
        if rank.exit is not None and rank.exit[1] not in (0, 4):
            broken.append(f"exit code {rank.exit[1]}")
        if "terminate called" in outputs[rank.rank]:
            broken.append("C++ gave up")
    if left:
        broken.append("processes left")
    return {"plan": asdict(plan), "struck": struck is not None, "shown": shown, "broken": broken, "outputs": outputs}


def blamed(text: str) -> set[int]:
    found = {0} if "the process of the store has exited or was stopped" in text and ": rank 0" in text else set()
    for ranks in re.findall(
        r"ranks? ([0-9, ]+) of \d+(?:, which all other ranks connect to,)? (?:sent no|did not|had|left)", text
    ):
        found |= {int(rank) for rank in ranks.split(",")}
    return found | {int(rank) for rank in re.findall(r"rank (\d+) (?:raised|shut)", text)}


def check(plan: Plan) -> int:
    folder = Path(tempfile.mkdtemp(prefix="rank-chaos-"))
    try:
        result = run_job(plan, folder)
    finally:
        if os.getpid() not in _ranks:
            shutil.rmtree(folder, ignore_errors=True)
    if plan.results is not None:
        with open(plan.results, "a") as file:
            file.write(json.dumps(result) + "\n")
    lines = [json.dumps(shown) for shown in result["shown"]]
    lines += [f"output of rank {rank}: {output[-3000:]}" for rank, output in result["outputs"].items() if output]
    assert not result["broken"], "\n".join([f"broke: {', '.join(result['broken'])}", *lines])
    return len(lines)


_ranks: set[int] = set()


def plan_of(seed: int, options: argparse.Namespace) -> Plan | None:
    if options.plans is None:
        plan = Plan.draw(seed)
    elif seed - options.seed < len(options.plans):
        plan = Plan(**options.plans[seed - options.seed])
    else:
        return None
    plan.results = options.results
    return plan


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plans", type=json.loads, help="jobs to run instead of random jobs, as JSON")
    parser.add_argument("--results", help="write a line of JSON for each job to this file")


@contextlib.contextmanager
def with_torch(_options: argparse.Namespace) -> Iterator[None]:
    import torch.distributed  # noqa: F401

    import torchdata.dataloader2
    import torchdata.datapipes.iter  # noqa: F401

    gc.freeze()  # Garbage collection at exit would make each rank copy all imported objects.
    yield


DRIVER = Driver(plan_of, check, "reports of ranks", around=with_torch, more=more)
