"""Names pipes in error messages. A pipe that only reads a dataset gets the name of the dataset's class or function.

The functions of this module are pure and run in the process that raises the exception.
"""

from __future__ import annotations

from typing import Any

from torchdata._native import IterationToken
from torchdata._reporting import name_of
from torchdata._users_code import INDEXED, ITERATED, UsersCode, codes_of_dataset, raised_in
from torchdata.datapipes._pipe.graph.traversal import is_iter_pipe, sources_of
from torchdata.datapipes._pipe.state.record import token_of

__all__ = ["blamed_name", "codes_read_by", "counted_at"]


def codes_read_by(datapipe: Any) -> list[UsersCode]:
    """Returns the user's methods, such as `__getitem__`, that the map-style sources of `datapipe` call."""
    read = [source for source in sources_of(datapipe) if not is_iter_pipe(source)]
    return [code for source in read for code in codes_of_dataset(source, INDEXED)]


def counted_at(datapipe: Any) -> IterationToken:
    """Returns the token that counts a pipe's skipped items: that of a map-style source if the loader times it, or the
    pipe's."""
    for source in sources_of(datapipe):
        if not is_iter_pipe(source) and hasattr(source, "__dict__") and (token := token_of(source)).is_timed:
            return token
    return token_of(datapipe)


def blamed_name(datapipe: Any, error: BaseException | None = None) -> str:
    """Returns the name of a pipe for messages. For a pipe that reads a dataset, this is the name of the dataset's code,
    if it has raised `error` or no error is given."""
    codes = codes_read_by(datapipe)
    if not codes and hasattr(datapipe, "iterable"):
        codes = codes_of_dataset(datapipe, ITERATED)
    found = codes[0] if len(codes) == 1 and error is None else None
    if error is not None:
        found = raised_in(error, codes)
    return name_of(datapipe) if found is None else str(found)
