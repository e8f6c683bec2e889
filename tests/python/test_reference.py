"""The API reference: it builds without warnings, and every public pipe is in it with an example."""

from __future__ import annotations

import html
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import torchdata
from torchdata.datapipes import iter as iter_pipes
from torchdata.datapipes import map as map_pipes

ROOT = Path(__file__).resolve().parents[2]

PIPES = [
    (module, name)
    for module, base in ((iter_pipes, iter_pipes.IterDataPipe), (map_pipes, map_pipes.MapDataPipe))
    for name in module.__all__
    # the Shuffler of map pipes is read by iterating
    if isinstance(getattr(module, name), type)
    and issubclass(getattr(module, name), (base, iter_pipes.IterDataPipe))
]

each_pipe = pytest.mark.parametrize(
    ("module", "name"), PIPES, ids=[f"{module.__name__.rpartition('.')[2]}.{name}" for module, name in PIPES]
)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pages."""
    pytest.importorskip("pdoc", reason="pdoc is a tool of development")
    folder = tmp_path_factory.mktemp("api")
    environment = {**os.environ, "PYTHONPATH": str(Path(torchdata.__file__).resolve().parents[1])}
    command = [sys.executable, str(ROOT / "tools/api_reference.py"), str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=folder, env=environment)
    assert (run.returncode, run.stderr) == (0, "")
    return folder


@each_pipe
def test_the_docstring_of_a_pipe_says_what_it_does_and_shows_an_example(module: Any, name: str) -> None:
    cls = getattr(module, name)
    text = cls.__dict__.get("__doc__") or ""
    summary, _, rest = inspect.cleandoc(text).partition("\n")
    assert summary.strip(), f"{name} has no docstring of its own"
    assert re.search(r"^Example:\n    >>> ", rest, re.M), (
        f"the docstring of {name} has no `Example:` with `>>>`"
    )
    own = [vars(base) for base in cls.__mro__ if {"__new__", "__init__"} & vars(base).keys()]
    constructor = own[0].get("__new__") or own[0]["__init__"]
    parameters = [
        p for p in list(inspect.signature(constructor).parameters)[1:] if p not in ("args", "kwargs")
    ]
    section = rest.partition("Args:\n")[2]
    missing = [p for p in parameters if not re.search(rf"^    (?! )[^:]*\b{p}\b[^:]*:", section, re.M)]
    assert not missing, f"the docstring of {name} does not explain {missing}"


@each_pipe
def test_a_pipe_stands_in_the_reference_with_its_docstring(module: Any, name: str, reference: Path) -> None:
    page = reference / (module.__name__.replace(".", "/") + ".html")
    text = page.read_text(encoding="utf-8")
    assert f'<section id="{name}">' in text
    section = text.partition(f'<section id="{name}">')[2].partition("</section>")[0]
    plain = html.unescape(re.sub(r"<[^>]+>", "", section))
    words = inspect.cleandoc(getattr(module, name).__doc__ or "").replace("`", "").split()[:4]
    assert " ".join(words) in " ".join(plain.split())


def test_notes_for_developers_are_not_in_the_reference_and_what_users_need_is(reference: Path) -> None:
    texts = {page: html.unescape(page.read_text(encoding="utf-8")) for page in reference.rglob("*.html")}
    assert not [page for page, text in texts.items() if "Role:" in text]
    assert "Adapters: changes that a loader makes" in texts[reference / "torchdata/dataloader2/adapter.html"]
    assert "A graph state is a plain dict" in texts[reference / "torchdata/datapipes/state.html"]
    assert "A graph is a nested dictionary" in texts[reference / "torchdata/dataloader2/graph.html"]


def test_the_reference_has_an_index_of_all_public_modules(reference: Path) -> None:
    pages = {str(page.relative_to(reference)) for page in reference.rglob("*.html")}
    assert {"index.html", "torchdata/dataloader2/linter.html", "torchdata/datapipes/utils.html"} <= pages
    assert not any("/_" in page for page in pages)
