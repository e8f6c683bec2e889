"""How unevenly the ranks of a job wait for data."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from torchdata._observe.metrics.values import services_in
from torchdata._observe.show.table import duration, percent
from torchdata._observe.stats.model import LoaderStats

__all__ = ["RankSkew", "rank_skew"]

#: A share in millionths takes these bits below the microseconds.
_SHARE_BITS = 20


@dataclass(frozen=True)
class RankSkew:
    """How long each rank has waited for its own workers. The one that waits most holds up the others.

    Args:
        waiting_seconds: by rank.
        waiting: by rank, as a share of its time in epochs.
    """

    waiting_seconds: tuple[float, ...]
    waiting: tuple[float, ...]

    @property
    def least(self) -> int:
        """The rank that waited least."""
        return min(range(len(self.waiting_seconds)), key=self.waiting_seconds.__getitem__)

    @property
    def most(self) -> int:
        """The rank that waited most."""
        return max(range(len(self.waiting_seconds)), key=self.waiting_seconds.__getitem__)

    @property
    def min(self) -> float:
        """Seconds that the rank waited that waited least."""
        return self.waiting_seconds[self.least]

    @property
    def median(self) -> float:
        """Seconds that half of the ranks waited at most."""
        return median(self.waiting_seconds)

    @property
    def max(self) -> float:
        """Seconds that the rank waited that waited most."""
        return self.waiting_seconds[self.most]

    def __str__(self) -> str:
        return (
            f"of {len(self.waiting)} ranks, rank {self.most} waits most for data: {duration(self.max)} "
            f"({percent(self.waiting[self.most])}); the median is {duration(self.median)}, the least "
            f"{duration(self.min)} (rank {self.least})"
        )


def rank_skew(loader: Any, since: LoaderStats | None = None) -> RankSkew:
    """See `torchdata.metrics.rank_skew`."""
    service = next((one for one in services_in(loader.reading_service) if hasattr(one, "_gather")), None)
    if service is None:
        raise TypeError("rank_skew compares the ranks of a DistributedReadingService, and this loader has none")
    stats = loader.stats(since)
    share = round(stats.waiting * 1e6)
    packed = service._gather((round(stats.waiting_seconds * 1e6) << _SHARE_BITS) | share)
    mask = (1 << _SHARE_BITS) - 1
    return RankSkew(
        tuple((value >> _SHARE_BITS) * 1e-6 for value in packed),
        tuple((value & mask) * 1e-6 for value in packed),
    )
