"""Loaders resume from a state that was saved at any moment, in any service or process, or they refuse the state."""

import json
import os
import pickle
import random
import re
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest

import resuming
from one_rank import Alone
from programs import output_of
from random_loaders import pipelines
from resuming import check_resumes, continued, epochs_of, resumed, saved, stopped
from torchdata._engine import snapshots
from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    InProcessReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
    describe,
)
from torchdata.datapipes.iter import IterableWrapper
from waiting import wait_for

pytestmark = pytest.mark.alone


def drawing(item):
    return item, random.random(), int(np.random.randint(1000))


def pipeline(dispatched=False):
    pipe = IterableWrapper(range(50)).shuffle()
    pipe = pipe.sharding_round_robin_dispatch() if dispatched else pipe.sharding_filter()
    return pipe.map(drawing).shuffle(buffer_size=6).batch(2)


def workers(**options):
    return MultiProcessingReadingService(2, **options)


SERVICES = {
    "none": lambda: None,
    "in process": InProcessReadingService,
    "in process, ahead": lambda: InProcessReadingService(prefetch_cnt=4),
    "workers": workers,
    "spawned workers": lambda: workers(multiprocessing_context="spawn"),
    "workers of a server": lambda: workers(multiprocessing_context="forkserver"),
    "ranks": lambda: DistributedReadingService(process_group=Alone()),
    "ranks and workers": lambda: SequentialReadingService(DistributedReadingService(process_group=Alone()), workers()),
}


def begun(service, pipe=pipeline, epochs=0, items=0):
    random.seed(4)
    np.random.seed(4)
    loader = DataLoader2(pipe(), reading_service=service)
    loader.seed(7)
    for _ in range(epochs):
        list(loader)
    iterator = iter(loader)
    return loader, iterator, [next(iterator) for _ in range(items)]


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("service", SERVICES)
def test_the_remaining_and_the_next_epochs_equal_those_of_an_uninterrupted_run(service):
    def made(state):
        random.seed(4 if state is None else 99)
        np.random.seed(4 if state is None else 99)
        return resuming.begun(DataLoader2(pipeline(), reading_service=SERVICES[service]()), state)

    is_slow = "spawned" in service or "server" in service
    check_resumes(made, (1, 9), *([] if is_slow else [(0, 0), (0, -2), (0, -1), (1, -1)]))


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(("times", "items", "heads"), [(3, 4, [1]), (3, 4, [3]), (10, 46, [2, 2, 2])])
def test_a_state_of_resumed_workers_that_have_not_opened_their_share_resumes_in_the_same_way(times, items, heads):
    def made():
        pipe = IterableWrapper(range(8)).sharding_round_robin_dispatch()
        pipe = pipe.flatmap(lambda number: [(number, each) for each in range(times)])
        return DataLoader2(pipe, reading_service=workers())

    _, state, rest = continued(made(), items)
    for count in heads:
        head, state = stopped(resuming.begun(made(), state), count)
        assert head == rest[:count]
        del rest[:count]
    assert resumed(made(), state) == [rest]


@pytest.mark.usefixtures("often")
def test_workers_that_leave_a_pass_early_continue_with_the_next_one():
    def made(state):
        pipe = IterableWrapper(range(8)).sharding_round_robin_dispatch()
        return resuming.begun(DataLoader2(pipe.header(2).cycle(2), reading_service=workers()), state)

    check_resumes(made, (0, 1), (0, 3), (0, 4), (0, 5))


@pytest.mark.parametrize("service", ["in process", "workers"])
def test_a_state_of_some_items_ago_yields_these_items_again(service):
    loader, iterator, got = begun(SERVICES[service](), epochs=1, items=8)
    with loader:
        states = [saved(loader, items_ago=ago) for ago in range(9)]
        with pytest.raises(ValueError, match="items_ago=9 exceeds the number of items that were delivered .*, 8$"):
            loader.state_dict(items_ago=9)
        rest = list(iterator)
    for ago in (1, 3, 8):
        assert epochs_of(DataLoader2.from_state(states[ago], SERVICES[service]()), 1) == [got[8 - ago :] + rest]


