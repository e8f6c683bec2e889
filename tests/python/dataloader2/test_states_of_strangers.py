"""Untrusted states are unpickled only with permission, and all their numbers are checked."""

import copy
import os
import pickle
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import numpy.random  # The state contains NumPy's random generator only if NumPy was imported before.
import pytest

from pipes_table import IGNORES_WARNINGS_OF_PIPES, ROWS, seed
from resuming import begun, continued, resumed, with_state
from torchdata import _plain_pickles
from torchdata._plain_pickles import seal, unseal
from torchdata.dataloader2 import (
    DataLoader2,
    InProcessReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
    describe,
)
from torchdata.dataloader2.state.layout import checksums, dump, parse
from torchdata.datapipes._pipe.graph.graph import graph_of
from torchdata.datapipes.iter import ArrowReader, FileOpener, IterableWrapper
from torchdata.datapipes.state import load_state, save_state

torch = pytest.importorskip("torch", reason="some of the tested objects belong to torch")

pytestmark = IGNORES_WARNINGS_OF_PIPES

TARGETS = "loader_value,loader_bytes,graph_value,plain_pickle"

ITEMS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 0, 7]

#: Names of rows in `pipes_table` with states that only pickle can encode.
ONLY_PICKLED = {"sampler"}


class Boom:
    opened: ClassVar[list[str]] = []

    def __reduce__(self):
        return Boom.opened.append, ("opened",)


@pytest.fixture(autouse=True)
def nothing_opened():
    Boom.opened.clear()
    yield
    assert Boom.opened == []


def resealed(state, **changes):
    state = {**state, **changes}
    return {**state, "checksums": checksums(state)}


def loader_of(pipe, workers=0):
    service = MultiProcessingReadingService(workers) if workers else InProcessReadingService()
    return DataLoader2(pipe, reading_service=service)


def shuffled():
    return IterableWrapper(range(40)).shuffle(buffer_size=8).sharding_filter().map(str)


