"""Writes the API reference as HTML, out of the docstrings: `make docs` puts it into `docs/api/`.

Role: names the public modules and lets pdoc write their pages. Whatever pdoc warns of is an error.

    api_reference.py FOLDER
"""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path

import pdoc
import pdoc.render

#: The public modules. What they list in `__all__` is in the reference, and nothing else; `datapipes` brings its own.
MODULES = [
    "torchdata",
    "torchdata.datapipes",
    "torchdata.datapipes.state",
    "torchdata.dataloader2",
    "torchdata.dataloader2.adapter",
    "torchdata.dataloader2.error",
    "torchdata.dataloader2.graph",
    "torchdata.dataloader2.linter",
    "torchdata.dataloader2.random",
    "torchdata.dataloader2.reading_service",
    "torchdata.dataloader2.shuffle_spec",
    "torchdata.dataloader2.utils",
]


def for_users(docstring: str | None) -> str | None:
    """A module's docstring without the paragraph that tells developers its role, process and thread."""
    if docstring is None:
        return None
    return "\n\n".join(part for part in docstring.split("\n\n") if not part.startswith("Role: "))


def write(folder: Path) -> None:
    """Writes all pages into the folder, and an index."""
    for name in MODULES:
        importlib.import_module(name)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "torchdata":
            module.__doc__ = for_users(module.__doc__)
    pdoc.render.configure(docformat="google", show_source=False, footer_text="torchdata-rs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdoc.pdoc(*MODULES, output_directory=folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    write(Path(sys.argv[1]))
