"""DataLoader2: epochs, iterators, limits, state and shutdown, whatever the reading service."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading

import pytest

from torchdata.dataloader2 import (
    CheckpointableReadingServiceInterface,
    DataLoader2,
    DataLoader2Iterator,
    InProcessReadingService,
    MultiProcessingReadingService,
    PauseIteration,
    ReadingServiceInterface,
)
from torchdata.dataloader2.adapter import Adapter, Shuffle
from torchdata.dataloader2.graph._serialization import deserialize_datapipe
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.map import SequenceWrapper

#: What the services of the current test were told; a service is copied, so it cannot hold the list itself.
calls: list[str] = []


@pytest.fixture(autouse=True)
def no_calls():
    gc.collect()  # a loader that an earlier test left would still note its end
    calls.clear()


class Recorder(ReadingServiceInterface):
    """Notes its calls, and fails in those that it is told to fail in."""

    def __init__(self, *fails):
        self.fails = fails

    def _note(self, call):
        calls.append(call)
        if call in self.fails:
            raise OSError(f"failed in {call}")

    def initialize(self, datapipe):
        self._note("initialize")
        return datapipe

    def initialize_iteration(self, seed_generator, iter_reset_fn=None):
        self._note("begin")

    def finalize_iteration(self):
        self._note("end")

    def finalize(self):
        self._note("finalize")


class Checkpointed(Recorder, CheckpointableReadingServiceInterface):
    def checkpoint(self):
        return b"state"

    def restore(self, datapipe, serialized_state):
        self._note(f"restore {serialized_state!r}")
        return datapipe


class Failing(IterDataPipe):
    """Raises an error instead of one of its items."""

    def __init__(self, at=2):
        self.at = at

    def __iter__(self):
        for i in range(4):
            if i == self.at:
                raise KeyError(f"item {i}")
            yield i

    def greet(self):
        return "hello"


class Holding(IterDataPipe):
    def __init__(self, lock):
        self.lock = lock

    def __iter__(self):
        return iter(())


def loader_of(pipe, *fails):
    return DataLoader2(pipe, reading_service=Recorder(*fails))


def numbers(count=6):
    return IterableWrapper(range(count))


@pytest.mark.parametrize(
    "service", [None, InProcessReadingService(), InProcessReadingService(init_fn=lambda d, i: d)]
)
def test_every_loop_is_an_epoch(service):
    loader = DataLoader2(numbers(), reading_service=service)
    for _ in range(3):
        assert list(loader) == list(range(6))


def test_the_service_hears_beginning_and_end_of_each_epoch_once():
    with loader_of(numbers(2)) as loader:
        for _ in range(2):
            assert list(loader) == [0, 1]
        iterator = iter(loader)
        assert list(iterator) == [0, 1]
        assert [next(iterator, "over") for _ in range(2)] == ["over", "over"]
    assert calls == ["initialize", *["begin", "end"] * 3, "finalize"]


def test_the_loader_works_on_copies():
    pipe, service = numbers(), Recorder()
    loader = DataLoader2(pipe, reading_service=service)
    assert loader.datapipe is not pipe
    assert loader.reading_service is not service
    assert type(loader.datapipe) is type(pipe)
    iterator, own = iter(loader), iter(pipe)
    assert (next(iterator), next(own), next(iterator), next(own)) == (0, 0, 1, 1)


def test_a_map_pipe_is_read_from_its_first_index():
    assert list(DataLoader2(SequenceWrapper("abc"))) == ["a", "b", "c"]


def test_a_new_iterator_invalidates_the_one_before():
    loader = loader_of(numbers())
    first = iter(loader)
    assert (next(first), first.iterator_id, loader.valid_iterator_id) == (0, 0, 0)
    second = iter(loader)
    assert loader.valid_iterator_id == second.iterator_id == 1
    with pytest.raises(RuntimeError, match="another iterator has been created from the same DataLoader2"):
        next(first)
    assert list(second) == list(range(6))
    assert calls == ["initialize", "begin", "end", "begin", "end"]


def test_iter_twice_without_an_item_between_is_one_epoch():
    loader = loader_of(numbers())
    first = iter(loader)
    second = iter(loader)
    assert list(second) == list(range(6))
    assert calls == ["initialize", "begin", "end"]
    with pytest.raises(RuntimeError, match="invalidated"):
        next(first)


def test_after_a_break_the_next_loop_is_a_new_epoch():
    loader = loader_of(numbers())
    for item in loader:
        if item == 2:
            break
    assert list(loader) == list(range(6))
    assert calls == ["initialize", "begin", "end", "begin", "end"]


def test_after_an_error_in_a_pipe_the_next_loop_is_a_new_epoch():
    loader = loader_of(Failing())
    for _ in range(2):
        iterator = iter(loader)
        assert [next(iterator), next(iterator)] == [0, 1]
        with pytest.raises(KeyError, match="item 2"):
            next(iterator)
        assert next(iterator, "over") == "over"
    assert calls == ["initialize", "begin", "end", "begin", "end"]


@pytest.mark.parametrize("stage", ["initialize", "begin", "end", "finalize"])
def test_an_error_of_the_service_is_raised_and_leaves_the_loader_usable(stage):
    loader = loader_of(numbers(2), stage)

    def use():
        list(loader)
        loader.shutdown()

    with pytest.raises(OSError, match=f"failed in {stage}"):
        use()
    if stage != "finalize":
        loader.reading_service.fails = ()
        assert list(loader) == [0, 1]
        loader.shutdown()
    assert calls.count("begin") == calls.count("end")
    assert calls.count("finalize") == 1
    loader.shutdown()
    assert calls.count("finalize") == 1


def test_errors_while_ending_never_hide_the_error_that_came_first():
    loader = loader_of(Failing(), "end", "finalize")

    def use():
        with loader:
            list(loader)

    with pytest.raises(KeyError, match="item 2") as caught:
        use()
    notes = "\n".join(caught.value.__notes__)
    assert "ending the epoch failed, too: OSError('failed in end')" in notes
    assert "shutting the loader down failed, too: OSError('failed in finalize')" in notes


def test_unknown_attributes_are_those_of_the_pipelines_iterator():
    loader = DataLoader2(Failing(at=9))
    iterator = iter(loader)
    assert isinstance(iterator, DataLoader2Iterator)
    assert next(iterator) == 0
    assert iterator.gi_frame is not None  # of the pipe's generator
    with pytest.raises(AttributeError, match="nonsense"):
        iterator.nonsense  # noqa: B018
    loader.shutdown()
    with pytest.raises(AttributeError, match="nonsense"):
        iterator.nonsense  # noqa: B018


@pytest.mark.parametrize("service", [None, InProcessReadingService()])
def test_limit_pauses_the_same_iterator_again_and_again(service):
    loader = DataLoader2(numbers(8), reading_service=service)
    iterator = iter(loader)
    assert next(iterator) == 0
    iterator.limit(3)
    assert list(iterator) == [1, 2, 3]
    assert loader._is_paused
    assert list(iterator) == []
    iterator.resume()
    assert list(iterator) == [4, 5, 6]
    iterator.resume()
    iterator.limit(None)
    assert list(iterator) == [7]
    assert list(loader) == list(range(8))


def test_a_new_epoch_of_a_paused_loader_is_not_paused():
    loader = DataLoader2(numbers(), reading_service=InProcessReadingService())
    iterator = iter(loader)
    iterator.limit(2)
    assert list(iterator) == [0, 1]
    assert list(loader) == list(range(6))


def test_pausing_does_not_end_the_epoch():
    class Pausing(Recorder):
        def _pause(self, pause_fn=None):
            self._note("pause")

        def _resume(self, resume_fn=None):
            self._note("resume")

        def _limit(self, num_batches, limit_fn=None):
            self._note(f"limit {num_batches}")

    loader = DataLoader2(numbers(3), reading_service=Pausing())
    iterator = iter(loader)
    iterator.limit(2)
    assert list(iterator) == [0, 1]
    iterator.resume()
    assert list(iterator) == [2]
    assert calls == ["initialize", "begin", "limit 2", "pause", "resume", "end"]


def test_a_pipeline_may_pause_itself():
    class Pausing(IterDataPipe):
        def __iter__(self):
            return Steps()

    class Steps:
        def __init__(self):
            self.steps = iter([1, PauseIteration(), 2])

        def __iter__(self):
            return self

        def __next__(self):
            step = next(self.steps)
            if isinstance(step, PauseIteration):
                raise step
            return step

    class Direct(Recorder):
        def initialize(self, datapipe):
            return Steps()  # without the guard of a pipe, which takes any StopIteration for the end

    loader = DataLoader2(Pausing(), reading_service=Direct())
    iterator = iter(loader)
    assert list(iterator) == [1]
    assert list(iterator) == [2]
    assert calls == ["begin", "end"]


def test_a_service_that_cannot_pause_is_warned_about():
    iterator = iter(loader_of(numbers()))
    with pytest.warns(UserWarning, match="Recorder doesn't support `limit`"):
        iterator.limit(1)
    with pytest.warns(UserWarning, match="Recorder doesn't support `pause`"):
        assert next(iterator) == 0
    with pytest.warns(UserWarning, match="Recorder doesn't support `resume`"):
        iterator.resume()


def test_resuming_what_is_not_paused_warns():
    with pytest.warns(UserWarning, match="not paused"):
        iter(DataLoader2(numbers())).resume()


@pytest.mark.parametrize(
    ("count", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_a_wrong_limit_is_refused(count, error):
    with pytest.raises(error, match="limit takes a number of items"):
        iter(DataLoader2(numbers())).limit(count)


def shuffled_loader(seed=None):
    loader = DataLoader2(numbers(20).shuffle(), reading_service=InProcessReadingService())
    if seed is not None:
        loader.seed(seed)
    return loader


def test_the_seed_decides_all_epochs():
    first, second = shuffled_loader(3), shuffled_loader(3)
    epochs = [list(first) for _ in range(3)]
    assert epochs == [list(second) for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    first.seed(3)
    assert list(first) == epochs[0]
    first.seed(2**64 - 1)
    assert list(first) != epochs[0]


@pytest.mark.parametrize(
    ("seed", "error"),
    [(-1, ValueError), (2**64, ValueError), ("1", TypeError), (1.0, TypeError), (None, TypeError)],
)
def test_a_seed_that_is_no_64_bit_number_is_refused(seed, error):
    with pytest.raises(error):
        DataLoader2(numbers()).seed(seed)


def test_after_shutdown_nothing_can_be_read():
    loader = loader_of(numbers())
    iterator = iter(loader)
    next(iterator)
    for _ in range(2):
        loader.shutdown()
    assert calls == ["initialize", "begin", "end", "finalize"]
    with pytest.raises(RuntimeError, match="shut down"):
        iter(loader)
    with pytest.raises(RuntimeError, match="shut down"):
        next(iterator)


def test_a_loader_that_is_dropped_shuts_down():
    loader = loader_of(numbers())
    next(iter(loader))
    del loader
    gc.collect()
    assert calls == ["initialize", "begin", "end", "finalize"]


def test_a_forked_child_leaves_the_service_alone():
    loader = loader_of(numbers())
    next(iter(loader))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        loader.shutdown()
        os.write(write, (b"end" in ",".join(calls).encode() and b"called") or b"left alone")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 20) == b"left alone"
    os.close(read)
    os.close(write)
    loader.shutdown()
    assert calls[-2:] == ["end", "finalize"]


EXITING = """
from torchdata.dataloader2 import DataLoader2, ReadingServiceInterface
from torchdata.datapipes.iter import IterableWrapper
class Service(ReadingServiceInterface):
    def initialize(self, datapipe):
        return datapipe
    def finalize(self):
        print("finalized")
