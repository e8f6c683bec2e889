"""What the documents say is held against what is there: versions, the annotated tree, README's examples."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import torchdata

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

#: Folders of which every tracked file stands in the tree of docs/architecture.md.
ANNOTATED = ("rust/", "python/torchdata/", "tests/", "benches/")


def workspace_version() -> str:
    """The version that the crates and the Python distribution share."""
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())
    return str(manifest["workspace"]["package"]["version"])


def test_the_import_version_names_the_kept_api_and_the_version_of_the_workspace() -> None:
    assert torchdata.__version__ == f"0.9.0+rs.{workspace_version()}"


def test_the_changelog_lists_releases_newest_first_and_begins_with_the_current_version() -> None:
    headings = re.findall(
        r"^## \[(.+?)\](?: - (\d{4}-\d{2}-\d{2}))?$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    assert headings[0][0] == "Unreleased"
    versions = [tuple(map(int, version.split("."))) for version, _ in headings[1:]]
    assert versions == sorted(versions, reverse=True)
    assert all(date for _, date in headings[1:]), "every release has a date"
    assert not versions or versions[0] <= tuple(map(int, workspace_version().split(".")))


def annotated_tree() -> tuple[set[str], set[str]]:
    """Files and folders of the tree in docs/architecture.md, and the folders whose files it leaves out (`name/ …`)."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    block = re.search(r"^```text\n(?=Cargo\.toml)(.*?)^```$", text, re.M | re.S)
    assert block is not None, "docs/architecture.md has no tree that begins with Cargo.toml"
    paths, summarised, parents = set(), set(), [""]
    for line in block[1].splitlines():
        match = re.match(r"(?P<indent> *)(?P<name>[^ ]+)(?P<more> …)?(?:  +[^ ].*)?$", line)
        assert match is not None, f"not a line of a tree: {line!r}"
        depth, rest = divmod(len(match["indent"]), 2)
        assert rest == 0, f"odd indent: {line!r}"
        assert depth < len(parents), f"nothing above to belong to: {line!r}"
        path = parents[depth] + match["name"]
        assert path not in paths, f"listed twice: {path}"
        paths.add(path)
        if match["more"]:
            summarised.add(path)
        parents[depth + 1 :] = [path] if path.endswith("/") else []
    return paths, summarised


def tracked_files() -> set[str]:
    try:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if listed.returncode != 0:
        pytest.skip("this is no git checkout")
    return {path for path in listed.stdout.splitlines() if (ROOT / path).exists()}


def test_whatever_the_annotated_tree_lists_exists() -> None:
    paths, _ = annotated_tree()
    missing = [
        path
        for path in sorted(paths)
        if not ((ROOT / path).is_dir() if path[-1] == "/" else (ROOT / path).is_file())
    ]
    assert not missing, f"docs/architecture.md lists what is not there: {missing}"


def test_the_annotated_tree_lists_every_tracked_file() -> None:
    paths, summarised = annotated_tree()
    relevant = [path for path in sorted(tracked_files()) if path.startswith(ANNOTATED)]
    assert relevant
    unlisted = [path for path in relevant if path not in paths and not path.startswith(tuple(summarised))]
    assert not unlisted, f"docs/architecture.md lacks a line for each of: {unlisted}"


def examples() -> list[tuple[str, str]]:
    """README's Python blocks, each with the output shown directly below it."""
    found = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", README, re.M | re.S)
    assert len(found) == README.count("\n```python\n"), "every example shows its output"
    return found


@pytest.mark.parametrize("number", range(len(examples())))
def test_an_example_of_the_readme_prints_what_it_shows(number: int, tmp_path: Path) -> None:
    code, shown = examples()[number]
    script = tmp_path / "example.py"
    script.write_text(code, encoding="utf-8")
    # The package under test, wherever the run found it.
    environment = {**os.environ, "PYTHONPATH": str(Path(torchdata.__file__).resolve().parents[1])}
    command = [sys.executable, "-W", "error", str(script)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path, env=environment)
    assert (run.returncode, run.stderr) == (0, "")
    # In what is shown, `...` stands for whatever differs from machine to machine.
    assert doctest.OutputChecker().check_output(shown, run.stdout, doctest.ELLIPSIS), run.stdout
