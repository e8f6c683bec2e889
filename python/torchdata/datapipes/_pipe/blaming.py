"""Names pipes in error messages. If a pipe only reads a dataset, an error message names the class or function of the
dataset instead of the pipe."""

from __future__ import annotations

from typing import Any

from torchdata._native import IterationToken
from torchdata._reporting import name_of
from torchdata._users_code import INDEXED, ITERATED, UsersCode, codes_of_dataset, raised_in
from torchdata.datapipes._pipe.graph.traversal import is_iter_pipe, sources_of
from torchdata.datapipes._pipe.state.record import token_of


def codes_read_by(datapipe: Any) -> list[UsersCode]:
    read = [source for source in sources_of(datapipe) if not is_iter_pipe(source)]
    return [code for source in read for code in codes_of_dataset(source, INDEXED)]


def counted_at(datapipe: Any) -> IterationToken:
    """Returns the `IterationToken` that counts the skipped items of a pipe. If the loader times a map-style source of
    the pipe, returns the token of this source; otherwise, the token of the pipe.
    """
    for source in sources_of(datapipe):
        if not is_iter_pipe(source) and hasattr(source, "__dict__") and (token := token_of(source)).is_timed:
            return token
    return token_of(datapipe)


def blamed_name(datapipe: Any, error: BaseException | None = None) -> str:
    """Returns the name of the dataset that raised `error`. If `error` is None, returns the name of the only dataset
    that the pipe reads. If no dataset is found, returns the name of the pipe."""
    codes = codes_read_by(datapipe)
    if not codes and hasattr(datapipe, "iterable"):
        codes = codes_of_dataset(datapipe, ITERATED)
    found = codes[0] if len(codes) == 1 and error is None else None
    if error is not None:
        found = raised_in(error, codes)
    return name_of(datapipe) if found is None else str(found)
