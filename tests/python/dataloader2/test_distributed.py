"""Several real ranks on loopback each read their own items in order, and end their epochs at the same step."""

from __future__ import annotations

import copy
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest

from one_rank import Alone
from rank_threads import ThreadGroup, in_ranks
from ranks import gloo_job
from refusals import refuses
from resuming import epochs_of
from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from torchdata.dataloader2.random import dist_share_seed
from torchdata.datapipes.iter import FullSync, IterableWrapper
from torchdata.datapipes.state import load_state, save_state

pytest.importorskip("torch", reason="ranks on gloo need torch")


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_divide_the_items_evenly_and_a_seed_decides_the_order(ranks: int, tmp_path: Path) -> None:
    body = """
    def main(rank):
        pipe = IterableWrapper(range(23)).shuffle().sharding_filter().map(identity)
        with DataLoader2(pipe, reading_service=DistributedReadingService(20)) as loader:
            runs = []
            for seed in (5, 5, 6):
                loader.seed(seed)
                runs.append(list(loader))
            return runs + [list(loader), list(loader)]
    """
    with gloo_job(tmp_path, body, ranks) as job:
        outcomes = job.outcomes()
    for number in range(5):
        shares = [runs[number] for runs in outcomes]
        assert {len(share) for share in shares} == {23 // ranks}, "all end after the same number of items"
        together = [item for share in shares for item in share]
        assert len(set(together)) == len(together), "ranks are disjoint"
        assert set(together) <= set(range(23))
    for runs in outcomes:
        assert runs[0] == runs[1], "the same seed gives the same order"
        assert len({tuple(run) for run in runs[1:]}) == 4, "other seeds, and epochs without one, give others"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_ranks_with_workers_shard_by_rank_and_then_by_worker(method: str, tmp_path: Path) -> None:
    body = f"""
    def main(rank):
        pipe = IterableWrapper(range(18)).sharding_filter().map(identity)
        service = SequentialReadingService(DistributedReadingService(20), MultiProcessingReadingService(2, "{method}"))
        with DataLoader2(pipe, reading_service=service) as loader:
            return [list(loader), list(loader)]
    """
    with gloo_job(tmp_path, body) as job:
        outcomes = job.outcomes()
    # Rank 0 runs workers 0 and 1 of the four workers, and rank 1 runs workers 2 and 3. Each rank takes items from its
    # workers in turn.
    assert outcomes[0] == [[0, 1, 4, 5, 8, 9, 12, 13]] * 2
    assert outcomes[1] == [[2, 3, 6, 7, 10, 11, 14, 15]] * 2


@pytest.mark.parametrize("shortest", [0, 5])
def test_uneven_ranks_end_together_epoch_after_epoch(shortest: int, tmp_path: Path) -> None:
    body = f"""
    def main(rank):
        pipe = FullSync(Counting({shortest} + 3 * rank), timeout=20)
        return [list(pipe) for _ in range(3)]
    """
    with gloo_job(tmp_path, body, 3) as job:
        assert job.outcomes() == [[list(range(shortest))] * 3] * 3


def test_when_all_ranks_leave_their_loops_the_next_epoch_begins_at_once(tmp_path: Path) -> None:
    body = """
    def main(rank):
        pipe = IterableWrapper(range(100)).sharding_filter()
        with DataLoader2(pipe, reading_service=DistributedReadingService(1000)) as loader:  # no rank may wait 1000 s
            for _ in range(4):
                for number, item in enumerate(loader):
                    if number == 2:
                        break
            return len(list(loader))
    """
    with gloo_job(tmp_path, body) as job:
        assert job.outcomes() == [50, 50]


def test_a_rank_that_leaves_its_loop_ends_the_loops_of_all(tmp_path: Path) -> None:
    body = """
    def main(rank):
        pipe = IterableWrapper(range(100)).sharding_filter()
        with DataLoader2(pipe, reading_service=DistributedReadingService(20)) as loader:
            seen = []
            for item in loader:
                seen.append(item)
                if rank == 1 and len(seen) == 3:
                    break
            return len(seen), len(list(loader))
    """
    with gloo_job(tmp_path, body) as job:
        (first, whole), (other, also_whole) = job.outcomes()
    assert other == 3
    assert 3 <= first <= 6, "what was read ahead still came"
    assert whole == also_whole == 50


def test_ranks_that_a_user_brings_are_used_as_they_are() -> None:
    def run(group: ThreadGroup) -> list[list[int]]:
        service = DistributedReadingService(20, process_group=group)
        return epochs_of(DataLoader2(IterableWrapper(range(9)).shuffle().sharding_filter(), reading_service=service))

    for first, second in zip(*in_ranks(2, run), strict=True):
        assert len(first) == len(second) == 4
        assert not set(first) & set(second)


@pytest.mark.parametrize("late", [False, True])
def test_items_that_a_rank_had_read_ahead_are_in_its_state_and_are_voted_on_again(late: bool, tmp_path: Path) -> None:
    """A rank has read an item ahead, and has voted for this item. If another rank votes late, the first rank's state
    must include the item."""
    body = f"""
    late = {late}
    from torchdata.datapipes.state import is_restorable, load_state, save_state

    def build(check):
        return FullSync(IterableWrapper(range(10)).map(check), timeout=40)

    def main(rank):
        saved = os.path.join(os.environ["OUTCOMES"], "saved")
        def check(item):
            while late and rank == 1 and item == 3 and not os.path.exists(saved):
                time.sleep(0.01)
            return item
        pipe = build(check)
        items = iter(pipe)
        head = [next(items) for _ in range(3)]
        assert is_restorable(pipe)
        if rank == 0:  # rank 0 votes on the fourth item before rank 1 reads it
            while late and pipe._data.voted_on != 3:
                time.sleep(0.01)
            state = save_state(pipe)
            open(saved, "w").close()
        else:
            state = save_state(pipe)
        rest = list(items)
        other = build(identity)
        load_state(other, state, strict=False)
        return head, rest, list(other), list(other)
    """
    with gloo_job(tmp_path, body) as job:
        for head, rest, restored, anew in job.outcomes():
            assert head + rest == list(range(10)) == anew
            assert restored == rest


def test_ranks_that_pause_and_meet_between_two_pauses_do_not_wait_for_each_others_votes(tmp_path: Path) -> None:
    body = """
    def main(rank):
        import torch.distributed as dist
        pipe = IterableWrapper(range(400)).sharding_filter().map(identity)
        service = SequentialReadingService(DistributedReadingService(40), MultiProcessingReadingService(1))
        with DataLoader2(pipe, reading_service=service) as loader:
            items = iter(loader)
            items.limit(3)
            parts = [list(items)]
            while parts[-1]:
                dist.barrier()  # waits until all ranks are paused
                items.resume()
                parts.append(list(items))
            return [len(part) for part in parts], sum(parts, [])
    """
    with gloo_job(tmp_path, body) as job:
        for rank, (lengths, items) in enumerate(job.outcomes()):
            assert lengths == [3] * 66 + [2, 0]
            assert items == list(range(rank, 400, 2))


class Agrees(Alone):
    """Simulates a process group of two ranks. The second rank never reaches the end of its data."""

    world_size = 2


class NeverAnswers(Agrees):
    def __init__(self) -> None:
        self.answer = threading.Event()

    def all_reduce_min(self, value: int) -> int:
        self.answer.wait(120)
        return 0


def test_an_error_names_a_later_pipe_that_cannot_be_paused_and_the_remedy() -> None:
    group = NeverAnswers()
    pipe = IterableWrapper(range(4)).fullsync(process_group=group).prefetch(1)
    pipe.patience = 0.2
    items = iter(pipe)
    with pytest.raises(TimeoutError, match=r"FullSync below it waits for other ranks.*put Prefetcher before FullSync"):
        pipe.pause()
    group.answer.set()
    assert list(items) == []


def test_one_rank_alone_needs_no_others(tmp_path: Path) -> None:
    body = """
    def main(rank):
        pipe = IterableWrapper(range(5)).sharding_filter()
        with DataLoader2(pipe, reading_service=DistributedReadingService(20)) as loader:
            return [list(loader), list(loader)]
    """
    with gloo_job(tmp_path, body, 1) as job:
        assert job.outcomes() == [[[0, 1, 2, 3, 4]] * 2]


def test_a_seed_is_shared_in_the_whole_job_and_in_a_group_of_it(tmp_path: Path) -> None:
    body = """
    def main(rank):
        from torchdata.dataloader2.random import dist_share_seed
        import torch.distributed as dist
        pair = dist.new_group([1, 2])
        shared = [dist_share_seed(2**64 - 1 - rank)]
        if rank > 0:
            shared.append(dist_share_seed(100 + rank, pair))
        return shared
    """
    with gloo_job(tmp_path, body, 3) as job:
        assert job.outcomes() == [[2**64 - 1], [2**64 - 1, 101], [2**64 - 1, 101]]


@pytest.mark.parametrize("build", [FullSync, lambda pipe: pipe.fullsync()])
def test_without_a_process_group_the_remedy_is_named(build: Any) -> None:
    with pytest.raises(RuntimeError, match=r"call torch\.distributed\.init_process_group\(\) on every rank"):
        list(build(IterableWrapper(range(3))))
    loader = DataLoader2(IterableWrapper(range(3)), reading_service=DistributedReadingService())
    with pytest.raises(RuntimeError, match="init_process_group"):
        list(loader)
    with pytest.raises(RuntimeError, match="init_process_group"):
        dist_share_seed(1)


test_wrong_arguments_are_named = refuses(
    (lambda: FullSync(3), TypeError, "FullSync: datapipe"),
    (lambda: FullSync(IterableWrapper([1]), timeout=0), ValueError, "timeout is a number of seconds above 0"),
    (lambda: FullSync(IterableWrapper([1]), timeout="1"), ValueError, "timeout is a number of seconds above 0"),
    (lambda: FullSync(IterableWrapper([1]), process_group=3), TypeError, "has no rank, world_size"),
    (lambda: DistributedReadingService(-1), ValueError, "timeout is a number of seconds above 0"),
    (lambda: DistributedReadingService(timeout=0), ValueError, "timeout is a number of seconds above 0"),
    (lambda: DistributedReadingService(float("inf")), ValueError, r"and at most 1e\+08, but got inf"),
    (lambda: FullSync(IterableWrapper([1]), timeout=float("nan")), ValueError, "FullSync: timeout is a number"),
    (lambda: DistributedReadingService(process_group=object()), TypeError, "has no rank"),
)


def test_the_length_depends_on_the_shortest_rank_and_is_refused() -> None:
    with pytest.raises(TypeError, match="valid length"):
        len(IterableWrapper([1]).fullsync())
    assert not IterableWrapper([1]).fullsync().is_replicable()


def test_workers_that_start_before_sharding_by_rank_are_refused_with_the_remedy() -> None:
    service = SequentialReadingService(
        MultiProcessingReadingService(1), DistributedReadingService(20, process_group=Alone())
    )
    with (
        DataLoader2(IterableWrapper(range(3)).sharding_filter(), reading_service=service) as loader,
        pytest.raises(ValueError, match="DistributedReadingService must divide the items.*put it first"),
    ):
        list(loader)
    assert multiprocessing.active_children() == []


def test_items_read_ahead_on_two_ranks_stay_in_the_state_that_one_rank_loads() -> None:
    def build(group: Alone) -> Any:
        return FullSync(IterableWrapper(range(10)), process_group=group)

    pipe = build(Agrees())
    items = iter(pipe)
    head = [next(items), next(items)]
    state = save_state(pipe)
    pipe.shutdown()
    alone, again = build(Alone()), build(Alone())
    load_state(alone, state)
    iter(alone)
    load_state(again, save_state(alone))
    assert head + list(again) == list(range(10)) == list(again)


def test_groups_that_the_program_destroyed_do_not_keep_a_loader_from_shutting_down(tmp_path: Path) -> None:
    body = """
    def main(rank):
        import torch.distributed as dist
        loader = DataLoader2(Counting(4000), reading_service=DistributedReadingService(20))
        next(iter(loader))
        dist.destroy_process_group()
        store = dist.TCPStore(os.environ["STORE_HOST"], int(os.environ["STORE_PORT"]), is_master=False)
        dist.init_process_group("gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=2)
        loader.shutdown()
        with DataLoader2(Counting(3), reading_service=DistributedReadingService(20)) as another:
            return list(another)
    """
    with gloo_job(tmp_path, body) as job:
        assert job.outcomes() == [[0, 1, 2]] * 2


def test_copies_of_the_pipe_talk_through_the_group_that_the_user_brought() -> None:
    group = Alone()
    group.lock = threading.Lock()  # a lock cannot be copied, so the loader must not copy the group
    pipe = IterableWrapper(range(3)).fullsync(process_group=group)
    assert copy.deepcopy(pipe)._open_group() is group
    with DataLoader2(pipe) as loader:
        assert list(loader) == [0, 1, 2]


def test_a_pipe_that_communicates_with_other_ranks_refuses_to_be_copied(tmp_path: Path) -> None:
    body = """
    import copy

    def main(rank):
        said = []
        with DataLoader2(IterableWrapper(range(4)), reading_service=DistributedReadingService(20)) as loader:
            list(loader)
            for used in (loader.datapipe, loader.reading_service):
                for duplicate in (copy.deepcopy, pickle.dumps):
                    try:
                        duplicate(used)
                    except TypeError as error:
                        said.append(str(error))
        return said
    """
    with gloo_job(tmp_path, body) as job:
        for said in job.outcomes():
            assert len(said) == 4
            assert all("a group of ranks in use can be neither pickled nor copied" in text for text in said)


def test_two_fullsync_pipes_in_one_graph_work_independently(tmp_path: Path) -> None:
    body = """
    def main(rank):
        pipe = FullSync(Counting(5 + 3 * rank), timeout=20).map(identity).batch(2)
        with DataLoader2(pipe, reading_service=DistributedReadingService(20)) as loader:
            return [list(loader), list(loader)]
    """
    with gloo_job(tmp_path, body) as job:
        assert job.outcomes() == [[[[0, 1], [2, 3], [4]]] * 2] * 2
