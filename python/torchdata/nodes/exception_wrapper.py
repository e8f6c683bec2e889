"""StartupExceptionWrapper, for user-defined nodes that were written for PyTorch's torchdata."""

from __future__ import annotations

from torch._utils import ExceptionWrapper

__all__ = ["ExceptionWrapper", "StartupExceptionWrapper"]


class StartupExceptionWrapper(ExceptionWrapper):
    """Transports an exception from a thread that failed before it read its first item.

    Args:
        exc_info: a result of `sys.exc_info()`; None for the exception that is being handled.
        where: the location of the error, for the message.
    """
