"""Runs loaders for a long time, and compares their memory at the end with their memory near the beginning.

Two loaders take turns, one epoch each: a `DataLoader2` with a cache and a shuffle buffer, and a `StatefulDataLoader`.
A state of the running loader is taken every second, and a worker is killed and replaced every few seconds. The memory
is the PSS of the main process and its children, which counts each shared page once.
Run: `python benches/python/soak.py [--minutes 60] [--settle 5] [--pause 0.002]`.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy
from comparison import memory

#: The number of seconds between two states, two kills and two measurements.
STATE_S, KILL_S, MEASURE_S = 1.0, 7.0, 2.0
#: The maximum memory at the end of a run, as a multiple of the memory after the loaders have warmed up.
MOST = 1.02
#: The number of measurements in a median, which covers two minutes with many killed workers, because the memory
#: depends on the last killed worker.
SAMPLES = 60


def made(number: int) -> Any:
    return numpy.full(20_000, number, "f8")


class Numbers:
    def __len__(self) -> int:
        return 300

    def __getitem__(self, index: int) -> Any:
        return made(index)


def loaders() -> list[Any]:
    from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
    from torchdata.datapipes.iter import IterableWrapper
    from torchdata.stateful_dataloader import StatefulDataLoader

    pipe = IterableWrapper(range(300)).sharding_filter().map(made).in_memory_cache(size=1000).shuffle(buffer_size=50)
    service = MultiProcessingReadingService(2, on_worker_exit="restart")
    stateful = StatefulDataLoader(
        Numbers(), batch_size=4, num_workers=2, persistent_workers=True, on_worker_exit="restart"
    )
    return [DataLoader2(pipe, reading_service=service), stateful]


class Events:
    """The events that happen to a loader until the time `until`."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.began = self.stated = self.killed = self.measured = time.monotonic()
        self.rng = random.Random(0)
        self.states = self.kills = 0
        #: For each measurement: the seconds since the beginning, the bytes of all processes, and the bytes of the main
        #: process.
        self.samples: list[tuple[float, int, int]] = []

    def happen(self, loader: Any) -> None:
        """Saves a state, kills a worker or measures the memory, each at fixed intervals. Called after each item."""
        now = time.monotonic()
        if now - self.stated >= STATE_S:
            self.stated, self.states = now, self.states + 1
            loader.state_dict()
        if now - self.killed >= KILL_S and (workers := workers_of()):
            self.killed, self.kills = now, self.kills + 1
            os.kill(self.rng.choice(workers), signal.SIGKILL)

    def measure(self) -> None:
        now = time.monotonic()
        if now - self.measured >= MEASURE_S:
            self.measured = now
            every, own = (memory.proportional(pids)[0] for pids in (memory.family(os.getpid()), [os.getpid()]))
            self.samples.append((now - self.began, every, own))


def workers_of() -> list[int]:
    found = []
    for pid in memory.family(os.getpid()):
        try:
            with open(f"/proc/{pid}/comm") as file:
                if file.read().startswith("td_worker"):
                    found.append(pid)
        except OSError:  # the process has exited
            continue
    return found


def run(until: float, pause: float) -> tuple[Events, int]:
    events, epochs = Events(until), 0
    both = loaders()
    while time.monotonic() < until:
        loader = both[epochs % 2]
        items: Iterator[Any] = iter(loader)
        for item in items:
            del item
            events.happen(loader)
            time.sleep(pause)
        epochs += 1
        if epochs % 2 == 0:
            events.measure()
    for loader in both:
        getattr(loader, "shutdown", lambda: None)()
    return events, epochs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--settle", type=float, default=5.0, help="the minutes before the memory is first compared")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to sleep after each item")
    asked = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)  # each restart causes a RuntimeWarning
    events, epochs = run(time.monotonic() + 60 * asked.minutes, asked.pause)
    settled = [size for seconds, *size in events.samples if seconds >= 60 * asked.settle]
    if len(settled) < 2 * SAMPLES:
        print(f"only {len(settled)} measurements after {asked.settle:g} minutes: run it longer")
        return 2
    for seconds, size, own in events.samples[:: max(1, len(events.samples) // 20)]:
        print(f"  {seconds:6.0f} s {size / 1e6:7.1f} MB, main {own / 1e6:6.1f}")
    first, last = (statistics.median(size for size, _ in part) for part in (settled[:SAMPLES], settled[-SAMPLES:]))
    own_first, own_last = (
        statistics.median(own for _, own in part) for part in (settled[:SAMPLES], settled[-SAMPLES:])
    )
    print(
        f"{epochs} epochs, {events.states} states, {events.kills} killed workers: {first / 1e6:.1f} MB after "
        f"{asked.settle:g} minutes, {last / 1e6:.1f} MB at the end, ratio {last / first:.3f} "
        f"(main {own_first / 1e6:.1f} and {own_last / 1e6:.1f} MB): {'met' if last <= MOST * first else 'NOT MET'}"
    )
    return int(last > MOST * first)


if __name__ == "__main__":
    sys.exit(main())