loader = DataLoader2(IterableWrapper(range(3)), reading_service=Service())
next(iter(loader))
import builtins
builtins.kept = loader
"""


def test_the_interpreters_exit_shuts_down():
    done = subprocess.run([sys.executable, "-c", EXITING], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("finalized\n", "", 0)


def test_a_pipe_that_cannot_be_copied_is_named_with_its_attribute():
    with pytest.raises(
        TypeError, match=r"Holding cannot be copied: its attribute 'lock' holds <unlocked _thread.lock"
    ):
        DataLoader2(Holding(threading.Lock()).map(str))
    service = Recorder()
    service.lock = threading.Lock()
    with pytest.raises(TypeError, match="Recorder cannot be copied: its attribute 'lock'"):
        DataLoader2(numbers(), reading_service=service)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((numbers(), 5), "takes adapters.* got 5"),
        ((numbers(), [Shuffle]), "takes adapters.* got <class"),
        ((numbers(), None, Recorder), "an instance of a ReadingServiceInterface or None, but got <class"),
        ((numbers(), lambda datapipe: None), "an adapter must return the pipe to read, .*None"),
    ],
)
def test_wrong_arguments_are_refused(arguments, words):
    with pytest.raises(TypeError, match=words):
        DataLoader2(*arguments)


def test_adapters_are_applied_in_order_and_listed():
    class Add(Adapter):
        def __init__(self, text):
            self.text = text

        def __call__(self, datapipe):
            return datapipe.map(lambda item: f"{item}{self.text}")

        def adapt_reading_service(self, reading_service):
            calls.append(self.text)
            return reading_service

    one, two = Add("a"), Add("b")
    loader = DataLoader2(numbers(2), (adapter for adapter in (one, two)), Recorder())
    assert loader.datapipe_adapter_fns == [one, two]
    assert calls == ["a", "b"]
    assert list(loader) == ["0ab", "1ab"]
    assert DataLoader2(numbers()).datapipe_adapter_fns is None
    assert DataLoader2(numbers(), one).datapipe_adapter_fns == [one]


def test_a_loader_goes_on_from_its_state_epoch_by_epoch():
    loader = shuffled_loader(5)
    list(loader)
    second_epoch = list(loader)
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    third_epoch = list(loader)

    restored = DataLoader2.from_state(state, InProcessReadingService())
    assert restored.state_dict() == state
    assert list(restored) == third_epoch

    again = DataLoader2(None, reading_service=InProcessReadingService())
    again.load_state_dict(state)
    again._restore_checkpoint_beginning_of_epoch()
    assert [list(again), list(again)] == [second_epoch, third_epoch]


@pytest.mark.parametrize("seed", [None, 5])
def test_the_epoch_of_the_state_can_be_repeated_with_and_without_a_seed(seed):
    loader = shuffled_loader(seed)
    epoch = list(loader)
    restored = DataLoader2.from_state(loader.state_dict(), InProcessReadingService())
    restored._restore_checkpoint_beginning_of_epoch()
    assert list(restored) == epoch


def test_a_state_taken_before_the_first_epoch_keeps_the_seed():
    loader = shuffled_loader(5)
    restored = DataLoader2.from_state(loader.state_dict(), InProcessReadingService())
    assert list(restored) == list(loader)


def test_the_state_has_the_documented_keys_and_holds_the_pipe_before_the_service():
    loader = DataLoader2(
        numbers().sharding_filter().map(lambda x: x + 1), reading_service=InProcessReadingService()
    )
    next(iter(loader))
    state = loader.state_dict()
    assert set(state) == {
        *("serialized_datapipe", "reading_service_state", "randomness_state", "version", "iteration_state"),
        "checksums",
    }
    assert (state["version"], state["iteration_state"], state["reading_service_state"]) == (1, None, None)
    assert list(deserialize_datapipe(state["serialized_datapipe"])) == list(range(1, 7))
    assert list(loader._datapipe_before_reading_service_adapt) == list(range(1, 7))


def test_the_state_of_a_service_goes_to_its_restore():
    saved = DataLoader2(numbers(2), reading_service=Checkpointed())
    state = saved.state_dict()
    assert state["reading_service_state"] == b"state"
    restored = DataLoader2.from_state(state, Checkpointed())
    assert list(restored) == [0, 1]
    assert calls == ["restore b'state'", "begin", "end"]
    with pytest.raises(TypeError, match="Cannot restore from non-checkpointable reading service"):
        iter(DataLoader2.from_state(state, Recorder()))


def test_a_loaded_pipe_goes_through_the_adapters():
    state = DataLoader2(numbers().shuffle()).state_dict()
    loader = DataLoader2(None, Shuffle(False))
    loader.load_state_dict(state)
    assert list(loader) == list(range(6))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda state: [], TypeError, "dictionary"),
        (lambda state: {}, ValueError, "lacks 'serialized_datapipe', 'reading_service_state'"),
        (lambda state: {**state, "version": 99}, ValueError, "version 99, but this release reads version 1"),
        (lambda state: {**state, "iteration_state": {}}, ValueError, "saved inside an epoch"),
        (
            lambda state: {**state, "serialized_datapipe": pickle.dumps(3), "checksums": None},
            ValueError,
            "holds 3 where a datapipe",
        ),
    ],
)
def test_what_is_no_state_of_this_release_is_refused(change, error, words):
    state = DataLoader2(numbers()).state_dict()
    with pytest.raises(error, match=words):
        DataLoader2(None).load_state_dict(change(state))


def test_a_loader_without_a_pipe_or_already_read_says_what_is_wrong():
    with pytest.raises(RuntimeError, match="Please provide datapipe"):
        iter(DataLoader2(None))
    with pytest.raises(RuntimeError, match="no state to save"):
        DataLoader2(None).state_dict()
    loader = DataLoader2(numbers())
    state = loader.state_dict()
    list(loader)
    with pytest.raises(RuntimeError, match="iterator has already been created"):
        loader.load_state_dict(state)
    loader.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        loader.load_state_dict(state)


def test_a_state_of_the_layout_of_torchdata_0_9_is_taken():
    state = shuffled_loader(5).state_dict()
    old = {key: state[key] for key in ("serialized_datapipe", "reading_service_state", "randomness_state")}
    assert list(DataLoader2.from_state(old, InProcessReadingService())) == list(shuffled_loader(5))
    del old["randomness_state"]
    assert sorted(DataLoader2.from_state(old, None)) == list(range(20))


@pytest.mark.parametrize("service", [None, InProcessReadingService()])
@pytest.mark.parametrize("use", [list, len, DataLoader2.state_dict])
def test_a_loader_of_what_is_no_pipe_fails_when_it_is_used(service, use):
    loader = DataLoader2({"a": 1}, reading_service=service)
    with pytest.raises(
        TypeError, match=r"an IterDataPipe or a MapDataPipe, but got \{'a': 1\} of type dict; put"
    ):
        use(loader)
    loader.shutdown()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_workers": 2}, r"write reading_service=MultiProcessingReadingService\(num_workers=2\) instead"),
        ({"batch_size": 5}, r"write datapipe.batch\(5\).collate\(\) as the datapipe instead"),
        ({"shuffle": True}, r"write datapipe.shuffle\(\) as"),
        ({"nonsense": 1}, "unexpected keyword argument 'nonsense'$"),
    ],
)
def test_arguments_of_torchs_loader_are_refused_with_what_takes_their_place(arguments, words):
    with pytest.raises(TypeError, match=words):
        DataLoader2(numbers(), **arguments)


SERVICES = {
    "none": lambda: None,
    "in process": InProcessReadingService,
    "workers": lambda: MultiProcessingReadingService(num_workers=2),
}


def shuffled(items=40):
    return IterableWrapper(list(range(items))).shuffle().sharding_filter()


@pytest.mark.parametrize("service", SERVICES)
def test_a_state_is_taken_after_iter_as_long_as_no_item_was_asked_for(service):
    with DataLoader2(shuffled(), reading_service=SERVICES[service]()) as first:
        first.seed(5)
        next(iter(first))
        state = first.state_dict()
        expected = [list(first) for _ in range(2)]
    with DataLoader2(shuffled(), reading_service=SERVICES[service]()) as second:
        iterator = iter(second)
        second.load_state_dict(state)
        got = [list(iterator), list(second)]
        assert got == expected or service == "none"  # without a service the pipes have seeds of their own
        assert [sorted(epoch) for epoch in got] == [list(range(40))] * 2
        with pytest.raises(RuntimeError, match="already been created"):
            second.load_state_dict(state)


@pytest.mark.parametrize("service", SERVICES)
def test_a_state_that_is_taken_after_iter_brings_its_own_data(service):
    state = DataLoader2(IterableWrapper([1, 2, 3]).sharding_filter()).state_dict()
    with DataLoader2(
        IterableWrapper([7, 8]).sharding_filter(), reading_service=SERVICES[service]()
    ) as loader:
        iterator = iter(loader)
        loader.load_state_dict(state)
        assert list(iterator) == list(loader) == [1, 2, 3]


def test_a_damaged_state_leaves_the_epoch_that_was_begun_as_it_is():
    loader = DataLoader2(IterableWrapper([1, 2]))
    iterator = iter(loader)
    with pytest.raises(ValueError, match="not the state of a DataLoader2"):
        loader.load_state_dict({})
    assert list(iterator) == [1, 2]


def test_a_state_of_another_pipeline_says_that_it_replaces_the_loaders_own():
    state = DataLoader2(IterableWrapper([1, 2]).map(str).batch(2)).state_dict()
    loader = DataLoader2(IterableWrapper([1, 2]).filter(bool).batch(2))
    with pytest.warns(
        UserWarning, match="pipe 2 from the source on is Mapper where this loader has Filter.*from_state"
    ):
        loader.load_state_dict(state)
    assert list(loader) == [["1", "2"]]
    loader = DataLoader2(IterableWrapper([1, 2]))
    with pytest.warns(UserWarning, match="pipe 2 from the source on is Mapper where this loader has none"):
        loader.load_state_dict(state)


def test_a_function_of_another_programs_main_module_is_named_with_the_remedy(tmp_path):
    program = """
import pickle, sys
from torchdata.dataloader2 import DataLoader2
from torchdata.datapipes.iter import IterableWrapper
{function}
if sys.argv[1] == "save":
    pickle.dump(DataLoader2(IterableWrapper([1]).map(decode)).state_dict(), open("state", "wb"))
else:
    DataLoader2.from_state(pickle.load(open("state", "rb")), None)
"""
    (tmp_path / "train.py").write_text(program.format(function="def decode(x): return x"))
    (tmp_path / "other.py").write_text(program.format(function=""))
    subprocess.run([sys.executable, "train.py", "save"], cwd=tmp_path, check=True)
    done = subprocess.run([sys.executable, "other.py", "load"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "it names 'decode' of the program's own file (`__main__`)" in done.stderr
