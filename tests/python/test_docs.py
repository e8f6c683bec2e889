"""What the documents say is held against what is there: the changelog against the version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import torchdata

ROOT = Path(__file__).resolve().parents[2]


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
