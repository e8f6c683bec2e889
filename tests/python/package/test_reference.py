"""The API reference builds without warnings. The reference contains every public pipe with an example."""

import html
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import api_reference
import pytest

from torchdata.datapipes import iter as iter_pipes
from torchdata.datapipes import map as map_pipes

PIPES = [
    (module, name)
    for module, base in ((iter_pipes, iter_pipes.IterDataPipe), (map_pipes, map_pipes.MapDataPipe))
    for name in module.__all__
    # `torchdata.datapipes.map` also exports the iterable-style Shuffler, so iterable-style pipes are allowed there.
    if isinstance(getattr(module, name), type) and issubclass(getattr(module, name), (base, iter_pipes.IterDataPipe))
]

each_pipe = pytest.mark.parametrize(
    ("module", "name"), PIPES, ids=[f"{module.__name__.rpartition('.')[2]}.{name}" for module, name in PIPES]
)


@each_pipe
def test_the_docstring_of_a_pipe_says_what_it_does_and_shows_an_example(module: Any, name: str) -> None:
    cls = getattr(module, name)
    text = cls.__dict__.get("__doc__") or ""
    summary, _, rest = inspect.cleandoc(text).partition("\n")
    assert summary.strip(), f"{name} has no docstring of its own"
    assert re.search(r"^Example:\n    >>> ", rest, re.M), f"the docstring of {name} has no `Example:` with `>>>`"
    own = [vars(base) for base in cls.__mro__ if {"__new__", "__init__"} & vars(base).keys()]
    constructor = own[0].get("__new__") or own[0]["__init__"]
    parameters = [p for p in list(inspect.signature(constructor).parameters)[1:] if p not in ("args", "kwargs")]
    section = rest.partition("Args:\n")[2]
    missing = [p for p in parameters if not re.search(rf"^    (?! )[^:]*\b{p}\b[^:]*:", section, re.M)]
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


@each_pipe
def test_the_reference_contains_a_pipe_with_its_docstring(module: Any, name: str, entries: dict[str, str]) -> None:
    text = entries[f"{module.__name__}.{name}"]
    words = inspect.cleandoc(getattr(module, name).__doc__ or "").replace("`", "").split()[:4]
    assert " ".join(words) in text


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
    written = {id(resolved(name)) for name in entries}
    modules = [*api_reference.MODULES, iter_pipes.__name__, map_pipes.__name__]
    missing = [
        f"{module}.{name}"
        for module in modules
        for name in importlib.import_module(module).__all__
        if not inspect.ismodule(value := resolved(f"{module}.{name}")) and id(value) not in written
    ]
    assert not missing


def resolved(name: str) -> Any:
    return pkgutil.resolve_name(name)


def test_the_reference_has_an_index_of_all_public_modules(site: Path) -> None:
    pages = {page.name for page in (site / "reference").glob("*.html")}
    assert {"index.html", "dataloader2-linter.html", "datapipes-utils.html"} <= pages
    index = (site / "reference/index.html").read_text(encoding="utf-8")
    assert all(f'href="{page}"' in index for page in pages - {"index.html"})
