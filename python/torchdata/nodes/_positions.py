"""Handles nodes that do not support states.

Role: some nodes save the position of their source even if the program requests no state. For example, nodes that read
ahead save the position at each item. These nodes must also work with a source that does not support states. The
source's error is therefore stored instead of its position, and is raised only if the program requests a state.
"""

from __future__ import annotations

from typing import Any

from torchdata.nodes.base_node import BaseNode

__all__ = ["Unsaved", "position_of", "state_at"]


class Unsaved:
    """Replaces the position of a node that does not support states.

    Args:
        error: the error that the node raised.
    """

    def __init__(self, error: NotImplementedError) -> None:
        self.error = error.with_traceback(None)  # the frames of the traceback would keep their variables alive


def position_of(node: BaseNode[Any]) -> Any:
    """Returns the state of a node, or `Unsaved` if it raises NotImplementedError."""
    try:
        return node.state_dict()
    except NotImplementedError as error:
        return Unsaved(error)


def state_at(position: Any) -> Any:
    """Returns a result of `position_of` if it is a state.

    Raises:
        NotImplementedError: the node does not support states.
    """
    if type(position) is Unsaved:
        raise position.error.with_traceback(None)
    return position
