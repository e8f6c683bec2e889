"""A loader is composed of parts, each of which owns its data, and none uses private names of another."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import torchdata.dataloader2
from torchdata.dataloader2 import DataLoader2, InProcessReadingService
from torchdata.datapipes.iter import IterableWrapper

FOLDER = Path(torchdata.dataloader2.__file__).parent
PARTS = ("_checkpointing", "_epochs", "_pipeline", "_position", "_rank_states", "_seeds")
#: The methods of services that 0.9 has named so, hooks of pipes, which are documented in their base, and the method of
#: named tuples that makes a changed copy.
CONTRACTS = {"_pause", "_resume", "_limit", "_threads_at_work", "_replace"}


def foreign_private_names(path: Path) -> set[str]:
    """Returns the private names that a module uses on objects other than `self`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.endswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "duplicate"))
    }
    return found - CONTRACTS


@pytest.mark.parametrize("part", PARTS)
def test_no_part_of_the_loader_uses_private_names_of_another_part(part: str) -> None:
    assert foreign_private_names(FOLDER / f"{part}.py") == set()


def test_a_loader_has_few_private_attributes_and_bases() -> None:
    loader = DataLoader2(IterableWrapper(range(3)), reading_service=InProcessReadingService())
    assert list(loader) == [0, 1, 2]
    loader.state_dict()
    assert len([name for name in vars(loader) if name.startswith("_")]) <= 12
    assert len(DataLoader2.__bases__) <= 3
    loader.shutdown()


def test_the_loader_asks_no_service_and_no_pipe_for_its_class() -> None:
    asked = set()
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                asked |= {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
    assert not {name for name in asked if name.endswith("ReadingService") or name.endswith("ReadingServiceInterface")}
    assert "Batcher" not in asked
