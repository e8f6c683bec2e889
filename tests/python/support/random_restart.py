"""Random loaders whose processes are killed while they run; what they give is held against a run that nobody disturbed.

    python -m random_restart --seconds 600 --seed 1          # in tests/python/support; runs seeds 1, 2, 3, …
    python -m random_restart --seed 17 --runs 1              # one of them again

A plan has a pipeline and a service as those of `random_resume`, and says after which items which processes are killed,
stopped for a moment, or kill themselves in the middle of an item; whether their fork server is killed, too; where a
state is taken, and whether an epoch is left early. All items are compared in their order, by worker where workers are
taken from as they come; so is what loaders give that go on from the states, in which processes are killed, too.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from functools import partial

import random_resume
from driving import drive, parser_of
from leftovers import children, is_gone
from process_checks import kill_fork_server
from random_resume import Differs, begin, difference, key
from torchdata._engine import snapshots
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterDataPipe

#: How a process dies.
SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGXCPU]


class Stumbles(IterDataPipe):
    """Kills its process in the middle of an item, so many times in all."""

    iteration_state = ()
    one_to_one = True

    def __init__(self, source, folder, at, times):
        self.source = source
        self.folder = folder
        self.at = at
        self.times = times

    def __iter__(self):
        for number, item in enumerate(self.source):
            if number == self.at:
                for time_of in range(self.times):
                    with contextlib.suppress(FileExistsError):
                        os.close(os.open(f"{self.folder}/{time_of}", os.O_CREAT | os.O_EXCL))
                        os.kill(os.getpid(), signal.SIGKILL)
            yield item


def tagged(worker, item):
    return worker, item


def tag(pipe, info):
    return pipe.map(partial(tagged, info.worker_id))


class Plan(random_resume.Plan):
    """What is done, drawn from a seed."""

    def __init__(self, seed: int, methods: tuple[str, ...] = ("fork",)) -> None:
        super().__init__(seed, methods)
        dice = random.Random(f"restart {seed}")
        self.kind = "workers"
        if self.shard == "dispatch" and "cycle" in self.behind:
            # How far the dispatching process runs in a pass that all leave is a matter of speed, and with it what
            # functions draw in the next pass.
            self.behind = [step for step in self.behind if step != "header"]
        self.items = dice.choice([1, 7, 40, 60, 120, 300])
        self.loader_seed = dice.choice([3, 5])
        self.in_order = dice.random() < 0.75
        if not self.in_order:
            self.main = []
        self.stumbles = dice.choice([None, None, (dice.randrange(40), 1)])
        self.at_the_end = dice.random() < 0.5
        self.deaths = [self._deaths(dice) for _ in range(4)]
        self.saves = sorted(dice.random() for _ in range(dice.choice([0, 1, 2])))
        self.leaves = dice.random() < 0.3 and not self.lasting
        self.kills_server = self.method == "forkserver" and dice.random() < 0.5
        self.cadence = dice.choice([(0.0, 0.0), (0.0, 0.0), (0.001, 1.0), (0.02, 100.0), (1000.0, 1.0)])

    def _deaths(self, dice):
        """After which share of an epoch who dies how: (share, who, signal).

        Each child once at most: with one that stumbles these are two at one item, and three are an error.
        """
        found, left, count = [], Counter(), self.workers + (self.shard == "dispatch")
        for _ in range(dice.choice([1, 1, 2, 3])):
            who = [dice.randrange(5) for _ in range(dice.choice([1, 1, 1, 2, 3]))]
            who = [one for one in dict.fromkeys(who) if left[one % count] < 1]
            left.update(one % count for one in who)
            found.append((dice.random(), who, dice.choice([*SIGNALS, signal.SIGSTOP])))
        return found

    def build(self, folder):
        """The pipeline; with a folder, one that stumbles."""
        if self.stumbles is None:
            return self.pipe()
        at, times = self.stumbles
        place = self.before if not self.at_the_end else self.behind
        step = "stumbles"
        place.append(step)
        try:
            self._stumbling = (folder, at, times if folder is not None else 0)
            return self.pipe()
        finally:
            place.remove(step)

    def _add(self, pipe, step):
        if step == "stumbles":
            return Stumbles(pipe, *self._stumbling)
        return super()._add(pipe, step)

    def loader(self, state=None, folder=None, restarts=True):
        service = MultiProcessingReadingService(
            self.workers,
            self.method,
            in_order=self.in_order,
            worker_init_fn=None if self.in_order else tag,
            on_worker_exit="restart" if restarts else "error",
            **self.options,
        )
        loader = DataLoader2(self.build(folder), reading_service=service)
        if state is not None:
            loader.load_state_dict(state, strict=False)  # the folder's name is part of its pipeline
        else:
            loader.seed(self.loader_seed)
        return loader

    def comparable(self, items):
        """Items in a form that does not depend on which worker was faster, where that is free."""
        if self.in_order:
            return items
        by_worker = {}
        for worker, item in items:
            by_worker.setdefault(worker, []).append(item)
        return by_worker


class Run:
    """A loader of a plan while it is read."""

    def __init__(self, plan, deaths, state=None):
        self.plan = plan
        self.deaths = deaths
        self.folder = tempfile.TemporaryDirectory()
        self.loader = plan.loader(state, self.folder.name)
        self.kills = 0
        self.seen = set()

    def epoch(self, size, deaths, saves=(), until=None):
        """Reads an epoch of so many items, up to one of them; returns what came, and the states with their places."""
        got, states = [], []
        events = [(int(share * (size + 1)), who, how) for share, who, how in deaths]
        places = {int(share * (size + 1)) for share in saves}
        iterator = iter(self.loader)
        while True:
            self.kill(events, len(got))
            if len(got) in places:
                places.discard(len(got))
                states.append((len(got), pickle.loads(pickle.dumps(self.loader.state_dict()))))
            if until is not None and len(got) >= until:
                return got, states
            try:
                got.append(key(next(iterator)))
            except StopIteration:
                return got, states

    def kill(self, events, place):
        for event in [event for event in events if event[0] == place]:
            events.remove(event)
            pids = self.loader.reading_service._children.pids
            self.seen.update(pids)
            if self.plan.kills_server and random.Random(place).random() < 0.5:
                kill_fork_server()
                self.kills += 1
            for who in event[1] if pids else ():  # none while a thread of main is about to have all of them replaced
                pid = pids[who % len(pids)]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, event[2])
                    self.kills += 1
                    if event[2] == signal.SIGSTOP:
                        time.sleep(0.01)
                        os.kill(pid, signal.SIGCONT)

    def close(self):
        self.seen.update(self.loader.reading_service._children.pids if self.loader.reading_service._children else ())
        self.loader.shutdown()
        self.folder.cleanup()


def check(plan) -> int:
    """Runs a plan; returns the number of processes that were killed."""
    snapshots.SECONDS, snapshots.FACTOR = plan.cadence
    before = set(children())
    begin()
    with plan.loader(restarts=False) as loader:
        whole = [[key(item) for item in loader] for _ in range(2)]
    begin()
    run, states, kills, seen = Run(plan, plan.deaths), [], 0, set()
    try:
        for epoch in range(2):
            until = len(whole[0]) // 2 or None if plan.leaves and epoch == 0 else None  # one that is asked for an item
            got, saved = run.epoch(len(whole[epoch]), plan.deaths[epoch], plan.saves, until)
            if until is not None and not plan.in_order:
                continue
            compare(plan, f"epoch {epoch}", got, whole[epoch][:until])
            states += [(epoch, got[:at], state) for at, state in saved]
    finally:
        kills += run.kills
        run.close()
        seen |= run.seen
    for epoch, given, state in states[:2]:
        begin(99)
        run = Run(plan, plan.deaths, state)
        try:
            left = len(whole[epoch]) - len(given)
            got, _ = run.epoch(left, plan.deaths[2])
            compare(plan, f"epoch {epoch} from item {len(given)} on", given + got, whole[epoch])
        finally:
            kills += run.kills
            run.close()
            seen |= run.seen
    left = set(children()) - before | {pid for pid in seen if not is_gone(pid)}
    if left:
        raise Differs(f"processes were left behind: {left}")
    return kills


def compare(plan, where, got, expected):
    if plan.comparable(got) != plan.comparable(expected):
        raise Differs(f"{where}: {difference(got, expected)}")


def main():
    options = parser_of(__doc__).parse_args()
    methods = tuple(options.start_methods.split(","))
    return drive(options, lambda seed: Plan(seed, methods), check, "kills")


if __name__ == "__main__":
    sys.exit(main())
