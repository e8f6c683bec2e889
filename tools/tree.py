"""Writes docs/tree.md: every file of the sources with the first sentence of its own description.

Run: `python tools/tree.py`, or `python tools/tree.py --check` to be told whether the page is as it should be. A file is
described where it begins: by its module docstring, in Rust by its `//!` lines.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path

__all__ = ["page"]

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tree.md"
FOLDERS = ("rust", "python/torchdata", "benches", "tests", "tools")
#: Listed as one line each: many small files of one kind.
SUMMARISED = {
    "python/torchdata/demo/data/": "real images, for the demo",
    "tests/python/": "the facade, in the folders of python/torchdata; servers, tables and random drivers in support/",
    "tests/common/": "watchdog, streams and child processes for the engine's tests",
}
INTRODUCTION = """\
# Where everything is

Written by `make tree` from the first lines of the files; see [architecture](architecture.md) for how they fit together.

"""


def described(path: Path) -> str:
    """The first sentence of a file's description; empty where it has none."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".rs":
        lines = re.match(r"(?:#!.*\n)?((?://!.*\n)+)", text)
        text = re.sub(r"^//! ?", "", lines[1], flags=re.M) if lines else ""
    else:
        text = ast.get_docstring(ast.parse(text)) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    sentence = re.match(r"(.*?[^.])\.(?= |$)", paragraph)
    return sentence[1] if sentence else paragraph


def listed() -> list[str]:
    """The source files that git knows or would take, by path."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return sorted({path for path in found if path.endswith((".rs", ".py")) and (ROOT / path).exists()})


def page() -> str:
    """The whole page."""
    lines: list[str] = []
    seen: set[str] = set()

    def line(path: str, words: str) -> None:
        depth = path.rstrip("/").count("/")
        name = "  " * depth + path.rstrip("/").rsplit("/", 1)[-1] + ("/" if path.endswith("/") else "")
        lines.append(f"{name:<44} {words}".rstrip())

    def folders_above(path: str) -> None:
        parts = path.split("/")[:-1]
        for count in range(1, len(parts) + 1):
            folder = "/".join(parts[:count]) + "/"
            if folder in seen:
                continue
            seen.add(folder)
            inside = next((p for p in (ROOT / folder / n for n in ("__init__.py", "mod.rs")) if p.exists()), None)
            line(folder, SUMMARISED.get(folder) or (described(inside) if inside else ""))

    for path in listed():
        summary = next((folder for folder in SUMMARISED if path.startswith(folder)), None)
        folders_above(summary or path)
        if summary is None and not path.endswith(("/__init__.py", "/mod.rs")):
            line(path, described(ROOT / path))
    return INTRODUCTION + "```text\n" + "\n".join(lines) + "\n```\n"


def main() -> int:
    """Writes the page, or compares it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if the page is old")
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print("docs/tree.md is old: run `make tree`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
