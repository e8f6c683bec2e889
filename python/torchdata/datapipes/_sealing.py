"""Keeping a user's StopIteration from ending an iteration silently.

Role: a function that raises StopIteration inside a generator is an error (PEP 479), but inside the built-in
`map` it looks like the end of the data. Pipes that use `map` for speed seal it: at the end, once, it is
checked that a source ended too. Runs in the process that iterates the pipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from torchdata.datapipes.datapipe import IterDataPipe, token_of


def sealed(iterator: Iterator[Any], pipe: Any, sources: tuple[Any, ...]) -> Iterator[Any]:
    """`iterator`, but with an error at its end where none of the pipes in `sources` has ended.

    Raises:
        RuntimeError: while iterating, the function of `pipe` raised StopIteration.
    """
    return chain(iterator, _check_end(pipe, sources))


def _check_end(pipe: Any, sources: tuple[Any, ...]) -> Iterator[Any]:
    if all(isinstance(source, IterDataPipe) and not token_of(source).finished for source in sources):
        raise RuntimeError(
            f"{type(pipe).__name__}: the function raised StopIteration, which would end the iteration "
            f"although the source "
            "has more items; catch it in the function (`next(iterator, default)` does not raise it)"
        )
    yield from ()
