"""Determines the signatures of functions with annotations that cannot be evaluated.

Role: `signature_of` replaces `inspect.signature`, which from Python 3.14 on raises NameError if an annotation uses a
name that is imported under `if TYPE_CHECKING:`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial

#: Like `inspect.signature`, with a `ForwardRef` for each annotation that cannot be evaluated.
signature_of: Callable[..., inspect.Signature]
if sys.version_info >= (3, 14):
    from annotationlib import Format

    signature_of = partial(inspect.signature, annotation_format=Format.FORWARDREF)
else:
    signature_of = inspect.signature
