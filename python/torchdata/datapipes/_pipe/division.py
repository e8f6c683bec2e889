"""Which items of a sequence are whose: the arithmetic of a `sharding_filter`.

Role: pure functions over numbers. A sequence is dealt out in *units*: one item each, or a block of consecutive ones.
If it is shared anew in the middle of an epoch, some units were given to the user already: all before one, and some
behind it. The units that are left are counted from 0 on, and dealt out in turn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, compress, cycle, islice
from typing import Any

from torchdata._native import ShareIterator
from torchdata.datapipes._pipe.seeking import passes_over
from torchdata.datapipes._pipe.witnessing import Watch, next_sample, sample_behind

__all__ = ["Division", "Given", "given_from"]

#: More units than a sequence has.
_MOST = 1 << 46

#: How many units at most may be given behind one that was not. Each is told by its number.
_FURTHEST = 1 << 20


@dataclass(frozen=True)
class Given:
    """The units of a sequence that the user was given.

    Args:
        first: the first one that is left: all before it were given.
        beyond: those behind it that were given, too, in order.
    """

    first: int = 0
    beyond: tuple[int, ...] = ()

    def unit(self, place: int) -> int:
        """The number of the unit that is left of which so many before it are left."""
        unit = self.first + place
        for given in self.beyond:
            if given > unit:
                break
            unit += 1
        return unit

    def left_before(self, unit: int) -> int:
        """How many units before this one are left."""
        return max(0, unit - self.first - bisect_left(self.beyond, unit))

    def has(self, unit: int) -> bool:
        """Whether the unit was given."""
        place = bisect_left(self.beyond, unit)
        return unit < self.first or (place < len(self.beyond) and self.beyond[place] == unit)

    def and_next(self, count: int) -> Given:
        """The units that were given, once the next ones were given too, in order."""
        first = self.unit(count)
        return Given(first, tuple(unit for unit in self.beyond if unit > first))

    def and_shares(self, shares: list[Given]) -> Given:
        """The units that were given, once those that were left were dealt out in turn.

        Args:
            shares: by shard, what was given of its units, by their numbers in the shard.

        Raises:
            ValueError: some are too far ahead of others for each unit to be told.
        """
        count = len(shares)
        first = min(shard + count * share.first for shard, share in enumerate(shares))
        begins = [max(0, -(-(first - shard) // count)) for shard in range(count)]
        if sum(max(0, share.first - begin) for begin, share in zip(begins, shares, strict=True)) > _FURTHEST:
            raise ValueError(f"some workers or ranks have given more than {_FURTHEST} units that others come before")
        beyond: set[int] = set()
        for shard, (begin, share) in enumerate(zip(begins, shares, strict=True)):
            numbers = chain(range(begin, share.first), share.beyond)
            beyond.update(shard + count * number for number in numbers)
        left = self.unit(first)
        units = {self.unit(place) for place in beyond if place > first}
        return Given(left, tuple(sorted(units.union(unit for unit in self.beyond if unit > left))))

    def left_of(self, source: Iterator[Any], taken: int, block: int = 1) -> Iterator[Any]:
        """The rest of an iterator that yields item number `taken` next."""
        return Division(1, 0, block, self).share_of(source, taken)


@dataclass(frozen=True)
class Division:
    """One share of several.

    Args:
        shards: how many shares there are.
        shard: which one this is.
        block: items of a unit.
        given: what was given before the sequence was shared like this.
    """

    shards: int
    shard: int
    block: int = 1
    given: Given = Given()

    @property
    def is_whole(self) -> bool:
        """Whether the share is all there is."""
        return self.shards == 1 and not self.given.first and not self.given.beyond

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
        beyond = self.given.beyond
        start = max(taken, self.given.first * self.block)
        if start > taken:
            source = islice(source, start - taken, None)
        stop = (beyond[-1] + 1) * self.block if beyond else 0
        if start >= stop:
            return self._in_turn(source, start, watch, has_ended)
        # A generator: the numbers of units come from a state, and a list would be as long as they say.
        own = (self._owns(item) for item in range(start, stop))
        return chain(compress(islice(source, stop - start), own), self._in_turn(source, stop))

    def _in_turn(
        self,
        source: Iterator[Any],
        taken: int,
        watch: Watch | None = None,
        has_ended: Callable[[], bool] | None = None,
    ) -> Iterator[Any]:
        """The same behind all that was given."""
        shards, shard, block = self.shards, self.shard, self.block
        if shards == 1 and watch is None:
            return source
        place = taken - (self.given.first + len(self.given.beyond)) * block
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

    def _owns(self, item: int) -> bool:
        unit = item // self.block
        return not self.given.has(unit) and self.given.left_before(unit) % self.shards == self.shard

    def after(self, taken: int, passed_on: int) -> int:
        """How many items of the sequence were taken with the last one that was passed on.

        Args:
            taken: how many had been taken at first.
            passed_on: how many of the share were passed on since, at least one.
        """
        rounds, place = divmod(self.own_before(taken) + passed_on - 1, self.block)
        return self.given.unit(self.shard + self.shards * rounds) * self.block + place + 1

    def own_before(self, item: int) -> int:
        """How many items of the share come before an item of the sequence."""
        unit, place = divmod(item, self.block)
        left = self.given.left_before(unit)
        own = max(0, -(-(left - self.shard) // self.shards)) * self.block
        return own + place if self._owns(item) else own


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


def given_from(first: Any, beyond: Iterable[Any]) -> Given:
    """The units that were given, as a state has them.

    Raises:
        ValueError: it cannot be.
    """
    given = Given(first, tuple(beyond))
    if not all(type(unit) is int and 0 <= unit < _MOST for unit in (first, *given.beyond)):
        raise ValueError("what was given is not told by numbers")
    if given.beyond and (given.beyond[0] <= first or list(given.beyond) != sorted(set(given.beyond))):
        raise ValueError("the numbers of what was given are not in order")
    return given
