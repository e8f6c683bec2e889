"""A group of ranks on `torch.distributed`: gloo for the values, the job's store for signs of life.

Role: opened and used in the main process of every rank (by one thread at a time). Owns a process group of its own, so
that its messages never mix with those of the training, and a thread that leaves signs of life in the store while the
group is in use: when an operation fails, they tell which rank is gone and which is only late.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

from torchdata._ranks import PrefetchTimeoutError, RanksLostError
from torchdata._ranks.waiting import GivenUp, UncopyableGroup, describe_ranks, wait_until

__all__ = ["TorchGroup", "require_available", "require_initialized"]

#: Seconds between two signs of life, and how long a rank is watched before it is taken for dead.
_BEAT, _WATCH = 0.25, 1.0

#: Seconds between two looks for ranks that have not begun: so many ranks look that the store must not be asked often.
_LONGEST_NAP = 0.05

#: Seconds that the store may take to answer.
_STORE_PATIENCE = 1.7

#: Seconds that gloo's own time-out is longer than ours, which is to come first.
_MARGIN = 60.0

#: Numbers the groups of this process; every rank opens them in the same order.
_numbers = itertools.count()


def require_available(whose: str) -> Any:
    """The module `torch.distributed`.

    Raises:
        RuntimeError: torch is missing or was built without it.
    """
    try:
        import torch.distributed as dist
    except ImportError as error:
        raise RuntimeError(
            f"{whose} needs PyTorch, which is not installed: `pip install torch`; in a job that mpirun started use "
            'DistributedReadingService(backend="mpi"), and on one machine MultiProcessingReadingService alone'
        ) from error
    if not dist.is_available():
        raise RuntimeError(
            f"Torch Distributed is required to be available for {whose}, but this build of PyTorch comes without it"
        )
    return dist


def require_initialized(whose: str) -> Any:
    """The module `torch.distributed`, with its default process group.

    Raises:
        RuntimeError: there is none (see `require_available`), or `init_process_group` was not called.
    """
    dist = require_available(whose)
    if not dist.is_initialized():
        raise RuntimeError(
            f"Torch Distributed is required to be initialized for {whose}: call "
            "torch.distributed.init_process_group() on every rank before iterating"
        )
    return dist


class _Others(NamedTuple):
    """What other ranks are up to where an operation failed."""

    #: Those without a sign of life.
    gone: list[int]
    #: Those that live but have not come to this rank's operation.
    late: list[int]
    #: Those that ended in good order without having come to it.
    left: list[int]
    #: Those that gave up, with what they said of it.
    said: dict[int, str]


class _SignsOfLife:
    """What the ranks leave in the store: a count that grows while they live, the operation that they are at, and why
    they gave up.
    """

    def __init__(self, dist: Any, number: int) -> None:
        from torch.distributed import distributed_c10d

        store = distributed_c10d._get_default_store()
        store = store.clone() if hasattr(store, "clone") else store  # no waiting for others who use the store
        self._store: Any = dist.PrefixStore(f"torchdata/{number}", store)
        self._rank, self._ranks = dist.get_rank(), range(dist.get_world_size())
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._ended = False
        #: The number of the operation that this rank is at or was at last.
        self.operation = 0
        #: Why this rank gave up, for the others.
        self.last_words = ""

    def absent_after(self, seconds: float) -> list[int]:
        """Waits until all ranks have come so far; the ranks that have not done so after some seconds."""
        self._store.set(f"opened/{self._rank}", "")
        if self._store.add("opened", 1) >= len(self._ranks):
            self._store.set("all opened", "")
        until, nap = time.monotonic() + seconds, 0.001
        while not self._store.check(["all opened"]):
            if time.monotonic() > until:
                return [rank for rank in self._ranks if not self._store.check([f"opened/{rank}"])]
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)
        return []

    def leave(self) -> None:
        """Leaves a sign now, and goes on leaving them. Does not wait for the store, which may be out of reach."""
        self._wake.set()
        if self._thread is None and not self._ended:
            self._thread = threading.Thread(
                target=self._leave_many, name="torchdata-signs-of-life", daemon=True
            )
            self._thread.start()

    def _leave_many(self) -> None:
        try:
            told = False
            for beat in itertools.count():
                last = self._ended
                if self.last_words and not told:  # before the sign that lets others look for them
                    self._store.set(f"words/{self._rank}", self.last_words)
                    told = True
                self._store.set(str(self._rank), f"{beat} {self.operation} {int(last)}")
                if last:
                    return
                self._wake.wait(_BEAT)
                self._wake.clear()
        except Exception:  # the store is gone: the others will see no more signs, and need none
            return

    def _read(self) -> dict[int, tuple[int, int, int]]:
        """Of each rank that has left a sign: how many, at which operation, and whether it was the last one."""
        found = [rank for rank in self._ranks if self._store.check([str(rank)])]
        return {rank: tuple(map(int, self._store.get(str(rank)).split())) for rank in found}  # type: ignore[misc]

    def look_around(self, timed_out: bool) -> _Others | None:
        """What the other ranks are up to, after a watch; None where the store does not answer.

        Args:
            timed_out: whether this rank has waited as long as it would.
        """
        answers: list[_Others] = []

        def look() -> None:
            before, until = self._read(), time.monotonic() + _WATCH
            silent = [rank for rank in self._ranks if rank != self._rank]
            now = before
            while silent and time.monotonic() < until:
                time.sleep(_BEAT / 4)
                now = self._read()
                silent = [
                    rank for rank in silent if now.get(rank) == before.get(rank) and not _parted(now, rank)
                ]
            late = [rank for rank in self._ranks if rank not in silent and now[rank][1] < self.operation]
            # One that came in the meantime, too late, is the one who did not come.
            if timed_out and not late:
                late = [rank for rank in self._ranks if before.get(rank, (0, 0, 0))[1] < self.operation]
            said = {
                rank: self._store.get(f"words/{rank}").decode()
                for rank in self._ranks
                if rank != self._rank and self._store.check([f"words/{rank}"])
            }
            late = [rank for rank in late if rank != self._rank and rank not in said]
            left = [rank for rank in late if _parted(now, rank)]
            late = [rank for rank in late if rank not in left]
            answers.append(_Others([rank for rank in silent if rank not in said], late, left, said))

        def look_quietly() -> None:
            try:
                look()
            except Exception:
                return  # what is None to the caller

        thread = threading.Thread(target=look_quietly, daemon=True)
        thread.start()
        thread.join(_STORE_PATIENCE)
        return answers[0] if answers else None

    def end(self, patience: float = _BEAT) -> None:
        """Leaves a last sign, which tells others that look for this rank that it has not died.

        Args:
            patience: seconds to wait for it to be left; 0 where the interpreter may be going away.
        """
        self._ended = True
        self._wake.set()
        if patience > 0 and self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(patience)
            self._store = None  # and its connection


def _parted(signs: dict[int, tuple[int, int, int]], rank: int) -> bool:
    return rank in signs and bool(signs[rank][2])


class TorchGroup(UncopyableGroup):
    """All ranks of the job, through a gloo group of their own.

    Args:
        timeout: seconds after which an operation fails.
        whose: who uses the group, for messages.

    Raises:
        RuntimeError: `torch.distributed` cannot be used (see `require_initialized`).
    """

    def __init__(self, timeout: float, whose: str) -> None:
        dist = require_initialized(whose)
        self._dist, self._timeout, self._whose = dist, timeout, whose
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._signs = _SignsOfLife(dist, next(_numbers))
        absent = self._signs.absent_after(timeout)
        if absent:
            raise PrefetchTimeoutError(
                timeout,
                f"{whose} on rank {self.rank}: {describe_ranks(absent)} of {self.world_size} did not begin to iterate "
                f"within {timeout:g} s: busy, or dead; raise the timeout if that is how it should be",
            )
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout + _MARGIN))
        self._broken = False
        self._given_up = False
        self._shows_life = False
        self._process = os.getpid()

    @property
    def broken(self) -> bool:
        """Whether an operation has failed, after which the group cannot be used any more."""
        return self._broken

    def broadcast(self, value: int) -> int:
        """The value of rank 0, on every rank."""
        return self._run(
            value, lambda tensor, group: self._dist.broadcast(tensor, src=0, group=group, async_op=True)
        )

    def all_reduce_min(self, value: int) -> int:
        """The least value of all ranks, on every rank."""
        least = self._dist.ReduceOp.MIN
        return self._run(
            value, lambda tensor, group: self._dist.all_reduce(tensor, op=least, group=group, async_op=True)
        )

    def _run(self, value: int, start: Any) -> int:
        import torch

        group = self._group
        if (
            group is None or self._given_up
        ):  # None is the whole job's group to torch, with other messages under way
            raise GivenUp("the group of ranks was closed")
        self._signs.operation += 1
        self.show_life()
        if self._broken:
            raise RanksLostError(f"{self._whose}: ranks have lost each other; end the job and start it anew")
        tensor = torch.tensor(value, dtype=torch.int64, device="cpu")
        try:
            work = start(tensor, group)
            if not wait_until(work.is_completed, self._timeout, self._signs.leave, lambda: self._given_up):
                raise self._failure(None)
            work.wait()
        except (TimeoutError, ConnectionError):
            raise
        except RuntimeError as error:  # gloo lost a connection
            raise self._failure(error) from error
        except BaseException:
            self._broken = True
            raise
        return int(tensor.item())

    def _failure(self, error: Exception | None) -> Exception:
        """What went wrong, with the names of the ranks at fault, which is also left for the other ranks."""
        self._broken = True
        try:
            self._signs.leave()
            others = self._signs.look_around(timed_out=error is None)
        except Exception:
            others = None
        why = f"no answer within {self._timeout:g} s" if error is None else f"a connection broke: {error}"
        me = f"{self._whose} on rank {self.rank}"
        if others is None:
            return RanksLostError(
                f"{me}: {why}; the store of the job does not answer either: the process that holds it is gone (rank 0, "
                "or torchrun's agent), or this rank is cut off from it"
            )
        late = False
        if others.gone:
            fault = (
                f"{describe_ranks(others.gone)} of {self.world_size} gave no sign of life and must have died or been "
                "cut off"
            )
        elif others.late:
            late = True
            fault = f"{describe_ranks(others.late)} of {self.world_size} did not come along"
        elif others.said:
            rank, fault = min(others.said.items())
            me += f": {describe_ranks([rank])} of {self.world_size} gave up before"
        elif others.left:
            fault = f"{describe_ranks(others.left)} of {self.world_size} had shut down the loader or come to an end"
        else:
            return RanksLostError(
                f"{me}: {why}, though all ranks live and have come along; the network between them, or the process "
                "group, is broken"
            )
        self._signs.last_words = fault
        self._signs.leave()
        if late:
            return PrefetchTimeoutError(
                self._timeout,
                f"{me}: {fault} ({why}): not dead, but waiting for data, busy between two items, or out of the loop; "
                "raise the timeout if that is how it should be",
            )
        return RanksLostError(f"{me}: {fault} ({why})")

    def show_life(self) -> None:
        """Begins to leave signs of life, by which others tell that this rank is only late."""
        if not self._shows_life:
            self._shows_life = True
            self._signs.leave()

    def give_up(self) -> None:
        """Ends the wait of another thread, if there is one, at once."""
        self._given_up = True
        if not self._broken:
            self._signs.last_words = f"{describe_ranks([self.rank])} of {self.world_size} left its loop"

    def __del__(self) -> None:
        if hasattr(self, "_signs"):
            self._signs.end(patience=0)

    def close(self) -> None:
        """Destroys the process group; a forked child leaves it alone, which is its parent's."""
        if self._process != os.getpid():
            return
        self._signs.end()
        group, self._group = self._group, None
        if group is not None and not self._broken and self._dist.is_initialized():
            with suppress(ValueError):  # the program has destroyed all groups, this one with them
                self._dist.destroy_process_group(group)
