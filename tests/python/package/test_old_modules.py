"""The deep import paths of torchdata 0.9 lead to the current modules."""

import importlib
import pickle
from typing import Any
from unittest.mock import patch

import pytest
from torchdata.dataloader2.graph._serialization import (
    attach_wrapper,
    deserialize_datapipe,
    extract_wrapper,
    serialize_datapipe,
)

from fresh_processes import run_python
from torchdata._engine.processes import shutdown
from torchdata._old_modules import OLD_MODULES
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.map import IterToMapConverter, SequenceWrapper


@pytest.mark.parametrize("old", sorted(OLD_MODULES))
def test_an_old_module_exports_names_that_have_moved(old: str) -> None:
    module, (_, homes) = importlib.import_module(old), OLD_MODULES[old]
    for name, (home, now) in homes.items():
        assert getattr(module, name) is getattr(importlib.import_module(home), now)
        assert name in dir(module)
    private = {name for name in homes if name.startswith("_") and not name.endswith("__")}
    assert module.__all__ == [name for name in homes if name not in private]


def test_an_unknown_name_in_an_old_module_raises_an_attribute_error_with_the_new_module() -> None:
    module = importlib.import_module("torchdata.datapipes.iter.util.cycler")
    with pytest.raises(AttributeError, match=r"'nothing'; its names are in torchdata\.datapipes\.iter$"):
        _ = module.nothing


def test_a_module_named_like_a_function_can_be_called_like_the_function() -> None:
    code = (
        "import torchdata.datapipes.utils.janitor, torchdata.datapipes.utils as utils, io\n"
        "stream = utils.StreamWrapper(io.BytesIO()); utils.janitor(stream); print(stream.closed)\n"
        "from torchdata.datapipes.utils.janitor import janitor; print(callable(janitor))"
    )
    assert run_python("-c", code).stdout == "True\nTrue\n"


@pytest.mark.parametrize(
    "name",
    [
        "torchdata._constants.default_timeout_in_s",
        "torchdata._constants.default_dl2_worker_join_timeout_in_s",
        "torchdata.dataloader2.graph.utils._find_replicable_branches",
        "torchdata.dataloader2.graph._serialization._IterDataPipeSerializationWrapper",
        "torchdata.dataloader2.graph._serialization._MapDataPipeSerializationWrapper",
        "torchdata.dataloader2.graph._serialization.attach_wrapper",
        "torchdata.dataloader2.graph._serialization.extract_wrapper",
        "torchdata.dataloader2.random._philox.PhiloxEngine",
        "torchdata.dataloader2.serialize_datapipe",
        "torchdata.dataloader2.dataloader2.serialize_datapipe",
        "torchdata.dataloader2.utils.dispatch._DummyIterDataPipe",
        "torchdata.datapipes.iter.TFRecordExample",
        "torchdata.datapipes.iter.TFRecordExampleSpec",
        "torchdata.datapipes.iter.load.online._get_proxies",
        "torchdata.datapipes.iter.util.cacheholder._hash_check",
        "torchdata.datapipes.utils.common.validate_pathname_binary_tuple",
    ],
)
def test_a_name_that_old_code_imports_or_patches_is_there_and_can_be_patched(name: str) -> None:
    module, _, attribute = name.rpartition(".")

    def now() -> Any:
        return getattr(importlib.import_module(module), attribute)

    before = now()
    with patch(name) as placeholder:
        assert now() is placeholder
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(name, "another")
            assert now() == "another"
        assert now() is placeholder
    assert now() is before


def test_a_name_that_was_not_set_is_not_deleted() -> None:
    module = importlib.import_module("torchdata._constants")
    with pytest.raises(AttributeError, match="default_timeout_in_s"):
        del module.default_timeout_in_s
    assert module.default_timeout_in_s == 1800


def test_the_time_that_workers_have_to_join_is_patched_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = []
    wait = shutdown.wait_for_all
    monkeypatch.setattr(
        shutdown,
        "wait_for_all",
        lambda children, seconds, *rest: passed.append(seconds) or wait(children, seconds, *rest),
    )
    monkeypatch.setattr("torchdata._constants.default_dl2_worker_join_timeout_in_s", 1000.0)
    loader = DataLoader2(IterableWrapper([0]), reading_service=MultiProcessingReadingService(1))
    list(loader)
    loader.shutdown()
    assert 900 < passed[0] <= 1000


