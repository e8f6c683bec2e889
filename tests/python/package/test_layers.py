"""Folders import only from lower layers, and modules do not import each other in cycles."""

import grimp
import import_picture

from fresh_processes import run_python


def test_every_module_belongs_to_a_layer() -> None:
    graph = grimp.build_graph("torchdata", cache_dir=None)
    lost = {module for module in graph.modules if not import_picture.folder_of(module)} - {"torchdata"}
    assert lost == set()
    assert set(import_picture.folders()) == {import_picture.folder_of(module) for module in graph.modules} - {""}


def test_no_module_and_no_folder_imports_another_in_a_circle() -> None:
    assert import_picture.circles() == []


def test_no_folder_imports_upwards() -> None:
    assert import_picture.upward() == {}


def test_every_exemption_is_used() -> None:
    found = import_picture.imports()
    assert all(pair in found for pair in import_picture.EXEMPT)


def test_the_engine_does_not_import_loaders() -> None:
    assert not [pair for pair in import_picture.imports() if pair[0].startswith("_engine") and "dataloader2" in pair[1]]


def test_the_picture_is_drawn_from_the_actual_imports() -> None:
    done = run_python(import_picture.__file__, "--check")
    assert done.returncode == 0, done.stderr
