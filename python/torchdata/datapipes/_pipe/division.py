"""Assigns the items of a sequence to shards, for `sharding_filter`: each shard in turn receives a block of consecutive
items."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, compress, cycle, islice
from typing import Any, NamedTuple

from torchdata._native import ShareIterator
from torchdata.datapipes._pipe.seeking import passes_over
from torchdata.datapipes._pipe.witnessing import SampleWatch, next_sample, sample_after


class Division(NamedTuple):
    shards: int
    shard: int
    block: int = 1

    @property
    def is_whole(self) -> bool:
        return self.shards == 1

    def share_of(
        self,
        source: Iterator[Any],
        taken: int,
        watch: SampleWatch | None = None,
        has_ended: Callable[[], bool] | None = None,
    ) -> Iterator[Any]:
        """Returns an iterator over the items of `source` that belong to this shard.

        Args:
            taken: the index of the iterator's next item, counted over the items of all shards.
            watch: the `SampleWatch` that samples the source's items; None for no samples.
            has_ended: a function that returns whether the source is exhausted; required only if `watch` is given.
        """
        if self.is_whole and watch is None:
            return source
        shards, shard, block, index = self.shards, self.shard, self.block, taken
        if passes_over(source):
            offset = index % (shards * block)
            before, others = shard * block - offset, (shards - 1) * block
            if -block < before <= 0:  # the next item belongs to a block of this shard
                return ShareIterator(source, 0, block + before, others, block)
            return ShareIterator(source, before % (shards * block), block, others, block)
        own = [block * shard <= each < block * (shard + 1) for each in range(shards * block)]
        if watch is None or has_ended is None:
            return _own_of(source, own, block, index)
        return chain.from_iterable(_watched(source, own, block, index, taken, watch, has_ended))

    def after(self, taken: int, passed_on: int) -> int:
        """Returns the position after the item that the shard has yielded last, counted over the items of all shards.

        Args:
            taken: the position of the iteration's first item, counted over the items of all shards.
            passed_on: the number of items that the shard has yielded in the iteration, at least one.
        """
        rounds, index = divmod(self.own_before(taken) + passed_on - 1, self.block)
        return (self.shard + self.shards * rounds) * self.block + index + 1

    def own_before(self, item: int) -> int:
        unit, index = divmod(item, self.block)
        own = max(0, -(-(unit - self.shard) // self.shards)) * self.block
        return own + index if unit % self.shards == self.shard else own


def _own_of(source: Iterator[Any], own: list[bool], block: int, index: int, count: int | None = None) -> Iterator[Any]:
    """Returns the shard's items among the next `count` items of a source.

    Args:
        own: for each item of a round, whether it belongs to this shard; a round consists of one block of items per
            shard.
        block: the number of consecutive items that a shard receives at once.
        index: the index of the source's next item, counted over the items of all shards.
    """
    offset = index % len(own)
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
    index: int,
    taken: int,
    watch: SampleWatch,
    has_ended: Callable[[], bool],
) -> Iterator[Iterator[Any]]:
    sample = next_sample(taken)
    while not watch.is_full:
        yield _own_of(source, own, block, index, sample - taken)
        if has_ended():  # some exhausted iterators start again if they are called
            return
        index, taken = index + sample - taken, sample
        sampled = [*islice(source, 1)]
        if not sampled:
            watch.end(taken)
            return
        watch.add(taken, sampled[0])
        if own[index % len(own)]:
            yield map(sampled.pop, (0,))  # no variable refers to the item, so the user can free it
        index, taken, sample = index + 1, taken + 1, sample_after(sample)
    yield _own_of(source, own, block, index)
