"""Writes the project's addresses into pyproject.toml: `python tools/project_urls.py ADDRESS`.

The release workflow calls this program before the build, with the address of its repository, so that a wheel built by a
fork links to the fork.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

__all__ = ["with_urls"]

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
PAGES = {
    "Homepage": "",
    "Documentation": "/blob/HEAD/docs/index.md",
    "Source": "",
    "Issues": "/issues",
    "Changelog": "/blob/HEAD/CHANGELOG.md",
}


def with_urls(pyproject: str, address: str) -> str:
    """Adds a table of addresses to a text. Raises ValueError if the address is invalid, or the text already has such a
    table."""
    if not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+/?", address):
        raise ValueError(f"the address of a repository begins with https:// and has a path, but got {address!r}")
    if "urls" in tomllib.loads(pyproject)["project"]:
        raise ValueError("pyproject.toml already has a table [project.urls]: remove the table, or do not run this step")
    lines = [f'{label} = "{address.rstrip("/")}{page}"' for label, page in PAGES.items()]
    table = "\n".join(["[project.urls]", *lines, "", ""])
    return pyproject.replace("[project.optional-dependencies]", f"{table}[project.optional-dependencies]", 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("address", help="the address of the repository, such as https://example.org/owner/name")
    try:
        text = with_urls(PYPROJECT.read_text(encoding="utf-8"), parser.parse_args().address)
    except ValueError as error:
        sys.exit(f"error: {error}")
    PYPROJECT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