def saved(items=2, workers=0, pipe=None):
    return continued(begun(loader_of(shuffled() if pipe is None else pipe, workers)), items)[1:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_is_written_unchanged(workers):
    with begun(loader_of(IterableWrapper(range(9)).sharding_filter(), workers)) as loader:
        states = [loader.state_dict()]
        for _ in loader:
            states.append(loader.state_dict())
        states.append(loader.state_dict(with_pipe=False))
    for state in states:
        assert dump(parse(state)) == state


def test_describe_opens_no_generator_and_refuses_other_objects():
    state, _ = saved()
    assert describe(state).startswith("inside an epoch, after 2 items")
    seed, applies, *_ = state["randomness_state"]
    bad = resealed(state, randomness_state=(seed, applies, pickle.dumps(Boom()), pickle.dumps(Boom())))
    for use in (describe, lambda state: DataLoader2(IterableWrapper([1])).load_state_dict(state)):
        with pytest.raises(ValueError, match="damaged in its field 'randomness_state'"):
            use(bad)


def test_a_loader_resumes_without_unpickling(monkeypatch):
    for workers in (2, 0):
        state, rest = saved(workers=workers)
        monkeypatch.setattr("torchdata._plain_pickles.pickle", SimpleNamespace(Pickler=pickle.Pickler))
        monkeypatch.setattr("torchdata.dataloader2._checkpointing.unpickled", None)
        assert resumed(loader_of(shuffled(), workers), state, allow_pickle=False) == [rest]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pickle_in_a_pipes_state_is_refused_and_the_pipe_is_named(workers, often):
    def pipe():
        return IterableWrapper(range(20)).map(Decimal).shuffle(buffer_size=8).sharding_filter().map(str)

    state, _ = saved(workers=workers, pipe=pipe(), items=6)
    with loader_of(pipe(), workers) as loader:
        with pytest.raises(ValueError, match="state of Shuffler contains values that need pickle.*allow_pickle=True"):
            loader.load_state_dict(state, allow_pickle=False)
        loader.load_state_dict(state)


def test_the_pipe_of_a_state_is_not_unpickled_without_permission():
    state, _ = saved()
    state = resealed(state, serialized_datapipe=pickle.dumps(Boom()))
    with pytest.raises(ValueError, match="the pipe of this loader state is a pickle.*Make a DataLoader2 with the pipe"):
        DataLoader2(None).load_state_dict(state, allow_pickle=False)


def test_states_of_services_in_a_sequence_are_not_pickled():
    class Kept(InProcessReadingService):
        def checkpoint(self):
            return b"kept"

        def restore(self, datapipe, serialized_state):
            assert serialized_state == b"kept"
            return self.initialize(datapipe)

    def loader():
        return DataLoader2(
            IterableWrapper(range(5)), reading_service=SequentialReadingService(InProcessReadingService(), Kept())
        )

    again = loader()
    again.load_state_dict(loader().state_dict(), allow_pickle=False)
    assert list(again) == [0, 1, 2, 3, 4]
    bad = resealed(loader().state_dict(), reading_service_state=pickle.dumps(Boom()))
    again = loader()
    again.load_state_dict(bad)
    with pytest.raises(ValueError, match="'reading_service_state'"):
        iter(again)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_pipe_over_plain_items_saves_and_loads_without_pickle(row):
    for taken in (0, 2, 5):
        pipe = row.build(lambda: IterableWrapper(ITEMS), **row.example)
        seed(pipe, 7)
        iterator = iter(pipe)
        for _ in range(taken):
            next(iterator, None)
        again = row.build(lambda: IterableWrapper(ITEMS), **row.example)
        try:
            state = save_state(pipe)
        except TypeError:  # User-defined pipes that cannot be saved raise this error.
            return
        if row.name in ONLY_PICKLED:
            with pytest.raises(ValueError, match="values that need pickle"):
                load_state(again, state, allow_pickle=False)
            return
        load_state(again, state, allow_pickle=False)
        assert repr(list(again)) == repr(list(iterator))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_error_names_the_pipe_whose_loaded_value_has_another_type_or_is_not_a_count(row):
    pipe = row.build(lambda: IterableWrapper(ITEMS), **row.example)
    next(iter(pipe), None)
    try:
        state = save_state(pipe)
    except TypeError:
        return
    del state["checksums"]
    for member, entry in zip(graph_of(pipe).pipes, state["pipes"], strict=True):
        if not type(member).__module__.startswith("torchdata."):
            continue
        for each in member._declared:
            value = entry.get("state", {}).get(each.key)
            has_type = isinstance(each.begins, (type, bool, int))
            if not has_type or type(value) not in (bool, int, list, dict):
                continue
            for bad in ("x", -1, 1 << 64) if type(value) is int else ("x",):
                entry["state"][each.key] = bad
                words = f"the state of {type(member).__name__} is damaged.*{each.key} is "
                with pytest.raises(ValueError, match=words):
                    load_state(row.build(lambda: IterableWrapper(ITEMS), **row.example), state, allow_pickle=False)
            entry["state"][each.key] = value


def disk_cache(folder):
    pipe = IterableWrapper(["a", "b"]).on_disk_cache(filepath_fn=lambda name: str(folder / name))
    return pipe.map(lambda name: (name, name.encode())).end_caching(same_filepath_fn=True)


def table(_folder):
    return ArrowReader(pytest.importorskip("pyarrow").table({"a": [1, 2, 3]}))


@pytest.mark.parametrize(
    ("build", "damage", "words"),
    [
        (disk_cache, {"section": {"records": []}}, "the state of EndOnDiskCacheHolder is damaged.*section"),
        (lambda _: IterableWrapper(["ab", "cd"]).shuffled_flatmap(buffer_size=2), {"next": 2}, "damaged.*next is"),
        (lambda _: IterableWrapper([("a", ["b", "c"])]).readlines(), {"point": {"skip": -1}}, "damaged.*point is"),
        (lambda _: IterableWrapper([1]).concat(IterableWrapper([2])), {"current": 2}, "current is.*another copy"),
        (lambda _: IterableWrapper([1]).threadpool_map(str), {"tasks": [("error", None)]}, "damaged.*tasks"),
        (table, {"part": 1 << 40}, "the state of ArrowReader was saved in"),
    ],
)
def test_damage_that_is_found_when_an_iteration_begins_names_its_pipe(build, damage, words, tmp_path):
    pipe = build(tmp_path)
    next(iter(pipe))
    state = copy.deepcopy(save_state(pipe))
    del state["checksums"], pipe
    state["pipes"][-1]["state"] = damage if build is disk_cache else state["pipes"][-1]["state"] | damage
    again = build(tmp_path)
    with pytest.raises(ValueError, match=words):
        load_state(again, state)
        list(again)


def test_a_text_file_is_resumed_and_only_read(tmp_path):
    path = tmp_path / "lines"
    path.write_text("a\nb\nc\n")

    def lines():
        return FileOpener(IterableWrapper([str(path)]), mode="t").readlines(return_path=False).shuffle(buffer_size=1)

    pipe = lines()
    iterator = iter(pipe)
    next(iterator)
    state = save_state(pipe)
    again = lines()
    load_state(again, state, allow_pickle=False)
    assert list(again) == list(iterator)
    del state["checksums"]
    bad = copy.deepcopy(state)
    found = next(entry for entry in bad["pipes"] if entry["type"] == "LineReader")["state"]
    held = _plain_pickles.loads_plain(found["__nested__"])
    held["pair"][1]._recipe.mode = "w"
    found["__nested__"] = _plain_pickles.dumps_plain(held)
    with pytest.raises(ValueError, match="state of LineReader is damaged.*in mode 'w'"):
        load_state(lines(), bad, allow_pickle=False)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match="state of LineReader is damaged.*something else"):
        load_state(lines(), state, allow_pickle=False)