def test_the_state_of_a_loader_is_made_by_a_patched_serialize_datapipe() -> None:
    with patch("torchdata.dataloader2.dataloader2.serialize_datapipe", return_value=b"bytes"):
        assert DataLoader2(IterableWrapper([0])).state_dict()["serialized_datapipe"] == b"bytes"


def test_a_pickled_wrapper_is_restored_as_its_pipe() -> None:
    number = 2
    pipe = IterableWrapper(range(3)).map(lambda n: n * number).set_length(3)
    wrapped = pickle.loads(pickle.dumps(attach_wrapper(pipe)))
    assert (list(wrapped), len(wrapped)) == ([0, 2, 4], 3)
    assert extract_wrapper(attach_wrapper(attach_wrapper(pipe))) is pipe
    by_index = pickle.loads(pickle.dumps(attach_wrapper(SequenceWrapper("abc").map(lambda c: c * number))))
    assert (by_index[1], len(by_index)) == ("bb", 3)
    assert list(deserialize_datapipe(serialize_datapipe(attach_wrapper(pipe)))) == [0, 2, 4]
    assert attach_wrapper(3) == extract_wrapper(3) == 3
    with pytest.raises(TypeError, match="instance doesn't have valid length$"):
        len(attach_wrapper(IterableWrapper("abc").filter(str)))


def test_the_old_generator_draws_from_the_new_one_with_a_warning() -> None:
    from torchdata.dataloader2.random._philox import PhiloxEngine

    with pytest.warns(DeprecationWarning, match="use torchdata.dataloader2.random.SeedGenerator"):
        engine = PhiloxEngine(7)
    copy = engine.clone()
    first = [engine.generate() for _ in range(4)]
    assert [copy.generate() for _ in range(4)] == first
    assert [engine.seed(7).generate(), engine.generate()] == first[:2]
    assert all(0 <= number < 2**64 for number in first)
    spawned = [engine.spawn(index).generate() for index in (0, 1, 0)]
    assert spawned[0] == spawned[2] != spawned[1]


@pytest.mark.filterwarnings("ignore:PhiloxEngine is deprecated")
def test_the_old_generator_takes_its_seed_early_or_late_and_any_integer() -> None:
    from torchdata.dataloader2.random._philox import PhiloxEngine

    for seed in (1, -1, 2**64 + 1, 2**70):
        engines = PhiloxEngine().seed(seed), PhiloxEngine(seed), PhiloxEngine(seed).clone()
        assert len({engine.generate() for engine in engines}) == 1
    with pytest.raises(AssertionError, match="Please provide seed to PhiloxEngine: call its `seed`"):
        PhiloxEngine().generate()
    assert PhiloxEngine(2**64 + 1).generate() == PhiloxEngine(1).generate() != PhiloxEngine(-1).generate()
    with pytest.raises(AssertionError, match="Expected a non-negative value"):
        PhiloxEngine().spawn(-1)
    with pytest.raises(AssertionError, match="Please provide seed"):
        PhiloxEngine().spawn(0)


def test_the_keys_of_a_state_are_found_by_their_names() -> None:
    from torchdata.dataloader2 import dataloader2 as module

    state = DataLoader2(IterableWrapper([0])).state_dict()
    for name in ("SERIALIZED_DATAPIPE_KEY_NAME", "READING_SERVICE_STATE_KEY_NAME", "RANDOMNESS_STATE_KEY_NAME"):
        assert getattr(module, name) in state


def test_a_map_that_old_code_loads_on_its_own_can_be_read() -> None:
    class Squares(IterToMapConverter):
        def _load_map(self) -> None:
            super()._load_map()
            self._map = {key: value**2 for key, value in self._map.items()}

    pipe = Squares(IterableWrapper([(1, 2), (3, 4)]))
    assert (pipe[3], len(pipe)) == (16, 2)
    plain = IterToMapConverter(IterableWrapper([(1, 2)]))
    plain._load_map()
    assert plain._map == {1: 2}
