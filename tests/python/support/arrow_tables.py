"""Creates tables for the tests of Arrow and Lance."""

from typing import Any

import pyarrow

from stream_checks import check_restore


def table(start: int, end: int) -> Any:
    numbers = range(start, end)
    columns = {"a": [*numbers], "b": [f"t{number}" for number in numbers], "c": [number / 2 for number in numbers]}
    return pyarrow.table(columns, pyarrow.schema({"a": "int64", "b": "string", "c": "float64"}))


def check_exact(build: Any) -> None:
    """Checks that states are exact, but not that files are closed, because Arrow's threads close files with a delay."""
    check_restore(build, keep=str, seeded=True, files=False)


def values(pipe: Any, column: str = "a") -> list[Any]:
    return [row[column] for row in pipe]
