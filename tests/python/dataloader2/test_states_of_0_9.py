"""A state that torchdata 0.9.0 saved with torch 2.13 and Python 3.11 restarts the epoch with one warning.

The tests load pickled states of loaders over 20 numbers, usually saved after three items with seed 5.
"""

import pickle
import warnings
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from resuming import begun, continued, epochs_of, resumed
from torchdata.dataloader2 import (
    DataLoader2,
    InProcessReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
    describe,
)
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.map import SequenceWrapper

FOLDER = Path(__file__).parents[1] / "data" / "states_of_0_9"
NAMES = sorted(path.stem for path in FOLDER.iterdir())
WORDS = "saved by torchdata 0.9, which saves no position inside an epoch: the epoch restarts"

SERVICES: dict[str, Any] = {
    "in_process": InProcessReadingService,
    "workers": lambda: MultiProcessingReadingService(2),
    "dispatching": lambda: MultiProcessingReadingService(2),
    "sequential": lambda: SequentialReadingService(MultiProcessingReadingService(2)),
}


def state_of(name: str) -> dict[str, Any]:
    state: dict[str, Any] = pickle.loads((FOLDER / f"{name}.pkl").read_bytes())
    return state


def pipe_of(name: str) -> Any:
    numbers = list(range(20))
    if name == "dispatching":
        return IterableWrapper(numbers).sharding_round_robin_dispatch()
    if name == "map_pipe":
        return SequenceWrapper(numbers).shuffle()
    if name == "cycled":
        return IterableWrapper(numbers).cycle(2).enumerate().in_memory_cache()
    return IterableWrapper(numbers).shuffle(buffer_size=8).sharding_filter().map(str)


def service_of(name: str) -> Any:
    return SERVICES.get(name, lambda: None)()


@pytest.mark.parametrize(("name", "allow_pickle"), [*zip(NAMES, cycle([False, True]), strict=False)])
def test_a_loader_with_its_own_pipe_restarts_the_epoch_with_the_seed_of_the_state(
    name: str, allow_pickle: bool
) -> None:
    state = state_of(name)
    expected = epochs_of(begun(DataLoader2(pipe_of(name), reading_service=service_of(name)), seed=5))
    with (
        DataLoader2(pipe_of(name), reading_service=service_of(name)) as loader,
        warnings.catch_warnings(record=True) as shown,
    ):
        warnings.simplefilter("always")
        loader.load_state_dict(state, allow_pickle=allow_pickle)
        epochs = [list(loader) for _ in range(2)]
    assert [WORDS in str(warning.message) for warning in shown] == [True]
    assert shown[0].filename == __file__
    if state["randomness_state"][0] is None:
        assert [sorted(epoch) for epoch in epochs] == [sorted(epoch) for epoch in expected]
    else:
        assert epochs == expected
    assert "seed" in describe(state)


@pytest.mark.parametrize(
    ("name", "way"), [*zip(sorted({*NAMES} - {"cycled"}), cycle(["from_state", "no pipe"]), strict=False)]
)
def test_the_pipe_of_the_state_is_read_if_the_loader_has_none(name: str, way: str) -> None:
    pytest.importorskip("torch.utils.data.datapipes", reason="unpickling the saved pipe needs torch's classes")
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        if way == "from_state":
            loader = DataLoader2.from_state(state_of(name), service_of(name))
        else:
            loader = DataLoader2(None, reading_service=service_of(name))
            loader.load_state_dict(state_of(name))
        with loader:
            epochs = [sorted(loader, key=int) for _ in range(2)]
    assert [WORDS in str(warning.message) for warning in shown] == [True]
    assert shown[0].filename == __file__
    assert [list(map(int, epoch)) for epoch in epochs] == [list(range(20))] * 2


def test_a_pipe_that_has_other_attributes_now_is_named_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"InMemoryCacheHolder lacks its argument 'size'\. Make a DataLoader2 with"):
        DataLoader2.from_state(state_of("cycled"), None)


def test_a_state_of_a_resumed_loader_resumes_as_any_other() -> None:
    loader = DataLoader2(pipe_of("plain"))
    with pytest.warns(UserWarning, match=WORDS):
        loader.load_state_dict(state_of("in_process"))
    head, state, rest = continued(loader, 4)
    assert resumed(DataLoader2(pipe_of("plain")), state) == [rest]
    assert sorted(map(int, head + rest)) == list(range(20))


def test_a_state_without_random_numbers_of_an_earlier_release_is_accepted() -> None:
    state = state_of("in_process")
    del state["randomness_state"]
    with DataLoader2(pipe_of("plain")) as loader:
        with pytest.warns(UserWarning, match=WORDS):
            loader.load_state_dict(state)
        assert sorted(loader, key=int) == list(map(str, range(20)))


class Boom:
    opened = False

    def __reduce__(self) -> Any:
        return setattr, (Boom, "opened", True)


def test_pickles_of_a_state_other_than_its_pipe_are_never_loaded() -> None:
    state = state_of("plain")
    seed, due, *_ = state["randomness_state"]
    state["randomness_state"] = (seed, due, pickle.dumps(Boom()), pickle.dumps(Boom()))
    with DataLoader2(pipe_of("plain")) as loader:
        with pytest.warns(UserWarning, match=WORDS):
            loader.load_state_dict(state)
        assert len(list(loader)) == 20
    services = SequentialReadingService(InProcessReadingService())
    state["reading_service_state"] = pickle.dumps([Boom()])
    with DataLoader2(pipe_of("plain"), reading_service=services) as loader:
        with pytest.warns(UserWarning, match=WORDS):
            loader.load_state_dict(state)
        with pytest.raises(ValueError, match="not the state of a SequentialReadingService"):
            iter(loader)
    assert not Boom.opened
