"""The API reference builds without warnings, and contains every public object with an example of its use."""

import html
import importlib
import inspect
import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import api_reference
import pytest

from torchdata.datapipes import iter as iter_pipes
from torchdata.datapipes import map as map_pipes

PUBLIC = {
    f"{module.__name__}.{name}": value
    for module in map(importlib.import_module, [*api_reference.MODULES, iter_pipes.__name__, map_pipes.__name__])
    for name in module.__all__
    if inspect.isclass(value := getattr(module, name)) or inspect.isroutine(value)
}


def parameters_of(value: Any) -> list[str]:
    if inspect.isroutine(value):
        return [*inspect.signature(value).parameters]
    own = next(vars(base) for base in value.__mro__ if {"__new__", "__init__"} & vars(base).keys())
    return [*inspect.signature(own.get("__new__") or own["__init__"]).parameters][1:]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_docstring_has_a_summary_all_parameters_and_an_example(name: str) -> None:
    value = PUBLIC[name]
    summary, _, rest = inspect.cleandoc(value.__doc__ or "").partition("\n")
    assert summary.strip(), f"{name} has no docstring of its own"
    assert re.search(r"^Example:\n    >>> ", rest, re.M), f"the docstring of {name} has no `Example:` with `>>>`"
    section = rest.partition("Args:\n")[2]
    parameters = [p for p in parameters_of(value) if p not in ("args", "kwargs")]
    missing = [p for p in parameters if not re.search(rf"^    (?! )[^:]*\b{p}\b[^:]*:", section, re.M)]
    for key, method in vars(value).items() if inspect.isclass(value) else ():
        if inspect.isfunction(method) and method.__doc__ and not key.startswith("_"):
            unnamed = set(parameters_of(method)[1:]) - {"args", "kwargs"} - set(re.findall(r"\w+", method.__doc__))
            missing += [f"{parameter} of {key}" for parameter in unnamed]
    assert not missing, f"the docstring of {name} does not explain {missing}"


@pytest.fixture(scope="module")
def entries(site: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for page in sorted((site / "reference").glob("*.html")):
        parts = re.split(r'<dt class="sig[^"]*" id="([^"]+)">', page.read_text(encoding="utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            assert name not in found, f"{name} is there twice"
            found[name] = " ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).replace("\u2019", "'").split())
    return found


def test_the_reference_contains_each_object_with_its_docstring(entries: dict[str, str]) -> None:
    for name in PUBLIC.keys() & entries.keys():
        assert " ".join((PUBLIC[name].__doc__ or "").replace("`", "").split()[:4]) in entries[name], name


def test_notes_for_developers_are_not_in_the_reference_and_what_users_need_is(site: Path) -> None:
    texts = {
        page.name: " ".join(re.sub(r"<[^>]+>", "", html.unescape(page.read_text(encoding="utf-8"))).split())
        for page in (site / "reference").glob("*.html")
    }
    assert not [page for page, text in texts.items() if "Role:" in text]
    assert "Adapters: changes that a loader makes" in texts["dataloader2-adapter.html"]
    assert "A graph state is a dict of plain data" in texts["datapipes-state.html"]
    assert "A graph is a nested dictionary" in texts["dataloader2-graph.html"]


def test_every_public_name_is_in_the_reference_once(entries: dict[str, str]) -> None:
    written = {id(resolve_name(name)) for name in entries}
    modules = [*api_reference.MODULES, iter_pipes.__name__, map_pipes.__name__]
    missing = [
        f"{module}.{name}"
        for module in modules
        for name in importlib.import_module(module).__all__
        if not inspect.ismodule(value := resolve_name(f"{module}.{name}")) and id(value) not in written
    ]
    assert not missing


def test_the_reference_has_an_index_of_all_public_modules(site: Path) -> None:
    pages = {page.name for page in (site / "reference").glob("*.html")}
    assert {"index.html", "dataloader2-linter.html", "datapipes-utils.html"} <= pages
    index = (site / "reference/index.html").read_text(encoding="utf-8")
    assert all(f'href="{page}"' in index for page in pages - {"index.html"})
