"""User-defined reading services receive the graph as documented."""

import pickle
import random
from functools import partial

import numpy as np
import pytest

from refusals import refuses
from torchdata.dataloader2 import (
    CheckpointableReadingServiceInterface,
    DataLoader2,
    DistributedReadingService,
    InProcessReadingService,
    MultiProcessingReadingService,
    PrototypeMultiProcessingReadingService,
    ReadingServiceInterface,
    SequentialReadingService,
    WorkerExitedError,
    reading_service,
)
from torchdata.dataloader2.graph import list_dps, traverse_dps
from torchdata.dataloader2.graph.cutting import DispatchedSource
from torchdata.dataloader2.random import SeedGenerator
from torchdata.dataloader2.utils import WorkerInfo, process_init_fn, process_reset_fn
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe


class Recorder(ReadingServiceInterface):
    def __init__(self, name, calls, fails=()):
        self.name, self.calls, self.fails = name, calls, fails

    def _note(self, call):
        self.calls.append(f"{self.name} {call}")
        if call in self.fails:
            raise OSError(f"{self.name} failed in {call}")

    def initialize(self, datapipe):
        self._note("initialize")
        return datapipe.map(partial(append, self.name))

    def initialize_iteration(self, seed_generator, iter_reset_fn=None):
        self._note("initialize_iteration")
        return partial(reset_of, iter_reset_fn, self.name, self.calls)

    def finalize_iteration(self):
        self._note("finalize_iteration")

    def finalize(self):
        self._note("finalize")

    def _pause(self, pause_fn=None):
        self._note("pause")
        return pause_fn

    def _resume(self, resume_fn=None):
        self._note("resume")
        return resume_fn

    def _limit(self, num_batches, limit_fn=None):
        self._note(f"limit {num_batches}")
        return limit_fn


class Checkpointed(Recorder, CheckpointableReadingServiceInterface):
    def checkpoint(self):
        return self.name.encode()

    def restore(self, datapipe, serialized_state):
        self._note(f"restore {serialized_state!r}")
        return datapipe.map(partial(append, self.name))


def append(name, item):
    return f"{item}{name}"


def reset_of(before, name, calls, datapipe):
    if before is not None:
        datapipe = before(datapipe)
    calls.append(f"{name} reset")
    return datapipe


class Pausable(IterDataPipe):
    def __init__(self, source, calls, name):
        self.source, self.calls, self.name = source, calls, name

    def __iter__(self):
        yield from self.source

    def pause(self):
        self.calls.append(f"pause {self.name}")

    def resume(self):
        self.calls.append(f"resume {self.name}")


def test_a_sequence_begins_in_order_chains_reset_functions_and_ends_in_reverse():
    calls = []
    service = SequentialReadingService(Recorder("a", calls), Recorder("b", calls))
    end = service.initialize(IterableWrapper([1]))
    reset = service.initialize_iteration(SeedGenerator(1))
    assert list(reset(end)) == ["1ab"]
    service._pause()
    service._resume()
    service._limit(3)
    service.finalize_iteration()
    service.finalize()
    assert calls == [
        *("a initialize", "b initialize", "a initialize_iteration", "b initialize_iteration"),
        *("a reset", "b reset", "a pause", "b pause", "a resume", "b resume", "a limit 3", "b limit 3"),
        *("b finalize_iteration", "a finalize_iteration", "b finalize", "a finalize"),
    ]


def test_an_error_in_one_service_does_not_keep_the_others_from_finalization():
    calls = []
    failing = Recorder("b", calls, fails=("finalize",)), Recorder("c", calls, fails=("finalize",))
    with pytest.raises(OSError, match="c failed in finalize") as caught:
        SequentialReadingService(Recorder("a", calls), *failing).finalize()
    assert calls == ["c finalize", "b finalize", "a finalize"]
    assert "b failed in finalize" in caught.value.__notes__[0]


def test_a_sequence_restores_the_services_with_a_checkpoint_and_initializes_the_other_services():
    calls = []
    service = SequentialReadingService(Checkpointed("a", calls), Recorder("b", calls))
    state = service.checkpoint()
    assert list(service.restore(IterableWrapper([1]), state)) == ["1ab"]
    assert calls == ["a restore b'a'", "b initialize"]
    with pytest.raises(ValueError, match=r"holds 2 reading services, but .* has 1"):
        SequentialReadingService(Checkpointed("a", calls)).restore(IterableWrapper([1]), state)


def set_origin(datapipe, info):
    return datapipe.map(partial(append, f"-{info.num_workers}.{info.worker_id}"))


def note_reset(calls, datapipe, info, seed_generator):
    calls.append((info, seed_generator.generate_seed()))
    return datapipe


def test_the_in_process_service_calls_its_functions_and_does_not_use_global_generators():
    with DataLoader2(
        IterableWrapper("ab").shuffle(),
        reading_service=InProcessReadingService(init_fn=set_origin, reset_fn=partial(note_reset, calls := [])),
    ) as loader:
        loader.seed(1)
        before = random.getstate()
        assert sorted(loader) == ["a-1.0", "b-1.0"]
        assert len(list(loader)) == 2
        assert random.getstate() == before
        noted = loader.reading_service._reset_fn.args[0]
    assert [info for info, _ in noted] == [WorkerInfo(1, 0)] * 2
    assert noted[0][1] != noted[1][1]
    assert calls == []


