"""StopCriteria: when a node that reads several others ends."""

from __future__ import annotations

__all__ = ["StopCriteria"]


class StopCriteria:
    """Names of the ways in which a node over several sources ends its epoch.

    Example:
        >>> from torchdata.nodes import StopCriteria
        >>> StopCriteria.FIRST_DATASET_EXHAUSTED
        'FIRST_DATASET_EXHAUSTED'
    """

    #: When each source has ended at least once. One that ends before begins anew.
    CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED = "CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED"
    #: When each source has ended. None begins anew: every item comes once.
    ALL_DATASETS_EXHAUSTED = "ALL_DATASETS_EXHAUSTED"
    #: When one source has ended.
    FIRST_DATASET_EXHAUSTED = "FIRST_DATASET_EXHAUSTED"
    #: Never. Sources that end begin anew.
    CYCLE_FOREVER = "CYCLE_FOREVER"
