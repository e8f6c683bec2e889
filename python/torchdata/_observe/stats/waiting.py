"""The message about an epoch that spent much time waiting for its loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchdata._observe.show.table import duration, percent
from torchdata._observe.stats.diagnosis import diagnose

if TYPE_CHECKING:
    from torchdata._observe.stats.model import LoaderStats


def waited_for_long(stats: LoaderStats, loader: str, share: float) -> str | None:
    """Returns None if the program waited for at most `share` of the epoch."""
    first = (stats.first_item_seconds or 0.0) * stats.epochs
    inside = stats.loading if stats.loading is not None else stats.waiting
    whole = first + stats.seconds
    waited = (first + inside * stats.seconds) / whole if whole > 0 else 0.0
    verdict = diagnose(stats)
    if waited <= share or verdict.kind in ("training", "too early", "empty"):
        return None
    return (
        f"{loader}: epoch {stats.epoch} has waited {percent(waited)} of {duration(whole)} for the loader. {verdict} "
        "(wait_warning=None or TORCHDATA_WAIT_WARNING=0 turns this line off)"
    )
