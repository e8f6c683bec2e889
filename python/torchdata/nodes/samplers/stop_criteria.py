"""StopCriteria: determines when a node over several sources ends."""

from __future__ import annotations

__all__ = ["StopCriteria"]


class StopCriteria:
    """The criteria that end the epoch of a node over several sources.

    Example:
        >>> from torchdata.nodes import StopCriteria
        >>> StopCriteria.FIRST_DATASET_EXHAUSTED
        'FIRST_DATASET_EXHAUSTED'
    """

    #: The epoch ends when each source has ended at least once. A source that ends before the end of the epoch starts
    #: over.
    CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED = "CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED"
    #: The epoch ends when each source has ended. No source starts over, so every item is yielded once.
    ALL_DATASETS_EXHAUSTED = "ALL_DATASETS_EXHAUSTED"
    #: The epoch ends when one source has ended.
    FIRST_DATASET_EXHAUSTED = "FIRST_DATASET_EXHAUSTED"
    #: The epoch never ends. Sources that end start over.
    CYCLE_FOREVER = "CYCLE_FOREVER"
