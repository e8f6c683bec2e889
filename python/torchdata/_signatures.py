"""Determines the signatures of functions with annotations that cannot be evaluated, and the names that code uses.

From Python 3.14 on, `inspect.signature` raises NameError for annotations with names imported under `if TYPE_CHECKING:`,
so `signature_of` replaces it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType

#: Like `inspect.signature`, with a `ForwardRef` for each annotation that cannot be evaluated.
signature_of: Callable[..., inspect.Signature]
if sys.version_info >= (3, 14):
    from annotationlib import Format

    signature_of = partial(inspect.signature, annotation_format=Format.FORWARDREF)
else:
    signature_of = inspect.signature


def names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)