@pytest.mark.parametrize("service", ["in process", "workers"])
def test_a_state_of_some_items_ago_in_the_epoch_after_a_resumed_one_has_the_lasting_state(service):
    def made():
        return DataLoader2(pipelines.Summed(IterableWrapper(range(6))), reading_service=SERVICES[service]())

    with made() as loader:
        loader.seed(3)
        assert len(list(loader)) == len(list(loader))
        between = saved(loader)
        expected = list(loader)
    with made() as loader:
        loader.load_state_dict(between)
        iterator = iter(loader)
        assert [next(iterator) for _ in range(4)] == expected[:4]
        states = [saved(loader, items_ago=ago) for ago in range(5)]
    for ago in (0, 2, 4):
        assert resumed(made(), states[ago]) == [expected[4 - ago :]]


@pytest.mark.parametrize("service", ["in process", "workers"])
def test_saving_changes_nothing_and_a_saved_state_does_not_change(service):
    loader, iterator, _ = begun(SERVICES[service](), items=3)
    with loader:
        state = loader.state_dict()
        pickled = pickle.dumps(state)
        saving = [(item, loader.state_dict())[0] for item in iterator]
        assert pickle.dumps(state) == pickled
    loader, iterator, _ = begun(SERVICES[service](), items=3)
    with loader:
        assert list(iterator) == saving


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("dispatched", [False, True])
@pytest.mark.parametrize("budget", [0, 1 << 20])
def test_full_arenas_and_none_only_make_snapshots_rarer(dispatched, budget, recwarn):
    def large():
        return pipeline(dispatched).map(pipelines.large)

    warnings.filterwarnings("default", "the main process holds .* more than the memory budget")
    loader, iterator, _ = begun(workers(memory_budget=budget), large, items=7)
    with loader:
        state = saved(loader)
        expected = [item.tolist() for item in iterator]
    with DataLoader2.from_state(state, workers(memory_budget=budget)) as other:
        assert [item.tolist() for item in other] == expected
    assert not recwarn.list or (dispatched and budget == 0), [str(one.message) for one in recwarn.list]


OF_ANY_SIZE = """
import json, sys
from torchdata._engine import snapshots
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper
snapshots.SECONDS = snapshots.FACTOR = 0.0

def cached(size):
    data = [bytes([number]) * size for number in range(30)]
    pipe = IterableWrapper(data).in_memory_cache().sharding_round_robin_dispatch().in_memory_cache()
    return DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, "fork"))

found = {"of workers": [], "of the dispatching process": []}
for size in (1, 60, 200, 1000, 1200, 1500, 100_000):
    with cached(size) as loader:
        loader.seed(3)
        iterator = iter(loader)
        for _ in range(9):
            next(iterator)
        state = loader.state_dict()
        expected = [list(iterator), list(loader)]
    inside = state["iteration_state"]["workers"]
    found["of workers"] += [len(worker["snapshot"][-1]) for worker in inside["workers"]]
    found["of the dispatching process"].append(len(inside["dispatching"][-1]))
    with cached(size) as other:
        other.load_state_dict(state)
        assert [list(other), list(other)] == expected, size
assert "numpy" not in sys.modules  # the state of NumPy's generator would make each snapshot large
print(json.dumps(found))
"""


def test_snapshots_of_any_size_reach_main_whole():
    """Snapshots of up to 4 KiB are sent inside a message, and larger snapshots in a block of shared memory."""
    for form, sizes in json.loads(output_of(OF_ANY_SIZE)).items():
        assert sum(size < 4096 for size in sizes) > 2, (form, sizes)
        assert sum(4096 < size < 10_000 for size in sizes) > 2, (form, sizes)
        assert max(sizes) > 300_000, (form, sizes)


def unsteady():
    return IterableWrapper(range(40)).sharding_filter().map(lambda item: (item, time.perf_counter_ns()))


def test_a_pipeline_that_does_not_repeat_itself_is_an_error_that_names_worker_and_item(monkeypatch):
    monkeypatch.setattr(snapshots, "SECONDS", 1000.0)  # without snapshots, the epoch restarts from its beginning
    _, state = stopped(begun(workers(), unsteady)[0], 9)
    with DataLoader2.from_state(state, workers()) as other, pytest.raises(RuntimeError) as caught:
        list(other)
    assert "worker process" in str(caught.value)
    assert "does not repeat itself" in str(caught.value)
    assert re.search("items up to number [45]", str(caught.value))
    with DataLoader2.from_state(state, workers(), strict=False) as other:
        assert [item for item, _ in other] == list(range(9, 40))


