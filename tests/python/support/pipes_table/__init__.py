"""A table of pipes. Each row describes how to build one pipe over ints, and how to compute its expected items.

`test_pipes_model.py` tests each pipe's items, states, later epochs, copies, failing sources and workers. A pipe's row
can be in any module of this package. `BAD_ARGUMENTS` lists wrong arguments with the expected errors."""

import importlib
import pkgutil

import pytest

from pipes_table.row import BadArgument, Row, seed

__all__ = ["BAD_ARGUMENTS", "ELSEWHERE", "IGNORES_WARNINGS_OF_PIPES", "ROWS", "Row", "seed"]

#: Marks for tests that use the pipes of all rows: the tests ignore warnings that some of these pipes issue.
IGNORES_WARNINGS_OF_PIPES = [
    pytest.mark.filterwarnings("ignore:Some child DataPipes are not exhausted"),
    pytest.mark.filterwarnings("ignore:The length of this HeaderIterDataPipe"),
]
ROWS: list[Row] = []
BAD_ARGUMENTS: list[BadArgument] = []

for _module in sorted(info.name for info in pkgutil.iter_modules(__path__) if info.name not in ("folders", "row")):
    _rows = importlib.import_module(f"{__name__}.{_module}")
    ROWS += _rows.ROWS
    BAD_ARGUMENTS += getattr(_rows, "BAD_ARGUMENTS", [])

_names = [row.name for row in ROWS]
assert len(set(_names)) == len(_names), f"names of rows must differ: {sorted(_names)}"

ELSEWHERE = {
    "AISFileLister": "test_aistore.py",
    "AISFileLoader": "test_aistore.py",
    "FullSync": "test_distributed.py",
    "GDriveReader": "test_online.py",
    "HttpReader": "test_online.py",
    "HuggingFaceHubReader": "test_huggingface.py",
    "LanceReader": "test_lance.py",
    "OnlineReader": "test_online.py",
    "PinMemory": "test_pinning.py",
    "S3FileLister": "test_s3.py",
    "S3FileLoader": "test_s3.py",
}
