"""If a rank leaves its loop, shuts down or exits, the remaining ranks raise errors and release everything."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from one_rank import Alone
from ranks import gloo_job
from torchdata.dataloader2.error import RanksLostError
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.iter.threads.synchronizing import _HAS, _LEFT
from waiting import wait_for

pytest.importorskip("torch", reason="ranks on gloo need torch")


def test_the_item_of_an_open_vote_is_in_the_state_when_a_loop_is_abandoned(tmp_path: Path) -> None:
    body = """
    from torchdata.datapipes.state import load_state, save_state

    def build():
        return FullSync(IterableWrapper(range(12)).map(identity), timeout=20)

    def main(rank):
        outcomes = []
        for attempt in range(8):
            pipe = build()
            items = iter(pipe)
            seen = [next(items) for _ in range(5)]
            if rank == 0 or attempt % 2:  # one rank or both ranks leave
                time.sleep(0.002 * (attempt // 2))
                pipe.leave(for_good=False)
            time.sleep(0.05)
            restored = build()
            load_state(restored, save_state(pipe))
            outcomes.append(seen + list(restored))
        return outcomes
    """
    with gloo_job(tmp_path, body) as job:
        assert job.outcomes() == [[list(range(12))] * 8] * 2


def test_the_next_epoch_does_not_wait_for_a_rank_that_has_ended(tmp_path: Path) -> None:
    body = """
    def main(rank):
        with DataLoader2(Counting(20), reading_service=DistributedReadingService(1000)) as loader:
            for epoch in range(2):
                for item in loader:
                    pass
                if rank == 1:
                    raise KeyError("between epochs")
                time.sleep(1)
    """
    with gloo_job(tmp_path, body) as job:
        error, failed = job.outcomes()
    assert isinstance(failed, KeyError)
    assert isinstance(error, RanksLostError), error
    assert "rank 1 of 2 had shut down the loader or exited" in str(error)


def test_a_rank_that_arrives_later_learns_of_an_exception_in_another_rank_s_loop(tmp_path: Path) -> None:
    body = """
    from torchdata.datapipes.iter.threads import synchronizing

    def main(rank):
        synchronizing._SHUTDOWN_WAIT = 0.2  # rank 0 does not wait long for rank 1 when it shuts down
        pipe = IterableWrapper(range(40)).sharding_filter()
        with DataLoader2(pipe, reading_service=DistributedReadingService(30)) as loader:
            for number, item in enumerate(loader):
                if number == 3 and rank == 0:
                    time.sleep(0.3)
                    raise KeyError("in the training")
                if number == 3:
                    while not os.path.exists(os.path.join(os.environ["OUTCOMES"], "left")):
                        time.sleep(0.01)
    """
    with gloo_job(tmp_path, body) as job:
        assert isinstance(job.outcome(0)[0], KeyError)
        job.processes[0].wait(120)
        (tmp_path / "left").touch()
        error = job.outcome(1)[0]
        assert isinstance(error, RanksLostError), error
        assert "rank 0 of 2 has stopped waiting: rank 0 of 2 left its loop" in str(error)


def test_loaders_leave_no_threads_descriptors_or_groups(tmp_path: Path) -> None:
    body = """
    def main(rank):
        import threading
        from torch.distributed import distributed_c10d
        found = []
        for _ in range(4):
            pipe = IterableWrapper(range(16)).sharding_filter().map(identity)
            loader = DataLoader2(pipe, reading_service=DistributedReadingService(20))
            assert len(list(loader)) == len(list(loader)) == 8
            next(iter(loader))
            loader.shutdown()
            loader.shutdown()
            groups = len(distributed_c10d._world.pg_map)
            found.append((threading.active_count(), len(os.listdir("/proc/self/fd")), groups))
        return found
    """
    with gloo_job(tmp_path, body) as job:
        for found in job.outcomes():
            assert {(threads, groups) for threads, _, groups in found} == {(1, 1)}
            assert found[-1][1] - found[1][1] < 2, found


def test_a_thread_that_returns_late_sends_nothing_in_the_group_of_the_whole_job(tmp_path: Path) -> None:
    body = """
    import threading
    from torchdata.datapipes.iter.threads import synchronizing

    synchronizing._SHUTDOWN_WAIT = 0.2
    waits, release = threading.Event(), threading.Event()

    def blocks(item):
        if item == 2:  # the second item of rank 0, which reads it ahead
            waits.set()
            release.wait(120)
        return item

    def main(rank):
        import torch, torch.distributed as dist
        loader = DataLoader2(
            IterableWrapper(range(20)).sharding_filter().map(blocks), reading_service=DistributedReadingService(20)
        )
        items = iter(loader)
        next(items)
        assert rank == 1 or waits.wait(120)
        threads = [thread for thread in threading.enumerate() if thread.name == "torchdata-prefetch"]
        loader.shutdown()
        release.set()
        for thread in threads:
            thread.join(120)
        total = torch.tensor(10)
        dist.all_reduce(total)
        return len(threads), int(total)
    """
    with gloo_job(tmp_path, body) as job:
        assert job.outcomes() == [(1, 20)] * 2


def test_a_process_that_exits_in_the_middle_of_an_epoch_prints_nothing(tmp_path: Path) -> None:
    body = """
    def main(rank):
        os._exit = lambda code: None  # the interpreter exits normally
        loader = DataLoader2(
            IterableWrapper(range(20_000)).sharding_filter(), reading_service=DistributedReadingService(20)
        )
        globals().update(kept=loader, items=iter(loader))
        return next(items)
    """
    with gloo_job(tmp_path, body) as job:
        assert job.outcomes() == [0, 1]
        for process in job.processes:
            assert process.communicate(timeout=250)[0] == ""
            assert process.returncode == 0


def test_a_forked_child_may_shut_down_the_pipe_that_it_inherited(tmp_path: Path) -> None:
    body = """
    def main(rank):
        import multiprocessing
        pipe = FullSync(IterableWrapper(range(40)).sharding_filter(), timeout=20)
        items = iter(pipe)
        next(items)
        child = multiprocessing.get_context("fork").Process(target=pipe.shutdown)
        child.start()
        child.join(120)
        ended = child.exitcode
        child.kill()
        return ended, len(list(items))
    """
    with gloo_job(tmp_path, body) as job:
        assert job.outcomes() == [(0, 39)] * 2


PROGRAM_OF = """
class Reported(Exception):
    pass

def main(rank):
    service = DistributedReadingService(1000)  # no rank may wait 1000 s
    loader = {loader}
    seen = 0
    for item in loader:
        seen += 1
        if rank == 1 and seen == 4:
            {action}
    return seen

if __name__ == "__main__" and os.environ["RANK"] == "1":
    try:
        main(join_gloo())
    except Reported as error:
        print("reported:", error)
    sys.exit(0)
"""
SHARED = "DataLoader2(IterableWrapper(range(100)).sharding_filter(), reading_service={service})"
WORKERS = "SequentialReadingService(service, MultiProcessingReadingService(1))"


@pytest.mark.parametrize(
    ("loader", "action"),
    [
        (SHARED.format(service=WORKERS), "raise KeyError('in the training')"),
        (SHARED.format(service="service"), "raise Reported"),
        (SHARED.format(service="service"), "sys.exit(3)"),
        (SHARED.format(service="service"), "loader.shutdown(); break"),
        ("DataLoader2(IterableWrapper(range(50)).fullsync(1000))", "raise KeyError('in the training')"),
        ("IterableWrapper(range(50)).fullsync(1000).map(identity)", "break"),
    ],
    ids=["exception, workers", "reported", "exit", "shutdown", "exception, no service", "end after a break, no loader"],
)
def test_if_a_rank_exits_in_its_last_epoch_the_other_ranks_fail_with_its_name(
    loader: str, action: str, tmp_path: Path
) -> None:
    with gloo_job(tmp_path, PROGRAM_OF.format(loader=loader, action=action)) as job:
        error = job.outcome(0)[0]
        job.processes[1].wait(120)
    assert isinstance(error, RuntimeError), error
    assert "rank 1 shut its loader down or exited in the middle of the epoch" in str(error)


def test_if_a_pipe_after_fullsync_raises_the_other_ranks_fail_with_the_name_of_its_rank(tmp_path: Path) -> None:
    body = """
    def fail_on(rank):
        def check(item):
            if rank == 1 and item == 5:
                raise ValueError("a bad item")
            return item
        return check

    def main(rank):
        loader = DataLoader2(IterableWrapper(range(50)).fullsync(20).map(fail_on(rank)))
        outcomes = []
        for epoch in range(2):  # the ranks can read further epochs in step
            try:
                outcomes.append(len(list(loader)))
            except Exception as error:
                outcomes.append(error)
        return outcomes
    """
    with gloo_job(tmp_path, body) as job:
        outcomes = job.outcomes()
    for other, own in zip(*outcomes, strict=True):
        assert isinstance(own, ValueError), own
        assert isinstance(other, RuntimeError), other
        assert "rank 1" in str(other)


class Records(Alone):
    def __init__(self) -> None:
        super().__init__(2, 1)
        self.votes: list[int] = []

    def all_reduce_min(self, value: int) -> int:
        self.votes.append(value)
        return value


def _left_loop(group: Records) -> Any:
    pipe = IterableWrapper(range(50)).fullsync(20, process_group=group)
    for _, item in zip(range(2), pipe, strict=False):
        assert item < 2
    return pipe


def _last_vote(group: Records) -> int:
    wait_for(lambda: group.votes[-1] != _HAS)
    return group.votes[-1]


def test_an_abandoned_loop_counts_if_items_of_a_later_loop_are_read() -> None:
    group = Records()
    pipe = _left_loop(group)
    time.sleep(0.2)
    assert set(group.votes) == {_HAS}, "the rank sends no vote until its next loop begins"
    again = iter(pipe)
    assert next(again) == 0
    assert group.votes.count(_LEFT) == 1, "the other ranks end their loops, too"
    del pipe
    assert next(again) == 1, "the iterator keeps its pipe alive"
    assert group.votes.count(_LEFT) == 1
    del again
    assert _last_vote(group) == -2


def test_a_closed_iterator_yields_no_item() -> None:
    group = Records()
    items = iter(IterableWrapper(range(50)).fullsync(20, process_group=group))
    assert next(items) == 0
    items.close()
    assert list(items) == []
    assert set(group.votes) == {_HAS}


@pytest.mark.parametrize(
    ("leave", "vote"),
    [
        (lambda pipe: pipe.reset(), _LEFT),
        (lambda pipe: pipe.leave(for_good=False), _LEFT),
        (lambda pipe: pipe.leave(for_good=True), -2),
        (lambda pipe: pipe.shutdown(), -2),
    ],
    ids=["reset", "leave", "leave for good", "shutdown"],
)
def test_a_rank_informs_the_other_ranks_how_its_loop_ended(leave: Callable[[Any], None], vote: int) -> None:
    group = Records()
    pipe = _left_loop(group)
    leave(pipe)
    pipe.shutdown()  # A pipe sends no vote after its shutdown.
    assert _last_vote(group) == vote


@pytest.mark.parametrize("error", [None, ValueError("the worker is gone")], ids=["end", "error"])
def test_a_source_that_ends_because_its_rank_exits_does_not_end_the_data(error: Exception | None) -> None:
    group, is_asked, comes = Records(), threading.Event(), threading.Event()

    def ends() -> Iterator[int]:
        yield from range(2)
        is_asked.set()
        comes.wait(120)
        if error is not None:
            raise error

    pipe = IterableWrapper(ends(), deepcopy=False).fullsync(20, process_group=group)
    items = iter(pipe)
    assert [next(items), next(items)] == [0, 1]
    assert is_asked.wait(120), "the pipe's thread requests the third item"
    pipe.leave(for_good=True)
    comes.set()
    assert _last_vote(group) == -2


def test_ranks_that_exit_after_different_numbers_of_items_do_not_disturb_each_other(tmp_path: Path) -> None:
    body = """
    def main(rank):
        pipe = IterableWrapper(range(100)).sharding_filter()
        loader = DataLoader2(pipe, reading_service=DistributedReadingService(20))
        items = iter(loader)
        taken = []
        for step in range(5):
            taken.append(next(items))
            time.sleep(0.1 * rank)
        loader.shutdown()
        return taken
    """
    with gloo_job(tmp_path, body) as job:
        assert job.outcomes() == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
