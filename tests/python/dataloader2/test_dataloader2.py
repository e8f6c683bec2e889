"""Epochs, `limit`, states and shutdown of DataLoader2 work alike with all reading services."""

import gc
import io
import os
import threading

import pytest

from programs import output_of
from refusals import refuses
from torchdata.dataloader2 import (
    DataLoader2,
    DataLoader2Iterator,
    InProcessReadingService,
    PauseIteration,
    ReadingServiceInterface,
)
from torchdata.dataloader2.adapter import Adapter, Shuffle
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.utils import StreamWrapper

calls: list[str] = []


@pytest.fixture(autouse=True)
def no_calls():
    gc.collect()  # Loaders of earlier tests are collected first, so that they add no calls to the list.
    calls.clear()


class Recorder(ReadingServiceInterface):
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


class Failing(IterDataPipe):
    def __init__(self, at=2):
        self.at = at

    def __iter__(self):
        for i in range(4):
            if i == self.at:
                raise KeyError(f"item {i}")
            yield i


def loader_of(pipe, *fails):
    return DataLoader2(pipe, reading_service=Recorder(*fails))


def numbers(count=6):
    return IterableWrapper(range(count))


def test_the_service_is_called_once_at_the_beginning_and_end_of_each_epoch():
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


def test_errors_during_the_shutdown_never_hide_the_first_error():
    loader = loader_of(Failing(), "end", "finalize")

    def use():
        with loader:
            list(loader)

    with pytest.raises(KeyError, match="item 2") as caught:
        use()
    notes = "\n".join(caught.value.__notes__)
    assert "ending the epoch failed, too: OSError('failed in end')" in notes
    assert "shutting the loader down failed, too: OSError('failed in finalize')" in notes


def test_unknown_attributes_are_read_from_the_pipelines_iterator():
    loader = DataLoader2(Failing(at=9))
    iterator = iter(loader)
    assert isinstance(iterator, DataLoader2Iterator)
    assert next(iterator) == 0
    assert iterator.gi_frame is not None  # The loader's iterator has the attributes of the pipe's generator.
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
    iterator = iter(loader)
    iterator.limit(2)
    assert list(iterator) == [0, 1]
    assert list(loader) == list(range(8)), "a new epoch is not paused"


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
            return Steps()  # `Steps` raises a StopIteration, and can nevertheless be read further.

    loader = DataLoader2(Pausing(), reading_service=Direct())
    iterator = iter(loader)
    assert list(iterator) == [1]
    assert list(iterator) == [2]
    assert calls == ["begin", "end"]


def test_a_service_that_cannot_pause_is_warned_about():
    iterator = iter(loader_of(numbers()))
    with pytest.warns(UserWarning, match="Recorder: ReadingService doesn't support `limit`"):
        iterator.limit(1)
    with pytest.warns(UserWarning, match="Recorder: ReadingService doesn't support `pause`"):
        assert next(iterator) == 0
    with pytest.warns(UserWarning, match="Recorder: ReadingService doesn't support `resume`"):
        iterator.resume()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_pauses_and_resumes_by_the_names_of_0_9(workers):
    with DataLoader2(numbers().sharding_filter(), num_workers=workers) as loader:
        iterator = iter(loader)
        head = [next(iterator)]
        loader._pause()
        assert list(iterator) == []
        loader._resume()
        rest = list(iterator)
        assert rest
        assert head + rest == list(loader)
        with pytest.warns(UserWarning, match="not paused"):
            loader._resume()


def test_after_shutdown_nothing_can_be_read():
    loader = loader_of(numbers())
    iterator = iter(loader)
    next(iterator)
    for _ in range(2):
        loader.shutdown()
    assert calls == ["initialize", "begin", "end", "finalize"]
    with pytest.raises(RuntimeError, match="has already been shut down; make another$"):
        iter(loader)
    with pytest.raises(RuntimeError, match="shut down"):
        next(iterator)


def test_a_deleted_loader_shuts_down():
    loader = loader_of(numbers())
    next(iter(loader))
    del loader
    gc.collect()
    assert calls == ["initialize", "begin", "end", "finalize"]


def test_a_forked_child_does_not_change_the_service():
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
    assert output_of(EXITING) == "finalized\n"


def test_a_pipe_that_cannot_be_copied_is_named_with_its_attribute():
    pipe, service = Failing(), Recorder()
    pipe.lock = [StreamWrapper(io.BufferedReader(io.BytesIO()))]
    with pytest.raises(TypeError, match=r"Failing cannot be copied: its attribute 'lock' holds \[StreamWrapper"):
        DataLoader2(pipe.map(str))
    service.lock = threading.Lock()
    with pytest.raises(TypeError, match="Recorder cannot be copied: its attribute 'lock'"):
        DataLoader2(numbers(), reading_service=service)


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


def test_an_adapter_may_turn_any_object_into_a_pipe_and_other_objects_are_refused():
    assert list(DataLoader2(3, numbers)) == [0, 1, 2]
    loader = DataLoader2(5, [])
    with pytest.raises(TypeError, match="an IterDataPipe or a MapDataPipe, but got 5 of type int; put"):
        list(loader)
    loader.shutdown()


test_wrong_arguments_are_refused = refuses(
    (lambda: DataLoader2(numbers(), 5), TypeError, "takes adapters.* got 5"),
    (lambda: DataLoader2(numbers(), [Shuffle]), TypeError, "takes adapters.* got <class"),
    (lambda: DataLoader2(numbers(), None, Recorder), TypeError, "instance of a ReadingServiceInterface .* got <class"),
    (lambda: DataLoader2(numbers(), lambda pipe: None), TypeError, "an adapter must return the pipe to read, .*None"),
    (lambda: DataLoader2({"a": 1}), TypeError, "an IterDataPipe or a MapDataPipe, but got {'a': 1} of type dict; put"),
    (
        lambda: DataLoader2("ab", reading_service=InProcessReadingService()),
        TypeError,
        "an IterDataPipe or a MapDataPipe, but got 'ab' of type str; put",
    ),
    (lambda: DataLoader2(numbers(), prefetch_factor=2), TypeError, r"\(num_workers, worker_prefetch_cnt=2\) instead"),
    (lambda: DataLoader2(numbers(), batch_size=5), TypeError, r"write datapipe.batch\(5\).collate\(\) as the datapipe"),
    (
        lambda: DataLoader2(numbers(), nonsense=1),
        TypeError,
        "unexpected keyword argument 'nonsense'; it takes datapipe, datapipe_adapter_fn, reading_service, "
        "num_workers, splits, stats, stall_warning, wait_warning$",
    ),
    (lambda: iter(DataLoader2(numbers())).limit(0), ValueError, "limit: num_batches must be"),
    (lambda: iter(DataLoader2(numbers())).limit(1.5), TypeError, "limit: num_batches must be"),
    (lambda: iter(DataLoader2(numbers())).limit(True), TypeError, "limit: num_batches must be"),
)
