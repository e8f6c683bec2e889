"""Every example in a docstring of the package runs, and prints what the docstring shows."""

import doctest
import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path

import pytest

import torchdata

#: The compiled extension contains no Python source, so it is not searched for docstrings.
SKIPPED = ("torchdata._native",)

OF_TORCH = ("torchdata.nodes", "torchdata.stateful_dataloader")
TORCH = importlib.util.find_spec("torch") is not None

#: Objects with examples that need PyTorch (`NEED_TORCH`), or that print arrays only without PyTorch (`SHOW_ARRAYS`).
NEED_TORCH = {"torchdata.dataloader2.reading_service.SequentialReadingService"}
SHOW_ARRAYS = {"torchdata.datapipes.iter.Collator", "torchdata.datapipes.utils.collate.default_collate"}


def unimportable(name: str) -> None:
    if name in OF_TORCH and not TORCH:
        return
    raise ImportError(f"cannot look for docstrings in {name}")


def module_names() -> list[str]:
    found = pkgutil.walk_packages(torchdata.__path__, f"{torchdata.__name__}.", onerror=unimportable)
    names = [torchdata.__name__] + [module.name for module in found if module.name not in SKIPPED]
    return [name for name in names if TORCH or name not in OF_TORCH]


def docstrings_with_examples() -> list[doctest.DocTest]:
    """Each docstring runs in an empty namespace, as if a reader copied the example."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    names = module_names()
    modules = [importlib.import_module(name) for name in names]  # later imports may add names
    found = [
        docstring
        for name, module in zip(names, modules, strict=True)
        for docstring in finder.find(module, name, globs={})
    ]
    return [docstring for docstring in found if docstring.examples]


DOCSTRINGS = docstrings_with_examples()


def test_every_example_in_the_sources_is_found() -> None:
    package = Path(torchdata.__file__).parent
    left_out = set() if TORCH else {package / name.removeprefix("torchdata.") for name in OF_TORCH}
    sources = [path for path in package.rglob("*.py") if not left_out & {*path.parents}]
    lines = [line.strip() for path in sources for line in path.read_text(encoding="utf-8").splitlines()]
    written = sum(line.startswith(">>> ") for line in lines)
    assert written == sum(len(docstring.examples) for docstring in DOCSTRINGS) > 0


@pytest.mark.parametrize("docstring", DOCSTRINGS, ids=lambda docstring: docstring.name)
def test_the_example_of_a_docstring_prints_what_it_shows(
    docstring: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if docstring.name in NEED_TORCH:
        pytest.importorskip("torch")
    if docstring.name in SHOW_ARRAYS:
        request.getfixturevalue("no_torch")
    monkeypatch.chdir(tmp_path)
    report: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(docstring, out=report.append)
    missing = re.findall(r"ModuleNotFoundError: No module named '(\w+)'", "".join(report))
    if any(importlib.util.find_spec(module) is None for module in missing):
        pytest.skip(f"the example needs {missing[0]}")
    assert result.attempted == len(docstring.examples)
    assert result.failed == 0, "".join(report)
