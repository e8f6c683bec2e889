"""Redraws the pictures of docs/guides/slow-loader.md by running the examples of that guide.

The numbers in the pictures are measured on the current machine.
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
    doc_blocks = importlib.import_module("doc_blocks")  # a module of the tests

    with tempfile.TemporaryDirectory() as folder:
        doc_blocks.printed(PAGE, Path(folder))
        shutil.rmtree(PICTURES, ignore_errors=True)
        PICTURES.mkdir()
        for picture in sorted(Path(folder).glob("*.svg")):
            # The pictures contain the file name of the program that has run, but the guide calls the program train.py.
            text = re.sub(r"( textLength[^<>]*)?>slow-loader_\d\.py", ">train.py", picture.read_text(encoding="utf-8"))
            (PICTURES / picture.name).write_text(text, encoding="utf-8")
            print(f"{PICTURES.name}/{picture.name}")


if __name__ == "__main__":
    main()
