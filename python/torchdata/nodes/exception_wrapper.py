"""StartupExceptionWrapper, for nodes that users wrote after upstream's. The nodes here raise what was raised."""

from __future__ import annotations

from torch._utils import ExceptionWrapper

__all__ = ["ExceptionWrapper", "StartupExceptionWrapper"]


class StartupExceptionWrapper(ExceptionWrapper):
    """An exception that a thread met before it read its first item, on its way to another thread.

    Args:
        exc_info: what `sys.exc_info()` returned; None for the exception that is being handled.
        where: says where it was raised, for the message.
    """
