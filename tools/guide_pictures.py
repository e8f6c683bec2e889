"""Draws the pictures of docs/guides/slow-loader.md anew, by running the guide's own examples.

Role: for whoever changes the guide or how loaders are drawn. Their numbers are those of the machine that it runs on.
"""

from __future__ import annotations

import importlib
import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "guides" / "slow-loader.md"
PICTURES = PAGE.with_suffix("")

sys.path.insert(0, str(ROOT / "tests" / "python" / "support"))


def main() -> None:
    """Runs the examples in an empty folder, and keeps the pictures that they save."""
    doc_blocks = importlib.import_module("doc_blocks")  # of the tests

    with tempfile.TemporaryDirectory() as folder:
        doc_blocks.printed(PAGE, Path(folder))
        shutil.rmtree(PICTURES, ignore_errors=True)
        PICTURES.mkdir()
        for picture in sorted(Path(folder).glob("*.svg")):
            # Where the functions stand in the guide's program says nothing to its readers.
            text = re.sub(r"( textLength[^<>]*)?>slow-loader_0\.py", ">train.py", picture.read_text(encoding="utf-8"))
            (PICTURES / picture.name).write_text(text, encoding="utf-8")
            print(f"{PICTURES.name}/{picture.name}")


if __name__ == "__main__":
    main()
