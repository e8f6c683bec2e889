"""All ranks run the same number of steps, even if some ranks must reread more items than other ranks on a resume."""

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from one_rank import Alone
from random_graphs.users import Passing
from rank_threads import ThreadGroup, in_ranks
from ranks import gloo_job
from resuming import begun, check_resumes
from torchdata.dataloader2 import DataLoader2, DistributedReadingService
from torchdata.datapipes.iter import IterableWrapper

pytest.importorskip("torch", reason="ranks on gloo need torch")
if not sys.platform.startswith("linux"):
    pytest.skip("the test reads /proc to find processes that ranks have left running", allow_module_level=True)
pytestmark = pytest.mark.alone

BODY = """
import pickle, random
import torch.distributed
from random_graphs.users import Passing
from torchdata._engine import snapshots

def drawing(item):
    random.random()  # makes a resume replay the whole graph
    return item

def build(case, rank, shorter):
    pipe = IterableWrapper(range(13 if rank == shorter else 18)).shuffle()
    if case == "replayed on one" and rank == 0:
        pipe = Passing(pipe).map(drawing)
    if case == "held behind":
        return DataLoader2(pipe.fullsync(20).prefetch(2 - rank))
    services = [DistributedReadingService(20)]
    if case == "workers":
        services.append(MultiProcessingReadingService(1))
        snapshots.SECONDS = 1000.0 if rank == 0 else 0.0  # no snapshot on rank 0, otherwise one after each item
        snapshots.FACTOR = 0.0
    return DataLoader2(pipe, reading_service=SequentialReadingService(*services))

def wait_until_full(loader):
    end, until = loader.datapipe, time.monotonic() + 10
    while time.monotonic() < until and len(end.state_dict()["items"]) < end.buffer_size:
        time.sleep(0.01)

def main(rank):
    warnings.simplefilter("ignore")
    found = []
    for case, shorter, epoch in {plans!r}:
        with build(case, rank, shorter) as loader:
            loader.seed(3)
            whole = [list(loader) for _ in range(3)]
        with build(case, rank, shorter) as loader:
            loader.seed(3)
            for _ in range(epoch):
                list(loader)
            reading = iter(loader)
            got = [next(reading) for _ in range(3)]
            if rank == 0 or case == "replayed on one":
                loader.state_dict()  # the other rank requests no state in this epoch
            got += [next(reading) for _ in range(3)]
            if case == "held behind":
                wait_until_full(loader)
            state = pickle.loads(pickle.dumps(loader.state_dict(items_ago=0 if case == "held behind" else 1)))
            torch.distributed.barrier()  # if one rank ended early, the other would fail
        with build(case, rank, shorter) as loader:
            loader.load_state_dict(state)
            found.append((whole[epoch:epoch + 2], got, list(loader), list(loader), state["iteration_state"]["drop"]))
    return found
"""

CASES = {"looked at": 5, "replayed on one": 5, "held behind": 6, "workers": 5}


def test_ranks_that_recompute_different_numbers_of_items_stay_in_step(tmp_path: Path) -> None:
    rank_with_fewer_items_and_epoch = (0, 0), (1, 1)
    plans = [(case, *each) for case in CASES for each in rank_with_fewer_items_and_epoch]
    with gloo_job(tmp_path, BODY.replace("{plans!r}", repr(plans))) as job:
        outcomes = job.outcomes(110)
    assert not any(isinstance(outcome, BaseException) for outcome in outcomes), outcomes
    for number, (case, *_) in enumerate(plans):
        for rank, outcome in enumerate(outcomes):
            (whole, following), got, rest, later, drop = outcome[number]
            assert len(whole) == len(following) == 13, "all ranks end with the rank that has fewer items"
            assert got == whole[:6]
            assert rest == whole[CASES[case] :], (plans[number], rank)
            assert later == following, (plans[number], rank)
            assert drop == {"looked at": (2, 5), "replayed on one": (2, 2)}.get(case, (0, 0))[rank]


def test_a_rank_that_cannot_recompute_its_items_raises_an_error_on_all_ranks() -> None:
    def body(group: ThreadGroup) -> str:
        def loader(items: int) -> DataLoader2[int]:
            service = DistributedReadingService(30, process_group=group)
            return DataLoader2(IterableWrapper(range(items)), reading_service=service)

        with loader(9) as made:
            made.seed(3)
            reading = iter(made)
            assert [next(reading) for _ in range(6)] == list(range(6))
            state = made.state_dict(items_ago=1)
        with loader(9 if group.rank else 3) as made, pytest.raises(RuntimeError) as caught:
            made.load_state_dict(state, strict=False)
            list(made)
        return str(caught.value)

    own, others = in_ranks(2, body)
    assert own.startswith("this pipeline does not repeat itself, so it cannot resume from the state: it ended 2 items")
    assert others.startswith("rank 0 raised an exception while it read its items")


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("prefetched", [False, True])
def test_random_functions_that_a_thread_calls_ahead_resume_exactly(replayed: bool, prefetched: bool) -> None:
    def made(state: Any) -> DataLoader2[Any]:
        random.seed(5 if state is None else 77)
        pipe: Any = IterableWrapper(range(14)).shuffle()
        pipe = (Passing(pipe) if replayed else pipe).map(lambda item: (item, random.random()))
        pipe = pipe.prefetch(3) if prefetched else pipe
        return begun(DataLoader2(pipe.fullsync(20, process_group=Alone(2))), state)

    check_resumes(made, (0, 0), (0, 6), (1, 0), (1, 13), (1, -2))
