"""Pickles and saved states name public places, and those made before the pipes were put into rooms still load.

`data/former/rows.zip` was made at that time. It holds, by row of the table of pipes: the pickled pipe, a pickled pipe
that had yielded `taken` items, and the state of its graph then; the state of a loader over the pipe.

`data/former/states.zip` has states of the second layout, of when graphs and loaders had fingerprints of their own: by
row, the state of the pipe after two items, and the rest of its items; the same of a loader over it. Pipes over files
that were there at the time are missing.
"""

from __future__ import annotations

import importlib
import pickle
import pickletools
import zipfile
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from pipes_table import ROWS, Row
from torchdata.dataloader2 import DataLoader2, reading_service
from torchdata.datapipes import iter as iter_pipes
from torchdata.datapipes import map as map_pipes
from torchdata.datapipes import utils
from torchdata.datapipes._pipe.traversal import walk
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.state import load_state, save_state

pytestmark = [
    pytest.mark.filterwarnings("ignore:Some child DataPipes are not exhausted"),
    pytest.mark.filterwarnings("ignore:The length of this HeaderIterDataPipe"),
]

ITEMS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 0, 7]
with zipfile.ZipFile(Path(__file__).parents[1] / "data/former/rows.zip") as _file:
    FORMER: dict[str, dict[str, Any]] = pickle.loads(_file.read("rows.pickle"))

with zipfile.ZipFile(Path(__file__).parents[1] / "data/former/states.zip") as _file:
    SECOND: dict[str, dict[str, Any]] = pickle.loads(_file.read("states.pickle"))

#: Where pickles may find something of this package.
PUBLIC = {
    "torchdata._native",
    "torchdata.dataloader2.dataloader2",
    "torchdata.dataloader2.random",
    "torchdata.dataloader2.reading_service",
    "torchdata.datapipes.datapipe",
    "torchdata.datapipes.iter",
    "torchdata.datapipes.map",
    "torchdata.datapipes.utils",
    "torchdata.datapipes.utils.decoder",
}

former_rows = pytest.mark.parametrize("row", [row for row in ROWS if row.name in FORMER], ids=lambda row: row.name)


def named_in(pickled: bytes) -> set[str]:
    """The modules that a pickle names, those of pickles inside it included."""
    found, texts = set(), []
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name == "GLOBAL":
            found.add(argument.split()[0])
        elif opcode.name in ("SHORT_BINUNICODE", "BINUNICODE"):
            texts.append(argument)
        elif opcode.name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            continue
        elif opcode.name == "STACK_GLOBAL":
            found.update(text for text in texts if text.startswith("torchdata"))
        elif opcode.name in ("BINBYTES", "SHORT_BINBYTES") and argument[:2] in (b"\x80\x04", b"\x80\x05"):
            found |= named_in(argument)
    return found


def built(row: Row) -> Any:
    return row.build(lambda: IterableWrapper(ITEMS), **row.example)


@pytest.mark.parametrize("package", [iter_pipes, map_pipes, utils, reading_service], ids=lambda p: p.__name__)
def test_public_classes_live_in_the_package_that_hands_them_on(package: Any) -> None:
    for name in package.__all__:
        value = getattr(package, name)
        if isinstance(value, type | FunctionType):
            assert value.__module__ in PUBLIC, name
            assert getattr(importlib.import_module(value.__module__), value.__qualname__) is value


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_pickles_and_states_name_public_places_alone(row: Row) -> None:
    pipe = built(row)
    pickled = []
    for what in (lambda: pickle.dumps(pipe), lambda: pickle.dumps(save_state(pipe))):
        next(iter(pipe), None)
        try:
            pickled.append(what())
        except (AttributeError, TypeError):  # what users put in it does not pickle
            continue
    pickled.append(pickle.dumps(DataLoader2(built(row)).state_dict()))
    for made in pickled:
        theirs = {name for name in named_in(made) if name.partition(".")[0] == "torchdata"}
        assert theirs <= PUBLIC


@former_rows
def test_former_pickles_load(row: Row) -> None:
    former = FORMER[row.name]
    for key in ("pipe", "advanced"):
        if key in former:
            loaded = pickle.loads(former[key])
            assert [type(pipe) for pipe in walk(loaded)] == [type(pipe) for pipe in walk(built(row))]


@former_rows
def test_former_states_of_graphs_are_gone_on_from(row: Row) -> None:
    former = FORMER[row.name]
    if "state" not in former:  # of functions that do not pickle, and of pipes over files that were there at the time
        return
    pipe = built(row)
    load_state(pipe, pickle.loads(former["state"]))
    whole = row.model(ITEMS, **row.example)
    assert list(pipe) == whole[former["taken"] :]


@former_rows
def test_former_states_of_loaders_load(row: Row) -> None:
    loader = DataLoader2.from_state(pickle.loads(FORMER[row.name]["loader"]), reading_service=None)
    again = DataLoader2(built(row))
    assert [type(pipe) for pipe in walk(loader.datapipe)] == [type(pipe) for pipe in walk(again.datapipe)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_states_of_the_second_layout_are_gone_on_from(row: Row) -> None:
    former = SECOND.get(row.name, {})
    if "state" in former:
        pipe = built(row)
        load_state(pipe, pickle.loads(former["state"]))
        assert list(pipe) == pickle.loads(former["rest of graph"])
    if "loader" in former:
        loader = DataLoader2(built(row))
        loader.load_state_dict(pickle.loads(former["loader"]))
        assert list(loader) == pickle.loads(former["rest of loader"])