def test_the_in_process_service_pauses_from_the_end_and_resumes_from_the_start():
    calls = []
    service = InProcessReadingService()
    first = Pausable(IterableWrapper([1]), calls, "first")
    service.initialize(Pausable(first.map(str), calls, "last"))
    service._pause()
    service._resume()
    assert calls == ["pause last", "pause first", "resume first", "resume last"]


test_wrong_arguments_are_refused = refuses(
    (lambda: SequentialReadingService(5), TypeError, "argument number 0 is 5"),
    (lambda: InProcessReadingService(-1), ValueError, "prefetch_cnt must be at least 0, but got -1"),
    (lambda: InProcessReadingService("2"), TypeError, r"prefetch_cnt .* got '2'"),
    (lambda: InProcessReadingService(init_fn=3), TypeError, "init_fn must be a function, but got 3"),
    (lambda: InProcessReadingService(reset_fn=3), TypeError, "reset_fn must be a function, but got 3"),
    (lambda: InProcessReadingService()._pause(), RuntimeError, "initialize must be called before"),
    (lambda: InProcessReadingService()._resume(), RuntimeError, "initialize must be called before"),
    (
        lambda: DistributedReadingService().initialize_iteration(SeedGenerator(1)),
        RuntimeError,
        "initialize must be called",
    ),
)


def test_a_function_put_into_the_module_is_the_one_that_services_call(monkeypatch):
    def init(datapipe, worker_info, custom_init_fn=None):
        return datapipe.map(str)

    monkeypatch.setattr(reading_service, "process_init_fn", init)
    assert list(DataLoader2(IterableWrapper([1]), reading_service=InProcessReadingService())) == ["1"]


def test_the_prototype_warns_and_is_the_multi_process_service():
    with pytest.warns(FutureWarning, match="deprecated"):
        service = PrototypeMultiProcessingReadingService(num_workers=2)
    assert type(service) is MultiProcessingReadingService
    assert service.num_workers == 2


def test_a_worker_shards_its_graph_and_then_lets_the_user_change_it():
    end = process_init_fn(IterableWrapper(range(4)).sharding_filter(), WorkerInfo(2, 1), set_origin)
    assert list(end) == ["1-2.1", "3-2.1"]


def test_branches_that_read_from_the_dispatching_process_are_not_sharded_again():
    fed = DispatchedSource()
    end = fed.sharding_filter().zip(IterableWrapper(range(4)).sharding_filter())
    assert process_init_fn(end, WorkerInfo(2, 1)) is end
    fed.open_stream = lambda: iter("xy")
    assert list(end) == [("x", 1), ("y", 3)]


def test_a_dispatched_source_pickles_without_its_stream():
    fed = DispatchedSource()
    fed.open_stream = lambda: iter("xy")
    copy = pickle.loads(pickle.dumps(fed))
    assert copy.open_stream is None
    with pytest.raises(RuntimeError, match="not connected to a dispatching process"):
        list(copy)
    assert list(fed) == ["x", "y"]


def test_an_error_reports_queues_or_a_result_that_is_not_a_pipe():
    pipe = IterableWrapper([1])
    with pytest.raises(ValueError, match="dispatching_req_queue"):
        process_init_fn(pipe, WorkerInfo(1, 0), dispatching_req_queue=object())
    with pytest.raises(TypeError, match="worker_init_fn must return the pipe to read"):
        process_init_fn(pipe, WorkerInfo(1, 0), lambda datapipe, info: None)
    with pytest.raises(TypeError, match="iter_reset_fn must return the pipe to read"):
        process_reset_fn(pipe, WorkerInfo(1, 0), SeedGenerator(1), iter_reset_fn=lambda datapipe: None)
    with pytest.raises(TypeError, match="worker_reset_fn must return the pipe to read"):
        process_reset_fn(pipe, WorkerInfo(1, 0), SeedGenerator(1), custom_reset_fn=lambda *_: None)


def test_an_epoch_begins_with_seeded_global_generators_and_pipes():
    def draws(worker, shared=False, last=0):
        end = IterableWrapper(range(30)).shuffle().sharding_filter().shuffle()
        generator = SeedGenerator(7).spawn(worker)
        process_reset_fn(end, WorkerInfo(2, worker), generator, distributed_shared_seed=shared)
        return random.random(), float(np.random.rand()), list(list_dps(traverse_dps(end))[last])

    assert draws(0) == draws(0)
    assert not any(a == b for a, b in zip(draws(0), draws(1), strict=True))
    assert draws(0, last=2)[2] == draws(1, last=2)[2]  # All workers draw the same order before the sharding filter.
    assert draws(0, shared=True) == draws(1, shared=True)


def test_the_reset_functions_run_after_seeding_the_services_before_the_users():
    calls = []

    def from_service(datapipe):
        calls.append("service")
        return datapipe.map(str)

    def from_user(datapipe, info, seed_generator):
        calls.append((info, seed_generator is generator))
        return datapipe

    generator = SeedGenerator(1)
    end = process_reset_fn(
        IterableWrapper([1]), WorkerInfo(2, 1), generator, iter_reset_fn=from_service, custom_reset_fn=from_user
    )
    assert calls == ["service", (WorkerInfo(2, 1), True)]
    assert list(end) == ["1"]


def test_a_worker_exit_error_keeps_its_fields_when_pickled():
    error = pickle.loads(pickle.dumps(WorkerExitedError("worker 1 exited", worker=1, exitcode=-9, stage="start")))
    assert (str(error), error.worker, error.exitcode, error.stage) == ("worker 1 exited", 1, -9, "start")
    assert isinstance(error, RuntimeError)
