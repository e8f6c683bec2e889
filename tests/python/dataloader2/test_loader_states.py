"""The states of a loader have the documented contents and restore the loader."""

import copy
import pickle
import subprocess
import sys
import threading
from typing import Any, ClassVar

import pytest

from pressing import SavingAtCall
from resuming import begun, resumed, stopped
from torchdata.dataloader2 import (
    CheckpointableReadingServiceInterface,
    DataLoader2,
    InProcessReadingService,
    MultiProcessingReadingService,
    ReadingServiceInterface,
)
from torchdata.dataloader2.adapter import Shuffle
from torchdata.dataloader2.graph.serialization import deserialize_datapipe
from torchdata.datapipes.iter import IterableWrapper


class Stateless(ReadingServiceInterface):
    def initialize(self, datapipe):
        return datapipe


class Checkpointed(Stateless, CheckpointableReadingServiceInterface):
    restored: ClassVar[list[bytes]] = []

    def checkpoint(self):
        return b"state"

    def restore(self, datapipe, serialized_state):
        self.restored.append(serialized_state)
        return datapipe


def numbers(count=6):
    return IterableWrapper(range(count))


def shuffled_loader(seed=None):
    loader = DataLoader2(numbers(20).shuffle(), reading_service=InProcessReadingService())
    if seed is not None:
        loader.seed(seed)
    return loader


def test_a_loader_resumes_from_its_state_between_two_epochs():
    loader = shuffled_loader(5)
    list(loader)
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    second_epoch = list(loader)

    restored = DataLoader2.from_state(state, InProcessReadingService())
    assert restored.state_dict() == state
    assert list(restored) == second_epoch


@pytest.mark.parametrize("seed", [None, 5])
def test_the_epoch_of_the_state_can_be_repeated_with_and_without_a_seed(seed):
    loader = shuffled_loader(seed)
    before = loader.state_dict()
    epoch = list(loader)
    restored = DataLoader2.from_state(loader.state_dict(), InProcessReadingService())
    restored._restore_checkpoint_beginning_of_epoch()
    assert list(restored) == epoch
    restored = DataLoader2.from_state(before, InProcessReadingService())
    assert list(restored) == epoch


def test_the_state_has_the_documented_keys_and_holds_the_pipe_before_the_service():
    loader = DataLoader2(numbers().sharding_filter().map(lambda x: x + 1), reading_service=InProcessReadingService())
    next(iter(loader))
    state = loader.state_dict()
    assert set(state) == {
        *("serialized_datapipe", "reading_service_state", "randomness_state", "version", "iteration_state"),
        *("checksums", "pipeline"),
    }
    assert (state["version"], state["reading_service_state"]) == (5, None)
    assert (state["iteration_state"]["received"], state["iteration_state"]["ended"]) == (1, False)
    assert list(deserialize_datapipe(state["serialized_datapipe"])) == list(range(1, 7))
    assert list(loader._datapipe_before_reading_service_adapt) == list(range(1, 7))


def test_the_state_of_a_service_is_passed_to_its_restore_method():
    saved = DataLoader2(numbers(2), reading_service=Checkpointed())
    state = saved.state_dict()
    assert state["reading_service_state"] == b"state"
    restored = DataLoader2.from_state(state, Checkpointed())
    Checkpointed.restored.clear()
    assert list(restored) == [0, 1]
    assert Checkpointed.restored == [b"state"]
    with pytest.raises(TypeError, match="Cannot restore from non-checkpointable reading service"):
        iter(DataLoader2.from_state(state, Stateless()))


def test_the_adapters_are_applied_to_a_loaded_pipe():
    state = DataLoader2(numbers().shuffle()).state_dict()
    loader = DataLoader2(None, Shuffle(False))
    loader.load_state_dict(state)
    assert list(loader) == list(range(6))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda state: [], TypeError, "dictionary"),
        (lambda state: {}, ValueError, "lacks 'serialized_datapipe', 'reading_service_state'"),
        (lambda state: {**state, "version": 99}, ValueError, "version 99, but this release reads version 5"),
        (lambda state: {**state, "iteration_state": {}}, ValueError, "damaged in its field 'iteration_state'"),
        (
            lambda state: {**state, "serialized_datapipe": pickle.dumps(3), "checksums": None},
            ValueError,
            "holds 3 where a datapipe",
        ),
    ],
)
def test_states_of_another_release_are_refused(change, error, words):
    state = DataLoader2(numbers()).state_dict()
    with pytest.raises(error, match=words):
        DataLoader2(None).load_state_dict(change(state))


def test_an_error_explains_that_a_loader_has_no_pipe_or_was_already_read():
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


SERVICES = {
    "none": lambda: None,
    "in process": InProcessReadingService,
    "workers": lambda: MultiProcessingReadingService(num_workers=2),
}


def shuffled(items=40):
    return IterableWrapper(list(range(items))).shuffle().sharding_filter()


