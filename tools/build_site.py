"""Builds the documentation as a site: `make docs` writes it to `target/site/`.

This program copies `docs/` to a temporary folder, adds the pages that are generated from the package (pictures of the
pipes, API reference) and the documents in the root of the repository, and runs Sphinx.

    build_site.py FOLDER
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import api_reference
import pipes_page
from sphinx.cmd.build import build_main

ROOT = Path(__file__).resolve().parents[1]


def sources(folder: Path) -> None:
    shutil.copytree(ROOT / "docs", folder, dirs_exist_ok=True)
    api_reference.write(folder / "reference")
    (folder / "pipes.md").write_text(pipes_page.text(), encoding="utf-8")
    (folder.parent / "examples").symlink_to(ROOT / "examples")  # the pages include parts of the examples
    developers = folder / "developers"
    developers.mkdir(exist_ok=True)
    for name in ("DEVELOP.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        text = re.sub(r"\]\(docs/(\w+\.md)", r"](../\1", text)
        (developers / name.lower()).write_text(text, encoding="utf-8")


def build(target: Path) -> int:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "docs"
        sources(source)
        doctrees = Path(folder) / "doctrees"
        return build_main(
            ["-b", "html", "-W", "--keep-going", "-q", "-j", "auto", "-d", str(doctrees), str(source), str(target)]
        )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    os.environ.setdefault("PYTHONHASHSEED", "0")
    gc.disable()  # Sphinx creates little garbage, and collections would take a third of the time
    status = build(Path(sys.argv[1]))
    gc.freeze()  # also avoids a collection at exit
    sys.exit(status)
