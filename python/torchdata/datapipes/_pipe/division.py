"""Which items of a sequence are whose: the arithmetic of a `sharding_filter`.

Role: pure functions over numbers. A sequence is dealt out in *units*: one item each, or a block of consecutive ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, compress, cycle, islice
from typing import Any

from torchdata._native import ShareIterator
from torchdata.datapipes._pipe.seeking import passes_over
from torchdata.datapipes._pipe.witnessing import Watch, next_sample, sample_behind

__all__ = ["Division"]


@dataclass(frozen=True)
class Division:
    """One share of several.

    Args:
        shards: how many shares there are.
        shard: which one this is.
        block: items of a unit.
    """

    shards: int
    shard: int
    block: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether the share is all there is."""
        return self.shards == 1

    def share_of(
        self,
        source: Iterator[Any],
        taken: int,
        watch: Watch | None = None,
        has_ended: Callable[[], bool] | None = None,
    ) -> Iterator[Any]:
        """The share of an iterator that yields item number `taken` next.

        Args:
            source: the iterator.
            taken: the number of its next item.
            watch: notes some items of the source; None for no notes.
            has_ended: with a watch, whether the source has ended.
        """
        if self.is_whole and watch is None:
            return source
        shards, shard, block, place = self.shards, self.shard, self.block, taken
        if passes_over(source):
            offset = place % (shards * block)
            before, others = shard * block - offset, (shards - 1) * block
            if -block < before <= 0:  # within the own block
                return ShareIterator(source, 0, block + before, others, block)
            return ShareIterator(source, before % (shards * block), block, others, block)
        own = [block * shard <= each < block * (shard + 1) for each in range(shards * block)]
        if watch is None or has_ended is None:
            return _own_of(source, own, block, place)
        return chain.from_iterable(_watched(source, own, block, place, taken, watch, has_ended))

    def after(self, taken: int, passed_on: int) -> int:
        """How many items of the sequence were taken with the last one that was passed on.

        Args:
            taken: how many had been taken at first.
            passed_on: how many of the share were passed on since, at least one.
        """
        rounds, place = divmod(self.own_before(taken) + passed_on - 1, self.block)
        return (self.shard + self.shards * rounds) * self.block + place + 1

    def own_before(self, item: int) -> int:
        """How many items of the share come before an item of the sequence."""
        unit, place = divmod(item, self.block)
        own = max(0, -(-(unit - self.shard) // self.shards)) * self.block
        return own + place if unit % self.shards == self.shard else own


def _own_of(source: Iterator[Any], own: list[bool], block: int, place: int, count: int | None = None) -> Iterator[Any]:
    """The own items among the next `count` ones of a source; None: among all.

    Args:
        source: the iterator.
        own: for each item of a round, whether it is an own one.
        block: how many of them are.
        place: the number of the next item in the rounds.
        count: how many items are taken.
    """
    offset = place % len(own)
    if block == 1:
        first = (own.index(True) - offset) % len(own)
        return islice(source, first if count is None else min(first, count), count, len(own))
    if count is None:
        return compress(source, chain(own[offset:], cycle(own)))
    return compress(islice(source, count), chain(own[offset : offset + count], cycle(own)))


def _watched(
    source: Iterator[Any],
    own: list[bool],
    block: int,
    place: int,
    taken: int,
    watch: Watch,
    has_ended: Callable[[], bool],
) -> Iterator[Iterator[Any]]:
    """The own items of a source as iterators one behind the other, between which items are sampled."""
    sample = next_sample(taken)
    while not watch.is_full:
        yield _own_of(source, own, block, place, sample - taken)
        if has_ended():  # it is not asked again: some iterators would start over
            return
        place, taken = place + sample - taken, sample
        sampled = [*islice(source, 1)]
        if not sampled:
            watch.end(taken)
            return
        watch.add(taken, sampled[0])
        if own[place % len(own)]:
            yield map(sampled.pop, (0,))  # no name keeps it alive
        place, taken, sample = place + 1, taken + 1, sample_behind(sample)
    yield _own_of(source, own, block, place)
