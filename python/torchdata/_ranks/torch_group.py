"""A group of ranks of a `torch.distributed` job, with its own connections.

Each rank has its own connection to rank 0 (`Meeting`). In each rank, a native thread reads from this connection, so
that all ranks notice the failure of a rank. `torchdata_core::ranks` describes the protocol.

Operations use neither torch's process groups nor the store, because both would wait for exited ranks until the job's
timeouts expire.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections import defaultdict
from hashlib import sha256
from typing import Any

from torchdata._native import Meeting
from torchdata._ranks.group import GivenUp, PrefetchTimeoutError, RanksLostError, UncopyableGroup, describe_ranks
from torchdata._ranks.opening import Opening

#: For each tuple of ranks, the number of groups that this process has opened. All ranks count the same numbers of
#: groups, because all ranks open their groups in the same order.
_numbers: defaultdict[tuple[int, ...], itertools.count[int]] = defaultdict(itertools.count)

#: A rank that passes `_LARGEST` to a minimum over all ranks does not affect the minimum.
_LARGEST = 2**63 - 1

_FAULTS = {
    "absent": "did not begin to iterate",
    "late": "did not reach this step",
    "lost": "sent no message and must have exited or been disconnected",
    "silent": "sent no message and must have exited or been disconnected",
    "parted": "had shut down the loader or exited",
    "left": "left its loop",
}
_CAUSES = {
    "absent": "it is busy, or has exited",
    "late": "it runs, but waits for data, is busy between two items, or has left the loop",
}

#: The open groups. A forked child inherits the file descriptors of the open groups, and must replace these descriptors.
_open_groups: weakref.WeakSet[TorchGroup] = weakref.WeakSet()


def require_available(owner: str) -> Any:
    """Raises RuntimeError if torch is not installed, or was built without `torch.distributed`."""
    try:
        import torch.distributed as dist
    except ImportError as error:
        raise RuntimeError(
            f"{owner} needs PyTorch, which is not installed: `pip install torch`; or pass your own `process_group`, "
            "or, on one machine, use MultiProcessingReadingService alone"
        ) from error
    if not dist.is_available():
        raise RuntimeError(
            f"Torch Distributed is required to be available for {owner}, but this build of PyTorch comes without it"
        )
    return dist


def require_initialized(owner: str) -> Any:
    """Raises RuntimeError if `torch.distributed` is not available, or if `init_process_group` was not called."""
    dist = require_available(owner)
    if not dist.is_initialized():
        raise RuntimeError(
            f"Torch Distributed is required to be initialized for {owner}: call "
            "torch.distributed.init_process_group() on every rank before iterating"
        )
    return dist


class TorchGroup(UncopyableGroup):
    """Ranks of a job, which connect through the job's store. The `members` are numbered as in the job and include this
    rank; None means all ranks.
    """

    def __init__(self, timeout: float, owner: str, members: tuple[int, ...] | None = None) -> None:
        dist = require_initialized(owner)
        self._timeout, self._owner = timeout, owner
        self._job_size = dist.get_world_size()
        all_ranks = tuple(range(self._job_size))
        self._members = members = all_ranks if members is None else members
        self.rank, self.world_size = members.index(dist.get_rank()), len(members)
        self._given_up = False
        self.broken = False
        number = next(_numbers[members])
        prefix, self._seeds = f"torchdata/{number}", None
        if members != all_ranks:
            prefix = f"torchdata/{sha256(repr(members).encode()).hexdigest()[:16]}/{number}"
            self._seeds = f"torchdata/seeds of {self.world_size}/{number}"
        self._agreements = 0
        opening = Opening(dist, prefix, members, timeout, owner)
        meeting, left = opening.meet()
        if not isinstance(meeting, Meeting):
            raise self._failure(*meeting)
        blame = meeting.open(left)
        if blame is not None:
            if self.rank == 0:
                opening.give_up(blame)
            raise self._failure(*blame)
        self._meeting: Meeting = meeting
        self._descriptors: list[int] = []
        _open_groups.add(self)

    def broadcast(self, value: int) -> int:
        return self._run(value if self.rank == 0 else _LARGEST)

    def agree(self, value: str) -> str:
        """Makes all groups of the same size use one value. Rank 0 of each group gets the value of the first group that
        calls this method. Every rank except rank 0 gets its own `value`.

        With tensor parallelism, ranks of different data-parallel groups must read the same data, so these groups need
        equal seeds.
        """
        number, self._agreements = self._agreements, self._agreements + 1
        if self._seeds is None or self.rank != 0:
            return value
        opening = Opening(require_initialized(self._owner), self._seeds, self._members, self._timeout, self._owner)
        return opening.agree(str(number), value)

    def all_reduce_min(self, value: int) -> int:
        return self._run(value)

    def _run(self, value: int) -> int:
        if self._given_up:
            raise GivenUp("the group of ranks was closed")
        try:
            least, blame = self._meeting.least(value, self._timeout)
        except BaseException:  # after Ctrl-C, for example, other ranks must not wait for this rank
            self.broken = True
            self._meeting.leave()
            raise
        if least is not None:
            return least
        self.broken = True
        if self._given_up:
            raise GivenUp("the group of ranks was closed")
        assert blame is not None
        raise self._failure(*blame)

    def _failure(self, what: str, ranks: list[int], by: int) -> Exception:
        members, size = self._members, self._job_size
        name = f"{self._owner} on rank {members[self.rank]}"
        if by != self.rank:
            name += f": rank {members[by]} of {size} has stopped waiting"
        elif ranks == [self.rank]:
            return RanksLostError(
                f"{name}: the ranks are no longer connected, because this rank interrupted a wait for the other "
                f"ranks; end the job and start it again"
            )
        fault = f"{describe_ranks(members[rank] for rank in ranks)} of {size} {_FAULTS[what]}"
        if what in ("absent", "late"):
            return PrefetchTimeoutError(
                self._timeout,
                f"{name}: {fault} within {self._timeout:g} s: {_CAUSES[what]}; raise the timeout if such delays are "
                "normal",
            )
        if what == "lost":
            fault += " (its connection broke)"
        elif what == "silent":
            fault += f" (timeout: {self._timeout:g} s)"
            if by == self.rank != 0:
                fault += ", or this rank is disconnected from it"
        return RanksLostError(f"{name}: {fault}")

    def show_life(self) -> None:
        self._meeting.serve()

    def give_up(self) -> None:
        self._given_up = True
        if not self.broken:
            self._meeting.leave()

    def close(self) -> None:
        """A forked child neither uses nor closes the connections."""
        self._given_up = True
        self._meeting.close()

    def _note_connections(self) -> None:
        """Records the file descriptors of the group's connections to other ranks. This method must be called before a
        fork, because file descriptors of ended connections may be reused later.
        """
        try:
            self._descriptors = self._meeting.descriptors()
        except RuntimeError:  # raised if the connection is closed, or is itself inherited
            self._descriptors = []

    def _forget(self) -> None:
        """Replaces inherited file descriptors in a forked child, because they would keep connections open."""
        null_device = os.open(os.devnull, os.O_RDWR)
        for descriptor in {*self._descriptors} - {null_device}:
            # The descriptor is replaced instead of closed, because an object in the child owns the descriptor and will
            # close it later.
            os.dup2(null_device, descriptor, inheritable=False)
        os.close(null_device)


def _note_connections() -> None:
    for group in list(_open_groups):
        group._note_connections()


def _forget_inherited() -> None:
    global _open_groups
    for group in list(_open_groups):
        group._forget()
    _open_groups = weakref.WeakSet()


os.register_at_fork(before=_note_connections, after_in_child=_forget_inherited)
