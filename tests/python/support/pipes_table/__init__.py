"""The table of pipes.

Each row describes how to build a pipe over a source of ints, and computes its items by a model in plain Python.
For every row, `test_pipes_model.py` compares the items with the model, and tests states at every position, later
epochs, copies, failing sources, and two workers. To test a new pipe, add a row to a module of this package. All modules
of the package are found automatically. `BAD_ARGUMENTS` lists wrong arguments with the expected errors.
"""

from __future__ import annotations

import importlib
import pkgutil

from pipes_table.row import BadArgument, Row, seed

__all__ = ["BAD_ARGUMENTS", "ROWS", "Row", "seed"]

ROWS: list[Row] = []
BAD_ARGUMENTS: list[BadArgument] = []

for _module in sorted(info.name for info in pkgutil.iter_modules(__path__) if info.name not in ("folders", "row")):
    _rows = importlib.import_module(f"{__name__}.{_module}")
    ROWS += _rows.ROWS
    BAD_ARGUMENTS += getattr(_rows, "BAD_ARGUMENTS", [])

_names = [row.name for row in ROWS]
assert len(set(_names)) == len(_names), f"names of rows must differ: {sorted(_names)}"
