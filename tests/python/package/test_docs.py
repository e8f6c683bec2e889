"""The documents mention the current versions and existing files, and their examples work."""

import ast
import builtins
import doctest
import re
import symtable
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import doc_blocks
import torchdata
from fresh_processes import run_program, with_torch, without_torch
from needing import needs
from torchdata.datapipes.iter import IterDataPipe

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def workspace_version() -> str:
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())
    return str(manifest["workspace"]["package"]["version"])


def test_the_import_version_names_the_kept_api_and_the_version_of_the_workspace() -> None:
    assert torchdata.__version__ == f"0.9.0+rs.{workspace_version()}"


def test_the_distribution_has_the_version_that_the_import_names() -> None:
    """`__version__` begins with the version of upstream's torchdata, because some programs compare versions."""
    kept, _, own = torchdata.__version__.partition("+rs.")
    try:
        installed = metadata.version("torchdata-rs")
    except metadata.PackageNotFoundError:
        pytest.skip("torchdata-rs is importable, but not installed")
    assert own == installed
    assert tuple(map(int, kept.split("."))) >= (0, 9)


def test_the_citation_names_the_version_and_license_of_the_workspace() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.M) == [workspace_version()]
    license = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    assert re.findall(r"^license: (.+)$", citation, re.M) == [license]


def test_the_changelog_lists_releases_newest_first_and_begins_with_the_current_version() -> None:
    headings = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d{2}-\d{2}))?$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0][0] == "Unreleased"
    versions = [tuple(map(int, version.split("."))) for version, _ in headings[1:]]
    assert versions == sorted(versions, reverse=True)
    assert all(date for _, date in headings[1:]), "every release has a date"
    assert not versions or versions[0] <= tuple(map(int, workspace_version().split(".")))


SOURCES = sorted(
    path
    for folder in ("rust", "python/torchdata", "benches", "tests", "tools")
    for suffix in ("py", "rs")
    for path in (ROOT / folder).rglob(f"*.{suffix}")
)


def test_every_source_file_has_a_docstring() -> None:
    assert len(SOURCES) > 300
    silent = [path for path in SOURCES if not _describes_itself(path)]
    assert not silent, f"these entries do not begin with a sentence: {silent}"


def _describes_itself(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return not text.strip() or bool(ast.get_docstring(ast.parse(text)))
    return bool(re.match(r"(#!.*\n)?//! \S", text))


def examples() -> list[tuple[str, str]]:
    found = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", README, re.M | re.S)
    assert len(found) == README.count("\n```python\n"), "every example shows its output"
    return found


@pytest.mark.parametrize("number", range(len(examples())))
def test_an_example_of_the_readme_prints_what_it_shows(number: int, tmp_path: Path) -> None:
    code, shown = examples()[number]
    if "torchdata.stateful_dataloader" in code:
        needs("torch", "the block uses a loader of torch")
    script = tmp_path / "example.py"
    script.write_text(code, encoding="utf-8")
    run = run_program(script, server=with_torch() if doc_blocks.NEEDS_TORCH.search(code) else without_torch())
    assert (run.returncode, run.stderr) == (0, "")
    # `...` in the README's output replaces text that differs between machines.
    assert doctest.OutputChecker().check_output(shown, run.stdout, doctest.ELLIPSIS), run.stdout


LISTS = re.compile(r"not there yet\.?\**:?\**\n\n(.*?)(?:\n\n(?! )|\Z)", re.S | re.I)
ENTRIES = re.compile(r"^- .*?(?=^- |\Z)", re.S | re.M)
FAILS = re.compile(r"<!-- fails: (.+?) -->", re.S)
KNOWN = {"IterDataPipe": IterDataPipe}


def lacks() -> list[str]:
    texts = [page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *PAGES)]
    return [entry for text in texts for listed in LISTS.findall(text) for entry in ENTRIES.findall(listed)]


