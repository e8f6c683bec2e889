"""`DistributedReadingService` works with a subset of the ranks, given by a process group or a device mesh of torch."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="process groups and meshes are PyTorch's")

from ranks import gloo_job

#: A program in which four ranks form a mesh. Each rank returns the items of two epochs, and the items after resuming
#: from a state of the first epoch.
MESH = """
def loader_of(mesh, workers):
    pipe = IterableWrapper(range(24)).shuffle().sharding_filter().batch(2)
    service = DistributedReadingService(mesh["dp"])
    if workers:
        service = SequentialReadingService(service, MultiProcessingReadingService(workers))
    return DataLoader2(pipe, reading_service=service)

def main(rank):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    torch.manual_seed(rank)  # like trainers, for dropout
    mesh = init_device_mesh("cpu", {shape}, mesh_dim_names=("dp", "tp"))
    with loader_of(mesh, {workers}) as loader:
        iterator = iter(loader)
        begun = [next(iterator)]
        state = loader.state_dict()
        epochs = [begun + list(iterator), list(loader)]
    with loader_of(mesh, {workers}) as loader:
        loader.load_state_dict(state)
        assert begun + list(loader) == epochs[0]
    return epochs
"""


@pytest.mark.parametrize(
    ("shape", "workers"), [((4, 1), 0), ((2, 2), 0), ((2, 2), 2), ((1, 4), 0)], ids=["4x1", "2x2", "2x2-workers", "1x4"]
)
def test_tensor_parallel_ranks_get_the_same_batches(shape: tuple[int, int], workers: int, tmp_path: Path) -> None:
    with gloo_job(tmp_path, MESH.format(shape=shape, workers=workers), 4) as job:
        outcomes = job.outcomes()
    dp, tp = shape
    for number, outcome in enumerate(outcomes):
        assert outcome == outcomes[number - number % tp], "of the first rank in its tensor-parallel group"
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
    assert ["mesh[\"dp\"], out of ('dp', 'tp')" in message for message in outcomes[0]] == [True] * 4
    assert ["rank 1 does not belong to the process group" in message for message in outcomes[1]] == [
        False,
        False,
        True,
        True,
    ]


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
