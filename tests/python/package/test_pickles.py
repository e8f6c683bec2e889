"""Pickles and states refer only to public modules."""

import importlib
import pickle
import pickletools
from types import FunctionType
from typing import Any

import pytest

from pipes_table import IGNORES_WARNINGS_OF_PIPES, ROWS, Row
from torchdata.dataloader2 import DataLoader2, reading_service
from torchdata.datapipes import iter as iter_pipes
from torchdata.datapipes import map as map_pipes
from torchdata.datapipes import utils
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.state import save_state

pytestmark = IGNORES_WARNINGS_OF_PIPES

ITEMS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 0, 7]

PUBLIC = {
    "torchdata._native",
    "torchdata._plain_pickles",  # contains functions that create plain data
    "torchdata.dataloader2.dataloader2",
    "torchdata.dataloader2.random",
    "torchdata.dataloader2.reading_service",
    "torchdata.datapipes.datapipe",
    "torchdata.datapipes.iter",
    "torchdata.datapipes.map",
    "torchdata.datapipes.utils",
    "torchdata.datapipes.utils.decoder",
}


def named_in(pickled: bytes) -> set[str]:
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
def test_public_classes_belong_to_the_package_that_exports_them(package: Any) -> None:
    for name in package.__all__:
        value = getattr(package, name)
        if isinstance(value, type | FunctionType):
            assert value.__module__ in PUBLIC, name
            assert getattr(importlib.import_module(value.__module__), value.__qualname__) is value


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_pickles_and_states_contain_only_public_module_names(row: Row) -> None:
    pipe = built(row)
    pickled = []
    for what in (lambda: pickle.dumps(pipe), lambda: pickle.dumps(save_state(pipe))):
        next(iter(pipe), None)
        try:
            pickled.append(what())
        except (AttributeError, TypeError):  # the row contains user objects that cannot be pickled
            continue
    pickled.append(pickle.dumps(DataLoader2(built(row)).state_dict()))
    for made in pickled:
        theirs = {name for name in named_in(made) if name.partition(".")[0] == "torchdata"}
        assert theirs <= PUBLIC
