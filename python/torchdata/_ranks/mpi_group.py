"""A group of ranks on MPI, through mpi4py: for jobs that mpirun or Slurm started, with or without PyTorch.

Role: opened and used in the main process of every rank (by one thread at a time; mpi4py enables MPI's thread support by
default). Owns a separate communicator, so that its messages never mix with other messages.
"""

from __future__ import annotations

import time
from typing import Any

from torchdata._optional import optional_import
from torchdata._ranks.group import PrefetchTimeoutError, RanksLostError
from torchdata._ranks.waiting import LONG, GivenUp, UncopyableGroup, describe_ranks, wait_until

#: Message tags: a waiting rank sends the number of its operation, and a failed rank sends the reason.
_ARRIVAL, _LAST_WORDS = 1, 2

#: Maximum length of the reason in bytes, so that it can be sent to ranks that never receive it.
_MOST_WORDS = 500


class MpiGroup(UncopyableGroup):
    """All ranks of `MPI.COMM_WORLD`, through a duplicate of this communicator.

    Args:
        timeout: the time limit of an operation in seconds.
        whose: the name of the user of the group, for messages.

    Raises:
        ModuleNotFoundError: mpi4py is not installed.
        RuntimeError: MPI was initialized without support for threads.
    """

    def __init__(self, timeout: float, whose: str) -> None:
        optional_import("mpi4py", extra="mpi", needed_by=f"{whose} on MPI")
        from mpi4py import MPI

        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise RuntimeError(
                f"{whose} needs an MPI that threads may call at the same time (MPI_THREAD_MULTIPLE), because it talks "
                "to other ranks while your program does: leave mpi4py.rc.thread_level at its default, or start MPI "
                "with this level"
            )
        self._mpi: Any = MPI
        self._timeout, self._whose = timeout, whose
        self.rank, self.world_size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
        self._comm: Any
        self._comm, opened = MPI.COMM_WORLD.Idup()
        if not wait_until(opened.Test, timeout, lambda: None, lambda: False):
            raise PrefetchTimeoutError(
                timeout,
                f"{whose} on rank {self.rank}: another rank of {self.world_size} did not begin to iterate within "
                f"{timeout:g} s: it is busy or has exited; raise the timeout if such delays are normal",
            )
        self._operation = 0
        self._arrived: dict[int, int] = {}
        self._sent: list[Any] = []
        self._broken = False
        self._given_up = False

    @property
    def broken(self) -> bool:
        """Whether an operation has failed, after which the group cannot be used any more."""
        return self._broken

    def broadcast(self, value: int) -> int:
        """Returns the value of rank 0, on every rank."""
        import numpy

        cell = numpy.array([value], dtype=numpy.int64)
        return self._run(lambda comm: comm.Ibcast(cell, root=0), cell)

    def all_reduce_min(self, value: int) -> int:
        """Returns the smallest value of all ranks, on every rank."""
        import numpy

        mine, least = numpy.array([value], dtype=numpy.int64), numpy.zeros(1, dtype=numpy.int64)
        return self._run(lambda comm: comm.Iallreduce(mine, least, op=self._mpi.MIN), least)

    def _run(self, start: Any, cell: Any) -> int:
        comm = self._comm
        if comm is None or self._given_up:
            raise GivenUp("the group of ranks was closed")
        self._operation += 1
        if self._broken:
            raise RanksLostError(f"{self._whose}: the ranks are no longer connected; end the job and start it again")
        request = start(comm)
        try:
            if wait_until(request.Test, self._timeout, self._tell_arrival, self._is_given_up):
                self._missing()  # receives messages of other ranks, which would accumulate otherwise
                return int(cell[0])
            raise self._timed_out()
        except BaseException:
            self._broken = True
            raise

    def _timed_out(self) -> PrefetchTimeoutError:
        # Other waiting ranks report that they wait. A rank that arrives after the timeout is the late rank.
        before = missing = self._missing()
        until = time.monotonic() + 2 * LONG
        while missing and time.monotonic() < until:
            time.sleep(0.01)
            missing = self._missing()
        missing = missing or before
        who = f"{describe_ranks(missing)} of {self.world_size}" if missing else "another rank"
        fault = f"{who} did not come along within {self._timeout:g} s"
        self._tell_others(fault.encode()[:_MOST_WORDS], _LAST_WORDS)
        return PrefetchTimeoutError(
            self._timeout,
            f"{self._whose} on rank {self.rank}: {fault}: waiting for data, busy between two items, out of the "
            f"loop, or exited; raise the timeout if such delays are normal",
        )

    def _is_given_up(self) -> bool:
        """Returns whether this rank has given up.

        Raises:
            PrefetchTimeoutError: another rank has given up, so that the operation never ends.
        """
        status = self._mpi.Status()
        if self._comm.Iprobe(source=self._mpi.ANY_SOURCE, tag=_LAST_WORDS, status=status):
            words = bytearray(status.Get_count(self._mpi.BYTE))
            self._comm.Recv([words, self._mpi.BYTE], source=status.Get_source(), tag=_LAST_WORDS)
            self._tell_others(bytes(words), _LAST_WORDS)
            raise PrefetchTimeoutError(
                self._timeout,
                f"{self._whose} on rank {self.rank}: {describe_ranks([status.Get_source()])} of {self.world_size} gave "
                f"up before: {words.decode(errors='replace')}",
            )
        return self._given_up

    def _tell_arrival(self) -> None:
        import numpy

        self._tell_others(numpy.array([self._operation], dtype=numpy.int64), _ARRIVAL)

    def _tell_others(self, what: Any, tag: int) -> None:
        self._sent = [request for request in self._sent if not request.Test()]
        self._sent += [
            self._comm.Isend(what, dest=rank, tag=tag) for rank in range(self.world_size) if rank != self.rank
        ]

    def _missing(self) -> list[int]:
        """Returns the ranks that have not reported that they have reached this rank's operation."""
        import numpy

        status, at = self._mpi.Status(), numpy.zeros(1, dtype=numpy.int64)
        while self._comm.Iprobe(source=self._mpi.ANY_SOURCE, tag=_ARRIVAL, status=status):
            self._comm.Recv(at, source=status.Get_source(), tag=_ARRIVAL)
            self._arrived[status.Get_source()] = int(at[0])
        others = (rank for rank in range(self.world_size) if rank != self.rank)
        return [rank for rank in others if self._arrived.get(rank, 0) < self._operation]

    def show_life(self) -> None:
        """Does nothing, because the exit of a rank ends the job, and messages reveal a late rank."""

    def give_up(self) -> None:
        """Immediately ends the wait of another thread, if there is one."""
        self._given_up = True

    def close(self) -> None:
        """Releases the communicator, unless an operation on it never ended."""
        comm, self._comm = self._comm, None
        if comm is not None and not (self._broken or self._given_up) and not self._mpi.Is_finalized():
            comm.Free()
