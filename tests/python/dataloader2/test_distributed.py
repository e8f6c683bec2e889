"""Several real ranks on loopback each read their own items in order, and end their epochs at the same step."""

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


def test_ranks_divide_the_items_evenly_end_together_and_share_seeds(tmp_path: Path) -> None:
    body = """
    import copy
    from torchdata.dataloader2.random import dist_share_seed

    def main(rank):
        import torch.distributed as dist
        pipe = IterableWrapper(range(23)).shuffle().sharding_filter().map(identity)
        with DataLoader2(pipe, reading_service=DistributedReadingService(20)) as loader:
            runs = []
            for seed in (5, 5, 6):
                loader.seed(seed)
                runs.append(list(loader))
            runs += [list(loader), list(loader)]
        uneven = [FullSync(Counting(shortest + 3 * rank), timeout=20) for shortest in (0, 5)]
        ends = [[list(pipe) for _ in range(3)] for pipe in uneven]
        pair = dist.new_group([1, 2])
        seeds = [dist_share_seed(2**64 - 1 - rank)]
        if rank > 0:
            seeds.append(dist_share_seed(100 + rank, pair))
        two, refused = FullSync(Counting(5 + 3 * rank), timeout=20).map(identity).batch(2), 0
        with DataLoader2(two, reading_service=DistributedReadingService(20)) as loader:
            ends.append([list(loader), list(loader)])
            for used in (loader.datapipe, loader.reading_service):
                for duplicate in (copy.deepcopy, pickle.dumps):
                    try:
                        duplicate(used)
                    except TypeError as error:
                        refused += "a group of ranks in use cannot be pickled or copied" in str(error)
        return runs, ends, seeds, refused
    """
    with gloo_job(tmp_path, body, 3) as job:
        outcomes = job.outcomes()
    for number in range(5):
        shares = [runs[number] for runs, *_ in outcomes]
        assert [len(share) for share in shares] == [23 // 3] * 3, "all ranks yield the same number of items"
        assert len(set().union(*shares) & set(range(23))) == 21, "no item is yielded by two ranks"
    for runs, ends, _, refused in outcomes:
        assert runs[0] == runs[1], "the same seed gives the same order"
        assert len({tuple(run) for run in runs[1:]}) == 4, "other seeds and later epochs give other orders"
        assert ends == [[[]] * 3, [list(range(5))] * 3, [[[0, 1], [2, 3], [4]]] * 2], "uneven ranks end together"
        assert refused == 4, "neither the pipe nor the service can be pickled or copied while ranks use it"
    assert [seeds for _, _, seeds, _ in outcomes] == [[2**64 - 1], [2**64 - 1, 101], [2**64 - 1, 101]]


def test_ranks_with_workers_shard_by_rank_and_then_by_worker(tmp_path: Path) -> None:
    body = """
    def main(rank):
        epochs = []
        for method in ("fork", "spawn"):
            pipe = IterableWrapper(range(18)).sharding_filter().map(identity)
            service = SequentialReadingService(DistributedReadingService(20), MultiProcessingReadingService(2, method))
            with DataLoader2(pipe, reading_service=service) as loader:
                epochs += [list(loader), list(loader)]
        return epochs
    """
    with gloo_job(tmp_path, body) as job:
        outcomes = job.outcomes()
    # Rank 0 runs the first two of the four workers. Each rank yields the items of its two workers in turn.
    assert outcomes == [[[0, 1, 4, 5, 8, 9, 12, 13]] * 4, [[2, 3, 6, 7, 10, 11, 14, 15]] * 4]


def test_loops_that_ranks_leave_end_on_all_ranks_and_the_next_epoch_begins_at_once(tmp_path: Path) -> None:
    body = """
    def main(rank):
        pipe = IterableWrapper(range(100)).sharding_filter()
        counts = []
        with DataLoader2(pipe, reading_service=DistributedReadingService(1000)) as loader:  # no rank may wait 1000 s
            for leaving in ([0, 1], [0, 1], [1], []):
                counts.append(0)
                for item in loader:
                    counts[-1] += 1
                    if rank in leaving and counts[-1] == 3:
                        break
        return counts
    """
    with gloo_job(tmp_path, body) as job:
        (*left, first, whole), other = job.outcomes()
    assert ([*left, whole], other) == ([3, 3, 50], [3, 3, 3, 50])
    assert 3 <= first <= 6, "rank 0 still yields the items that it has read ahead"


def test_ranks_that_a_user_brings_are_used_as_they_are() -> None:
    def run(group: ThreadGroup) -> list[list[int]]:
        service = DistributedReadingService(20, process_group=group)
        return epochs_of(DataLoader2(IterableWrapper(range(9)).shuffle().sharding_filter(), reading_service=service))

    for first, second in zip(*in_ranks(2, run), strict=True):
        assert len(first) == len(second) == 4
        assert not set(first) & set(second)


def test_items_that_a_rank_had_read_ahead_are_in_its_state_and_are_voted_on_again(tmp_path: Path) -> None:
    body = """
    from torchdata.datapipes.state import is_restorable, load_state, save_state

    def build(check):
        return FullSync(IterableWrapper(range(10)).map(check), timeout=40)

    def resumed(rank, late):
        saved = os.path.join(os.environ["OUTCOMES"], f"saved, late={late}")
        def check(item):
            while late and rank == 1 and item == 3 and not os.path.exists(saved):
                time.sleep(0.01)
            return item
        pipe = build(check)
        items = iter(pipe)
        head = [next(items) for _ in range(3)]
        assert is_restorable(pipe)
        while late and rank == 0 and pipe._data.voted_on != 3:
            time.sleep(0.01)  # rank 0 votes on the fourth item before rank 1 reads it
        state = save_state(pipe)
        if rank == 0:
            open(saved, "w").close()
        rest = list(items)
        other = build(identity)
        load_state(other, state, strict=False)
        return head, rest, list(other), list(other)

    def main(rank):
        return [resumed(rank, late) for late in (False, True)]
    """
    with gloo_job(tmp_path, body) as job:
        for head, rest, restored, again in [each for outcome in job.outcomes() for each in outcome]:
            assert head + rest == list(range(10)) == again
            assert restored == rest


def test_ranks_that_pause_and_meet_between_two_pauses_do_not_wait_for_each_others_votes(tmp_path: Path) -> None:
    body = """
    def main(rank):
        import torch.distributed as dist
        pipe = IterableWrapper(range(40)).sharding_filter().map(identity)
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
            assert lengths == [3] * 6 + [2, 0]
            assert items == list(range(rank, 40, 2))


class NeverAnswers(Alone):
    def __init__(self) -> None:
        super().__init__(2)
        self.answer = threading.Event()

    def all_reduce_min(self, value: int) -> int:
        self.answer.wait(120)
        return 0


def test_an_error_names_a_later_pipe_that_cannot_be_paused_and_the_remedy() -> None:
    group = NeverAnswers()
    pipe = IterableWrapper(range(4)).fullsync(process_group=group).prefetch(1)
    pipe.patience = 0.2
    items = iter(pipe)
    with pytest.raises(TimeoutError, match=r"FullSync before it waits for other ranks.*put Prefetcher before FullSync"):
        pipe.pause()
    group.answer.set()
    assert list(items) == []


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
    (lambda: list(IterableWrapper([1]).fullsync()), RuntimeError, r"init_process_group\(\) on every rank"),
    (
        lambda: list(DataLoader2(IterableWrapper([1]), reading_service=DistributedReadingService())),
        RuntimeError,
        "init_process_group",
    ),
    (lambda: dist_share_seed(1), RuntimeError, "init_process_group"),
    (lambda: len(IterableWrapper([1]).fullsync()), TypeError, "valid length"),
)


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

    pipe = build(Alone(2))
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
    assert not pipe.is_replicable()
    assert copy.deepcopy(pipe)._open_group() is group
    with DataLoader2(pipe) as loader:
        assert list(loader) == [0, 1, 2]


MESHES = """
def loader_of(mesh, workers):
    pipe = IterableWrapper(range(24)).shuffle().sharding_filter().batch(2)
    service = DistributedReadingService(mesh["dp"])
    if workers:
        service = SequentialReadingService(service, MultiProcessingReadingService(workers))
    return DataLoader2(pipe, reading_service=service)

def epochs(rank, shape, workers):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    torch.manual_seed(rank)  # like trainers, for dropout
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    with loader_of(mesh, workers) as loader:
        iterator = iter(loader)
        begun = [next(iterator)]
        state = loader.state_dict()
        epochs = [begun + list(iterator), list(loader)]
    with loader_of(mesh, workers) as loader:
        loader.load_state_dict(state)
        assert begun + list(loader) == epochs[0]
    return epochs

def main(rank):
    return [epochs(rank, shape, workers) for shape, workers in SHAPES]
"""
SHAPES = [((4, 1), 0), ((2, 2), 2), ((1, 4), 0)]


def test_tensor_parallel_ranks_get_the_same_batches(tmp_path: Path) -> None:
    with gloo_job(tmp_path, f"SHAPES = {SHAPES}\n" + MESHES, 4) as job:
        by_rank = job.outcomes()
    for index, ((dp, tp), _) in enumerate(SHAPES):
        outcomes = [each[index] for each in by_rank]
        for number, outcome in enumerate(outcomes):
            assert outcome == outcomes[number - number % tp], "tensor-parallel ranks get the same batches"
        for epoch in range(2):
            items = [item for outcome in outcomes[::tp] for batch in outcome[epoch] for item in batch]
            assert sorted(items) == list(range(24))
        assert outcomes[0][0] != outcomes[0][1]
        assert [len(outcome[0]) for outcome in outcomes] == [12 // dp] * 4


def test_process_groups_divide_the_items_and_a_seed_decides_the_order(tmp_path: Path) -> None:
    body = """
    def main(rank):
        import torch.distributed as dist
        halves = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        seen = []
        for service in (
            DistributedReadingService(process_group=halves[rank % 2]),
            DistributedReadingService(process_group=dist.group.WORLD),
            DistributedReadingService(),
        ):
            pipe = IterableWrapper(range(8)).shuffle().sharding_filter()
            with DataLoader2(pipe, reading_service=service) as loader:
                loader.seed(5)
                seen.append(list(loader))
        group = FullSync(Counting(3 + rank), 20, halves[rank % 2])
        seen.append(list(group))
        group.shutdown()
        return seen
    """
    with gloo_job(tmp_path, body, 4) as job:
        outcomes = job.outcomes()
    assert outcomes[0][0] == outcomes[1][0]
    assert outcomes[2][0] == outcomes[3][0]
    assert sorted(outcomes[0][0] + outcomes[2][0]) == list(range(8))
    assert all(outcome[1] == outcome[2] for outcome in outcomes)
    assert [len(outcome[3]) for outcome in outcomes] == [3, 4, 3, 4]


def test_a_mesh_of_two_dimensions_and_a_group_without_this_rank_are_refused_by_name(tmp_path: Path) -> None:
    body = """
    def main(rank):
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
        alone = dist.new_group([0])
        messages = []
        for group in (mesh, alone if rank else mesh):
            for make in (DistributedReadingService, lambda group: FullSync(Counting(1), process_group=group)):
                try:
                    make(group)
                except ValueError as error:
                    messages.append(str(error))
        return messages
    """
    with gloo_job(tmp_path, body) as job:
        outcomes = job.outcomes()
    assert ["('dp', 'tp'); select the dimension" in message for message in outcomes[0]] == [True] * 4
    named = ["rank 1 does not belong to the process group" in message for message in outcomes[1]]
    assert named == [False, False, True, True]


def test_an_error_names_an_exited_rank_by_its_number_in_the_job(tmp_path: Path) -> None:
    body = """
    def main(rank):
        import torch.distributed as dist
        halves = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        pipe = Counting(1000).sharding_filter()
        loader = DataLoader2(pipe, reading_service=DistributedReadingService(20, process_group=halves[rank % 2]))
        for item in loader:
            if rank == 3 and item > 20:
                os.kill(os.getpid(), signal.SIGKILL)
        return True
    """
    with gloo_job(tmp_path, body, 4) as job:
        assert job.outcome(0)[0] is True
        assert "on rank 1: rank 3 of 4 sent no message" in str(job.outcome(1)[0])
