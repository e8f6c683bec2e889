"""Makes the workers of random programs exit or hang.

Each program runs three times: undisturbed, with exits of workers, and with exits of workers and a resume."""

import contextlib
import os
import random
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from comparing import Wrong, difference
from hanging import WAYS, Hanging
from random_stateful.programs import program_of

#: The maximum number of workers that exit at the same batch, because a third exit in a row is an error.
MOST = 2


SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGXCPU, signal.SIGSTOP)
#: A worker that takes `HANGS_AFTER` seconds for a batch is killed. Killing a slow worker must not change the results.
HANGS_AFTER = 0.8


class Exits:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._in_all = self._rng.random() < 0.5
        self._each = self._rng.choice([0.05, 0.2, 0.5])
        self._tally: dict[Any, int] = {}
        self.way = self._rng.choice([None, None, *WAYS])
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.at, self.times = self._rng.randrange(30), self._rng.choice([1, 1, MOST])
        self._stopped = False
        self.count = 0

    def may_come(self, loader: Any, epoch: int) -> None:
        iterator = loader._iterator
        if loader.num_workers == 0 or self._stopped or self.way is not None:
            return  # A further exit could be the third exit at the same batch.
        for worker in range(loader.num_workers):
            key, most = (worker, MOST) if self._in_all else ((worker, epoch), 1)
            if self._tally.get(key, 0) >= most or self._rng.random() >= self._each:
                continue
            self._tally[key] = self._tally.get(key, 0) + 1
            later = self._rng.choice([None, 0.0, 0.0003, 0.001, 0.003, 0.01])
            pool = iterator._pool
            if later is None:
                self._kill(pool, worker)
            else:
                threading.Thread(target=self._kill, args=(pool, worker, later), daemon=True).start()

    def _kill(self, pool: Any, worker: int, later: float = 0.0) -> None:
        time.sleep(later)
        with contextlib.suppress(ProcessLookupError, IndexError, TypeError, ValueError):
            process = pool.members.processes[worker]
            if not process.ended and not self._stopped:
                os.kill(process.pid, self._rng.choice(SIGNALS))
                self.count += 1

    def hanging(self) -> tuple[int, Hanging] | None:
        if self.way is None:
            return None
        self._folder = tempfile.TemporaryDirectory(prefix="random_stateful")
        return self.at, Hanging(self.way, self._folder.name, self.times)

    def close(self) -> None:
        if self._folder is not None:
            self.count += len(list(Path(self._folder.name).glob("hung*")))
            self._folder.cleanup()

    def stop(self) -> None:
        self._stopped = True


def unknowable(program: Any) -> str:
    """Returns the reason why replacing a program's workers may change its results, or "" if it may not."""
    if not program.workers:
        return "the program has no workers"
    if program.seeds == "none":
        return "each run has other random numbers"
    if program.dataset == "OwnNoise":
        return "the dataset draws from its own generator, but has no state"
    if program.dataset == "PlainEpochs" and program.persistent:
        return "the dataset counts its epochs, but has no state"
    if program.dataset in ("Counting", "Noisy", "NoisyCounting", "OwnNoiseKept") and not program.in_order:
        return "with in_order=False, the timing decides which worker reads a sample"
    return ""


def check(judge: Any, seed: int, method: str) -> None:
    program = program_of(seed)
    if unknowable(program):
        return
    found = judge.phase(program, "whole", method=method)
    killed = judge.phase(program, "whole", exits=seed, method=method)
    if different := difference(killed["epochs"], found["epochs"], program.in_order):
        raise Wrong(f"with exits of workers: {different}")
    verdict = judge.judge(seed, found, exits=seed + 1, method=method)
    if verdict.shown:
        raise Wrong(f"with exits of workers: {verdict.shown}")
