"""Places of nodes: asking for one that may not be had.

Role: a node that takes the place of its source for a state that nobody may ask for (read-ahead does so at each item)
must work over a source that has no states. The error is kept in the place's stead, and raised if a state is asked
for.
"""

from __future__ import annotations

from typing import Any

from torchdata.nodes.base_node import BaseNode

__all__ = ["Unsaved", "place_of", "state_at"]


class Unsaved:
    """Stands for the place of a node that has no states.

    Args:
        error: what it raised when it was asked for one.
    """

    def __init__(self, error: NotImplementedError) -> None:
        self.error = error.with_traceback(None)  # whose frames would keep alive whatever they hold


def place_of(node: BaseNode[Any]) -> Any:
    """The state of a node, or `Unsaved` where it raises NotImplementedError."""
    try:
        return node.state_dict()
    except NotImplementedError as error:
        return Unsaved(error)


def state_at(place: Any) -> Any:
    """The state that `place_of` has found.

    Raises:
        NotImplementedError: it has found that there is none.
    """
    if type(place) is Unsaved:
        raise place.error.with_traceback(None)
    return place