@pytest.mark.parametrize("service", SERVICES)
def test_a_state_can_be_loaded_after_iter_until_an_item_is_requested(service):
    with begun(DataLoader2(shuffled(), reading_service=SERVICES[service]())) as first:
        reading = iter(first)
        next(reading)
        state = first.state_dict()
        expected = [list(reading), list(first)]
    with DataLoader2(shuffled(), reading_service=SERVICES[service]()) as second:
        iterator = iter(second)
        second.load_state_dict(state)
        assert [list(iterator), list(second)] == expected
        with pytest.raises(RuntimeError, match="already been created"):
            second.load_state_dict(state)


@pytest.mark.parametrize("service", SERVICES)
def test_a_state_of_other_data_is_refused_after_iter_and_the_epoch_continues(service):
    state = DataLoader2(IterableWrapper([1, 2, 3]).sharding_filter()).state_dict()
    with DataLoader2(IterableWrapper([7, 8]).sharding_filter(), reading_service=SERVICES[service]()) as loader:
        iterator = iter(loader)
        with pytest.raises(ValueError, match=r"pipe 1 .*IterableWrapper, has iterable=list\(1, 2, 3\) in the state"):
            loader.load_state_dict(state)
        with pytest.raises(ValueError, match="not the state of a DataLoader2"):
            loader.load_state_dict({})
        assert list(iterator) == [7, 8]


def test_a_state_of_another_pipeline_is_refused_with_the_difference_unless_strict_is_false():
    state = DataLoader2(IterableWrapper([1, 2]).map(str).batch(2)).state_dict()
    loader = DataLoader2(IterableWrapper([1, 2]).filter(bool).batch(2))
    with pytest.raises(ValueError, match="pipe 2 .* is Mapper in the state and Filter in this loader.*strict=False"):
        loader.load_state_dict(state)
    loader.load_state_dict(state, strict=False)
    assert list(loader) == [[1, 2]]
    with pytest.raises(ValueError, match="Batcher, has drop_last=False in the state and True in this loader"):
        DataLoader2(IterableWrapper([1, 2]).map(str).batch(2, drop_last=True)).load_state_dict(state)
    with pytest.raises(ValueError, match="Mapper, has fn=builtins.str in the state and builtins.repr in this"):
        DataLoader2(IterableWrapper([1, 2]).map(repr).batch(2)).load_state_dict(state)


def test_an_error_names_a_function_of_another_program_s_main_module_and_the_remedy(tmp_path):
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


class Held:
    begins, entered, release, has_left = (threading.Event() for _ in range(4))


def held_once(item: int) -> int:
    if Held.begins.is_set():
        Held.begins.clear()
        Held.entered.set()
        Held.release.wait(120)
        Held.has_left.set()
    return item


@pytest.mark.parametrize(
    "service", [InProcessReadingService(prefetch_cnt=3), None], ids=["a service's thread", "a pipe's"]
)
def test_a_thread_ends_before_another_state_is_loaded(service: Any) -> None:
    def loader() -> DataLoader2[Any]:
        pipe = IterableWrapper(range(40)).map(held_once).enumerate()
        return DataLoader2(pipe if service else pipe.prefetch(3), reading_service=copy.copy(service))

    head, state = stopped(loader(), 5)
    assert head == [(i, i) for i in range(5)]
    with loader() as second:
        Held.begins.set()
        iter(second)
        assert Held.entered.wait(120)
        threading.Timer(0.1, Held.release.set).start()
        second.load_state_dict(state)
        assert Held.has_left.is_set()
        iterator = iter(second)
        assert next(iterator) == (5, 5)
        assert next(iterator) == (6, 6)
        state = second.state_dict()
    for event in (Held.entered, Held.release, Held.has_left):
        event.clear()
    assert resumed(loader(), state) == [[(i, i) for i in range(7, 40)]]


@pytest.mark.parametrize("before", ["nothing", "an epoch", "a loaded state"])
@pytest.mark.parametrize(
    ("options", "step"),
    [({}, 61), ({"splits": 3}, 1801), ({"num_workers": 2}, 601), ({"num_workers": 2, "splits": 3}, 601)],
)
def test_a_state_saved_while_an_epoch_begins_equals_the_state_before_the_epoch(
    options: dict[str, int], step: int, before: str
) -> None:
    def made() -> DataLoader2[Any]:
        return begun(DataLoader2(numbers(9).shuffle().sharding_filter(), **options))

    with made() as loader:
        epochs = [list(loader) for _ in range(4)]
    _, inside = stopped(made(), 4)
    expected = {"nothing": epochs, "an epoch": epochs[1:], "a loaded state": [epochs[0][4:], *epochs[1:]]}[before]
    number, states = 0, 0
    while True:
        number += step // 3 if before == "an epoch" else step
        with made() as loader:
            if before == "an epoch":
                list(loader)
            elif before == "a loaded state":
                loader.load_state_dict(inside)
            saving = SavingAtCall(loader, number)
            sys.setprofile(saving)
            iter(loader)
            sys.setprofile(None)
        if saving.state is None:
            break
        states += 1
        assert resumed(made(), saving.state, 2) == expected[:2], f"at call {number}"
    assert states >= 2
