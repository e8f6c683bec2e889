"""Runs several ranks as threads of one process, for tests of loaders with a user-defined process group."""

import threading
from collections.abc import Callable
from typing import Any

TIMEOUT = 60.0


class _Meeting:
    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks, timeout=TIMEOUT)
        self.values = [0] * ranks

    def exchange(self, rank: int, value: int, result: Callable[[list[int]], int]) -> int:
        self.values[rank] = value
        self.barrier.wait()
        found = result(self.values)
        self.barrier.wait()
        return found


class ThreadGroup:
    def __init__(self, meetings: tuple[_Meeting, _Meeting], rank: int) -> None:
        self._seeds, self._steps = meetings
        self.rank, self.world_size = rank, self._seeds.barrier.parties

    def broadcast(self, value: int) -> int:
        return self._seeds.exchange(self.rank, value, lambda values: values[0])

    def all_reduce_min(self, value: int) -> int:
        return self._steps.exchange(self.rank, value, min)


def in_ranks(ranks: int, body: Callable[[ThreadGroup], Any]) -> list[Any]:
    meetings = _Meeting(ranks), _Meeting(ranks)
    found: list[Any] = [None] * ranks
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            found[rank] = body(ThreadGroup(meetings, rank))
        except BaseException as error:
            failures.append(error)
            for meeting in meetings:
                meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return found