def test_existing_features_are_not_reported_as_missing() -> None:
    """If the documents call a feature missing, a comment contains a program that must fail until the feature exists."""
    entries = lacks()
    assert entries, "the page lists no missing features"
    for entry in entries:
        programs = FAILS.findall(entry)
        assert programs, f"add <!-- fails: a program that fails --> to {entry!r}"
        for program in programs:
            if "torch" in re.findall(r"import (\w+)", program):
                pytest.importorskip("torch")
            with pytest.raises((AttributeError, ImportError, NotImplementedError, TypeError)):
                exec(compile(program, entry[:60], "exec"), dict(KNOWN))


#: Matches names of files and folders in backticks. A name with braces or stars means several files.
FILE_NAMES = re.compile(r"`([\w./{}*,-]+(?:\.(?:py|pyi|rs|md|toml|yml|svg)|/))`")
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
MADE = ("target/", ".bench/", "dist/")


def each_of(name: str) -> list[str]:
    found = re.search(r"\{([^}]*)\}", name)
    return [name] if found is None else [name.replace(found[0], part) for part in found[1].split(",")]


def test_files_that_prose_names_exist() -> None:
    """A document may name a file without the first folders of the file's path."""
    pages = [ROOT / "README.md", ROOT / "DEVELOP.md", *PAGES]
    folders = ("rust", "python", "benches", "tests", "tools", "docs", "examples", "findings", ".github")
    there = [*ROOT.glob("*.*"), *(path for folder in folders for path in (ROOT / folder).rglob("*.*"))]
    paths = {f"/{part}" for path in there for one in [path.relative_to(ROOT)] for part in (one, *one.parents)}
    texts = {page: page.read_text(encoding="utf-8") for page in (*SOURCES, *pages)}
    texts |= {page: FENCED.sub("", texts[page]) for page in pages}
    named = [(page, name) for page in texts for name in FILE_NAMES.findall(texts[page]) if not name.startswith(MADE)]
    lacking = []
    for page, name in named:
        for one in each_of(name.rstrip("/")):
            pattern = re.compile(".*/" + re.escape(one).replace(r"\*", "[^/]*"))
            if not any(pattern.fullmatch(path) if "*" in one else path.endswith(f"/{one}") for path in paths):
                lacking.append(f"{page.relative_to(ROOT)}: {one}")
    assert len(named) > 100
    assert not lacking, lacking


#: Matches a name in backticks, also as a method or with arguments.
NAMES = re.compile(r"(?<!`)`\.?([A-Za-z_][\w.]*)(?:\([^`\n]*\))?`(?!`)")
#: Names of other projects. No file of this project may contain these names.
FOREIGN = "DynamicCutSampler ImageFolder PyUnstable_Object_IsUniquelyReferenced SCM_RIGHTS SimpleCutSampler rustup"


def test_names_that_prose_mentions_exist() -> None:
    """Pages for users of other projects also contain names of these projects."""
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *PAGES]
    texts = [page.read_text().partition("### Removed")[0] for page in pages if not re.match("from-|old-", page.name)]
    others = [*(ROOT / "python").rglob("*.pyi"), *(ROOT / "examples").rglob("*.py")]
    sources = [path.read_text() for path in (*SOURCES, *others)]
    blocks = [block for text in texts for block in FENCED.findall(text)]
    known = {path.stem for path in SOURCES} | set(re.findall(r"\w+", " ".join([FOREIGN, *sources, *blocks])))
    named = [name for text in texts for name in NAMES.findall(FENCED.sub("", text))]
    assert len(named) > 1000
    assert not [name for name in named if not known.issuperset(name.split("."))]


def test_the_readme_is_read_in_a_few_minutes() -> None:
    assert len(README.splitlines()) <= 150


def test_the_files_that_the_readme_links_to_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)|^\[\w+\]: (\S+)$", README, re.M)
    assert len(links) > 20
    missing = [path for pair in links for path in pair if path and not (ROOT / path).exists()]
    assert not missing