@pytest.mark.parametrize(
    "value",
    [
        [1, {"a": {2, 3}}, (b"x", [None, 2.5])],
        np.arange(6, dtype=">i2").reshape(2, 3),
        np.float32(2.5),
        np.array(3),
        torch.arange(6).reshape(2, 3),
        torch.zeros(2, dtype=torch.bfloat16),
        torch.zeros(0, 3),
        torch.tensor(True),
    ],
    ids=range(8),
)
def test_plain_pickles_hold_numbers_and_containers(value):
    again = _plain_pickles.loads_plain(_plain_pickles.dumps_plain(value))
    assert type(again) is type(value)
    assert repr(again) == repr(value)
    assert getattr(again, "dtype", None) == getattr(value, "dtype", None)


def test_plain_pickles_hold_nothing_else():
    for value in (Decimal(1), np.array([object()]), np.array(["a", "b"]), [Boom]):
        assert _plain_pickles.dumps_plain(value) is None


@pytest.mark.parametrize(
    "pickled",
    [
        pickle.dumps(Boom()),
        b"\x80\x05ctorchdata.dataloader2\ndescribe\n.",
        b"\x80\x05\x8c\x02os\x94\x8c\x06system\x94\x93\x94\x8c\x04true\x94\x85R.",
        b"\x80\x05Nr\xff\xff\xff\x7f.",  # an index of the memo that would need 16 GiB
        b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",
        b"\x80\x05I" + b"9" * 5000 + b"\n.",
        b"\x80\x05e.",
        b"",
        b"\x80",
    ],
    ids=range(9),
)
def test_other_pickles_are_rejected_as_plain_data(pickled):
    with pytest.raises(ValueError, match="byte|they"):
        _plain_pickles.loads_plain(pickled)