def test_states_are_plain_data_that_torch_loads_without_trust(tmp_path):
    torch = pytest.importorskip("torch", reason="the test loads a state with torch.load")
    _, state, rest = continued(begun(workers())[0], 5)
    torch.save(state, tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    other = DataLoader2(pipeline(), reading_service=workers())
    assert resumed(other, state, allow_pickle=False) == [rest]


@pytest.mark.usefixtures("often")
def test_damage_in_a_snapshot_of_a_worker_is_noticed():
    _, state = stopped(begun(workers())[0], 9)
    damaged = pickle.loads(pickle.dumps(state))
    worker = damaged["iteration_state"]["workers"]["workers"][0]
    sent, read_pass, share, content = worker["snapshot"]
    content = bytearray(content)
    content[len(content) // 2] ^= 1
    worker["snapshot"] = sent, read_pass, share, bytes(content)
    with pytest.raises(ValueError, match="damaged in its field 'iteration_state'.*checksum"):
        DataLoader2.from_state(damaged, workers())


def test_views_of_one_tensor_in_a_buffer_are_saved_without_the_rest_of_its_memory():
    torch = pytest.importorskip("torch", reason="the test uses tensors")
    batch = torch.arange(100 * 100).reshape(100, 100)

    def rows():
        return IterableWrapper(list(batch), deepcopy=False).shuffle(buffer_size=50)

    _, state, rest = continued(resuming.begun(DataLoader2(rows())), 1)
    assert len(pickle.dumps(state)) < batch.nbytes
    assert [row.tolist() for row in resumed(DataLoader2(rows()), state)[0]] == [row.tolist() for row in rest]


def test_much_data_is_not_part_of_each_state():
    data = list(range(400_000))

    def much():
        return IterableWrapper(data, deepcopy=False).sharding_filter()

    loader = DataLoader2(much(), reading_service=workers())
    _, state = stopped(loader, 1)
    assert len(pickle.dumps(state)) < 100_000
    assert len(loader.state_dict(with_pipe=True)["serialized_datapipe"]) > 1 << 20
    with pytest.raises(ValueError, match="was saved without its pipe.*with_pipe=True"):
        DataLoader2.from_state(state, workers())
    with DataLoader2(much(), reading_service=workers()) as other:
        other.load_state_dict(state)
        assert next(iter(other)) == 1


KILLED = """
import os, pickle, sys
sys.path.insert(0, {folder!r})
from test_resume import pipeline, workers
from torchdata.dataloader2 import DataLoader2
loader = DataLoader2(pipeline(True), reading_service=workers())
loader.seed(7)
if os.path.exists("state"):
    loader.load_state_dict(pickle.load(open("state", "rb")))
while True:
    for item in loader:
        state = loader.state_dict()
        pickle.dump(state, open("newer", "wb"))
        with open("log", "a") as log:
            log.write(repr(item) + "\\n")
        os.replace("newer", "state")
"""


def test_a_program_that_is_killed_while_it_saves_resumes_from_its_last_file(tmp_path):
    program = KILLED.format(folder=os.path.dirname(__file__))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    rng, log = random.Random(5), tmp_path / "log"
    log.touch()
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env=environment)
        size = log.stat().st_size
        wait_for(lambda size=size: log.stat().st_size > size)
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        process.wait()
    lines = log.read_text().splitlines()
    # A program that is killed between logging an item and saving its state logs this item twice.
    once = [line for number, line in enumerate(lines) if number == 0 or line != lines[number - 1]]
    with DataLoader2(pipeline(True), reading_service=workers()) as loader:
        loader.seed(7)
        whole: list[str] = []
        while len(whole) < len(once):
            whole += [repr(item) for item in loader]
    assert once == whole[: len(once)]


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("dispatched", [False, True])
def test_the_shards_of_an_epoch_are_described_for_every_process_that_runs_them(dispatched):
    pipe = IterableWrapper(range(50)).shuffle()
    pipe = pipe.sharding_round_robin_dispatch() if dispatched else pipe.sharding_filter()
    state = None
    for index, number in enumerate([2, 3, 1] if dispatched else [2, 3, 0, 1]):
        service = MultiProcessingReadingService(number) if number else InProcessReadingService()
        _, state = stopped(resuming.begun(DataLoader2(pipe, reading_service=service), state), 6)
        received = 6 * index + 6
        lines = describe(state).splitlines()
        assert lines[0] == f"inside an epoch, after {received} items"
        shards = [line.partition(", ")[0] for line in lines if " delivered, " in line]
        assert shards == [f"shard {number}: {received // 2} items delivered" for number in range(2)]