def starts_workers(code: str) -> bool:
    if "ParallelMapper(" in code:
        return 'method="process"' in code
    workers = (
        r"num_workers=(?:[1-9w]|\"auto)|ReadingService\((?:[1-9]|num_workers)|reading_service=(?!Distr)|two_workers"
    )
    loads = re.search(r"Loader2?\(|Loader2\.from_\w+\(", code) and re.search(workers, code)
    only_defines = re.search(r"^(?!import |from |def |class |@|[ #)])\S", code, re.M) is None
    return loads is not None and not only_defines


PAGES = sorted((ROOT / "docs").rglob("*.md"))


def test_examples_that_start_workers_have_a_guard() -> None:
    """From Python 3.14 on, workers import the user's program, so examples with workers need a `__main__` guard."""
    blocks = [example.block.code for page in PAGES for example in doc_blocks.examples(page)]
    starting = [code for code in [*dict(examples()), *blocks] if starts_workers(code)]
    assert len(starting) > 60
    assert not [code for code in starting if 'if __name__ == "__main__":' not in code]


each_page = pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT / "docs")) for page in PAGES])


@pytest.mark.parametrize(
    "page",
    [
        # Diagnoses of slow loading mention other programs on the machine, so no other tests may run during this test.
        pytest.param(
            page, marks=[pytest.mark.alone] * (page.name == "slow-loader.md"), id=str(page.relative_to(ROOT / "docs"))
        )
        for page in PAGES
        if doc_blocks.examples(page)
    ],
)
def test_the_examples_of_a_page_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    examples = doc_blocks.examples(page)
    for package in ("torch", "accelerate", "jax"):
        if any(re.search(rf"^ *(import|from) {package}\b", one.block.code, re.M) for one in examples):
            needs(package, f"the code blocks of {page.name} use this package")
    for example, printed in zip(examples, doc_blocks.printed(page, tmp_path), strict=True):
        location = f"{page}, line {example.block.line}"
        assert doctest.OutputChecker().check_output(example.shown, printed, doctest.ELLIPSIS), f"{location}: {printed}"


@each_page
def test_a_block_of_code_that_is_not_run_has_a_reason_in_the_source(page: Path) -> None:
    for block in doc_blocks.blocks(page):
        if block.language not in ("python", "text"):
            needs_reason = block.language in ("sh", "yaml", "{literalinclude}")
            known = needs_reason or block.language in ("{toctree}", "{include}")
            assert known, f"{page}, line {block.line}: is {block.language!r} code to run?"
            assert block.reason or not needs_reason, f"{page}, line {block.line}: no test runs this; state why"
        assert block.reason != "", f"{page}, line {block.line}: state why the block is not run"


@each_page
def test_a_block_that_needs_names_of_the_blocks_above_says_so(page: Path) -> None:
    for code in (example.block.code for example in doc_blocks.examples(page)):
        tables = [module := symtable.symtable(code, str(page), "exec")]
        for table in tables:
            tables += table.get_children()
        used = {one.get_name() for table in tables for one in table.get_symbols() if one.is_global()}
        known = {one.get_name() for one in module.get_symbols() if one.is_assigned() or one.is_imported()}
        assert code.startswith("# continues the blocks above\n") == bool(used - known - set(dir(builtins))), code


def test_the_page_on_support_names_the_versions_of_states_and_the_pythons_of_the_project() -> None:
    from torchdata.dataloader2.state.layout import STATE_VERSION as OF_LOADERS
    from torchdata.datapipes.state import STATE_VERSION as OF_PIPES

    text = (ROOT / "docs" / "support.md").read_text(encoding="utf-8")
    for name, version in (("`DataLoader2`", OF_LOADERS), ("pipes (`save_state`)", OF_PIPES)):
        assert f"| {name} | {version} | {version}" in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = [one.rpartition(" ")[2] for one in project["classifiers"] if re.search(r":: 3\.\d+$", one)]
    assert f"| {pythons[0]} to {pythons[-1]};" in text
    assert project["optional-dependencies"]["torch"] == ["torch>=2.6"]
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert [one for one in pythons if f'"{one}"' not in workflow] == []
