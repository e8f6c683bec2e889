"""Names for pipes that have raised: a pipe that only reads a data set has the name of the data set's own code.

Pure functions, in whichever process an exception passes a pipe.
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
    """The user's code that makes the items of the map pipes which a pipe reads."""
    read = [source for source in sources_of(datapipe) if not is_iter_pipe(source)]
    return [code for source in read for code in codes_of_dataset(source, INDEXED)]


def counted_at(datapipe: Any) -> IterationToken:
    """Where the items are counted that are skipped at a pipe: at the map pipe that it reads, if that is counted."""
    for source in sources_of(datapipe):
        if not is_iter_pipe(source) and hasattr(source, "__dict__") and (token := token_of(source)).is_timed:
            return token
    return token_of(datapipe)


def blamed_name(datapipe: Any, error: BaseException | None = None) -> str:
    """What a pipe that has raised is called: by the user's code that it runs, if it only reads a data set.

    Args:
        datapipe: the pipe.
        error: what was raised; None if that is not known any more.
    """
    codes = codes_read_by(datapipe)
    if not codes and hasattr(datapipe, "iterable"):
        codes = codes_of_dataset(datapipe, ITERATED)
    found = codes[0] if len(codes) == 1 and error is None else None
    if error is not None:
        found = raised_in(error, codes)
    return name_of(datapipe) if found is None else str(found)
