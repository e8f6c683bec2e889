"""Creates tables for the tests of Arrow and Lance."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow

from torchdata.datapipes.state import load_state, save_state


def table(start: int, end: int) -> Any:
    numbers = range(start, end)
    columns = {"a": [*numbers], "b": [f"t{number}" for number in numbers], "c": [number / 2 for number in numbers]}
    return pyarrow.table(columns, pyarrow.schema({"a": "int64", "b": "string", "c": "float64"}))


def check_exact(build: Any) -> None:
    """Resumes from a state at each position, and checks the remaining items and the next epoch.

    Arrow's threads close files with a delay, so the tests cannot use `check_restore`, which reports open files.
    """
    reading = build()
    epochs = [[str(item) for item in reading] for _ in range(2)]
    for position in range(len(epochs[0]) + 1):
        pipe = build()
        iterator = iter(pipe)
        assert [str(next(iterator)) for _ in range(position)] == epochs[0][:position]
        state = pickle.loads(pickle.dumps(save_state(pipe)))
        other = build()
        load_state(other, state)
        assert [str(item) for item in other] == epochs[0][position:]
        assert sorted(str(item) for item in other) == sorted(epochs[1])


def values(pipe: Any, column: str = "a") -> list[Any]:
    return [row[column] for row in pipe]
