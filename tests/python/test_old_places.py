"""The deep import paths of torchdata 0.9 lead to where things live now."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

from torchdata._old_places import OLD_PLACES, names_of


@pytest.mark.parametrize("old", sorted(OLD_PLACES))
def test_an_old_module_holds_what_lives_elsewhere_now(old: str) -> None:
    module = importlib.import_module(old)
    home = importlib.import_module(OLD_PLACES[old][0])
    for name, now in names_of(old).items():
        assert getattr(module, name) is getattr(home, now)
        assert name in dir(module)
    assert module.__all__ == list(names_of(old))


def test_names_are_imported_from_old_modules() -> None:
    from torchdata.datapipes.iter.util.cycler import CyclerIterDataPipe

    from torchdata.datapipes.iter import Cycler

    assert CyclerIterDataPipe is Cycler
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from torchdata.datapipes.iter.util.cycler import nothing  # noqa: F401


def test_a_name_that_an_old_module_did_not_have_is_an_attribute_error_that_names_the_new_place() -> None:
    module = importlib.import_module("torchdata.datapipes.iter.util.cycler")
    with pytest.raises(AttributeError, match=r"'nothing'; what it held is in torchdata\.datapipes\.iter$"):
        _ = module.nothing


def test_a_module_named_like_a_function_can_be_called_in_its_place() -> None:
    code = (
        "import torchdata.datapipes.utils.janitor, torchdata.datapipes.utils as utils, io\n"
        "stream = utils.StreamWrapper(io.BytesIO()); utils.janitor(stream); print(stream.closed)\n"
        "from torchdata.datapipes.utils.janitor import janitor; print(callable(janitor))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "True\nTrue\n"


def test_old_places_of_the_linter_and_of_services_are_places_still() -> None:
    from torchdata.dataloader2.graph.settings import set_graph_random_seed
    from torchdata.dataloader2.graph.utils import find_dps
    from torchdata.dataloader2.linter import _check_shuffle_before_sharding
    from torchdata.dataloader2.random.seed_generator import SeedGenerator
    from torchdata.dataloader2.utils.worker import process_init_fn

    assert all(
        map(
            inspect.isroutine,
            [set_graph_random_seed, find_dps, _check_shuffle_before_sharding, process_init_fn],
        )
    )
    assert inspect.isclass(SeedGenerator)