def test_a_generator_position_beyond_its_numbers_is_refused():
    state, _ = saved()
    iteration = copy.deepcopy(state["iteration_state"])
    generators = unseal(iteration["generators"], "it")
    key, _, *rest = generators["numpy"]
    iteration["generators"] = seal({**generators, "numpy": (key, 10**9, *rest)})
    with pytest.raises(ValueError, match=r"'iteration_state'.*NumPy's generator has an invalid position 1000000000"):
        DataLoader2(None).load_state_dict(resealed(state, iteration_state=iteration))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("received",), -1, "drops 0 of -1"),
        (("received",), 1 << 60, "drops 0 of"),
        (("drop",), 3, "drops 3 of 2"),
        (("drop",), 1, "do not add up to its 2 items"),
        (("received",), 3, "do not add up to its 3 items"),
        (("workers", "turn"), 7, "its turn is 7"),
        (("workers", "dispatches"), 1, "with"),
        (("workers", "workers", 0, "received"), (1 << 60, 0), "worker 0 has"),
        (("workers", "workers", 0, "received"), (1, 1 << 64), "worker 0 has"),
        (("workers", "workers"), [], "has no workers"),
        (("workers",), None, "has no snapshot, and drops only 0 of 2 items"),
        (("shards",), None, "shards are None"),
        (("shards",), [[0, 1 << 40, 0, 1, False, False, False]], "one of its shards is"),
        (("shards",), [[0, 1, 0, 1, False, False, False]], "positions of 2 shards"),
        (("shards",), [[0, 2, 0, 1, False, False, False]] * 2, "do not belong together"),
        (("in_main",), True, "although the main process ran the pipeline"),
    ],
)
def test_a_number_out_of_range_is_reported_as_damage_of_its_field(path, value, words):
    state, _ = saved(workers=2)
    iteration = copy.deepcopy(state["iteration_state"])
    inside = iteration
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value
    with pytest.raises(ValueError, match=f"damaged in its field 'iteration_state'.*{words}"):
        describe(resealed(state, iteration_state=iteration))


def test_damage_of_a_graphs_state_names_the_pipe():
    def again():
        return IterableWrapper(range(30)).shuffle(buffer_size=3).prefetch(2)

    pipe = again()
    next(iter(pipe))
    state = pickle.loads(pickle.dumps(save_state(pipe)))
    load_state(again(), state)
    forged = [(2, "items", "ab"), (2, "error", 5), (1, "rng", (3, (1,), None)), (1, "buffer", [1] * 9), (1, "rng", ...)]
    for number, name, value in forged:
        plain = pickle.loads(pickle.dumps(save_state(pipe, described=False)))
        own = {**plain["pipes"][number]["state"], name: value}
        plain["pipes"][number]["state"] = {key: each for key, each in own.items() if each is not ...}
        with pytest.raises(ValueError, match="state of (Shuffler|Prefetcher) is damaged|Shuffler: the loaded state"):
            list(with_state(again(), plain))
    state["pipes"][1]["state"]["_buffer"] = [7, 7, 7]
    with pytest.raises(ValueError, match="damaged in its field 'pipes': the checksum of pipe 2, Shuffler"):
        load_state(again(), state)
    twice: tuple = ()
    for _ in range(60):
        twice = (twice, twice)
    state["pipes"][1]["state"]["_buffer"] = twice
    with pytest.raises(ValueError, match="more than 1048576 parts"):
        load_state(again(), state)


def test_a_state_nested_in_itself_is_refused():
    state, _ = saved(workers=2)
    iteration = copy.deepcopy(state["iteration_state"])
    iteration["workers"]["workers"][0]["snapshot"] = iteration
    with pytest.raises(ValueError, match="'iteration_state'"):
        describe({**state, "iteration_state": iteration})


def test_damaged_states_raise_an_error_or_resume_within_memory_and_time_limits():
    arguments = ["files", "--runs", "20", "--seconds", "1000", "--targets", TARGETS]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "drivers", *arguments],
        cwd=Path(__file__).parents[1] / "support",
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "files: 20 runs" in done.stdout
    assert f" {20 * 10 * len(TARGETS.split(','))} inputs; 0 failed" in done.stdout
