"""Pipes of random graphs: each node builds its pipe, and knows in plain Python what that must yield.

A model yields keys (see `items`), lists of keys for batches and rows. It is asked once for each worker, with a `Place`
that says which worker this is and what the dispatching process deals to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest

from random_loaders.items import Provoked, key_of
from torchdata.datapipes.iter import (
    SHARDING_PRIORITIES,
    Concater,
    IterableWrapper,
    IterDataPipe,
    Multiplexer,
    MultiplexerLongest,
    Zipper,
)


@dataclass
class Place:
    """Where a model runs, and what it finds out on the way."""

    worker: int = 0
    workers: int = 1
    #: The items that the dispatching process deals to this worker in one pass; an exception comes in its turn.
    dealt: list = field(default_factory=list)
    #: Whether functions fail that the plan has armed.
    armed: int | None = None
    #: Seconds of sleep and bytes of payload by now.
    seconds: float = 0.0
    bytes: int = 0


class Tagged(IterDataPipe):
    """Yields ids: the keys of a range, tagged with the epoch's seed."""

    def __init__(self, start, count):
        self.start, self.count, self.tag = start, count, 0

    def set_seed(self, seed):
        self.tag = seed & (1 << 30) - 1
        return self

    def __iter__(self):
        high = self.tag << 32
        return iter(range(high | self.start, (high | self.start) + self.count))


class Stay(IterDataPipe):
    """Passes everything on, in the main process."""

    def __init__(self, source):
        self.source = source

    def __iter__(self):
        return iter(self.source)

    def is_replicable(self):
        return False


class Node:
    """One pipe of a graph, or a few that belong together."""

    def __init__(self, *sources, **options):
        self.sources = sources
        self.options = options

    def __repr__(self):
        options = ", ".join(f"{name}={value!r}" for name, value in self.shown().items())
        own = f"{type(self).__name__}({options})"
        if not self.sources:
            return own
        if len(self.sources) == 1:
            return f"{self.sources[0]!r}\n  .{own}"
        inputs = "\n".join(repr(source) for source in self.sources).replace("\n", "\n      ")
        return f"{own} of\n      {inputs}"

    def __getattr__(self, name):
        try:
            return self.__dict__["options"][name]
        except KeyError:
            raise AttributeError(name) from None

    def shown(self):
        """The options that say what the node is."""
        return self.options

    def build(self):
        """The pipe, over those of the sources."""
        return self.over(*[source.build() for source in self.sources])

    def over(self, *pipes):
        raise NotImplementedError

    def model(self, place):
        """The items of the pipe at this place, as keys."""
        return self.of(place, *[source.model(place) for source in self.sources])

    def of(self, place, *streams):
        return streams[0]

    def walk(self):
        yield self
        for source in self.sources:
            yield from source.walk()


class Source(Node):
    def over(self):
        return Tagged(self.start, self.count)

    def of(self, place):
        return iter(range(self.start, self.start + self.count))


class Plain(Source):
    """The same without tags: a pipe that ships."""

    def over(self):
        return IterableWrapper(range(self.start, self.start + self.count))


class Collected(Node):
    """Stands in main's graph for what the workers send; is given their `pipe`, or the `stream` of their model."""

    def shown(self):
        return {}

    def over(self):
        return self.pipe()

    def of(self, place):
        return self.stream()


class Shard(Node):
    def over(self, pipe):
        return pipe.sharding_filter()

    def of(self, place, stream):
        return islice(stream, place.worker, None, place.workers)


class Dispatched(Node):
    """All before it runs in the dispatching process. Where that ends in a join, its branches are marked."""

    def build(self):
        (source,) = self.sources
        if isinstance(source, Forked):
            marked, other = source.sources[0].build().fork(2)
            return Zipper(self.over(marked), other)
        if len(source.sources) > 1:
            return source.over(*[self.over(branch.build()) for branch in source.sources])
        return self.over(source.build())

    def over(self, pipe):
        return pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)

    def model(self, place):
        for item in place.dealt:
            if isinstance(item, BaseException):
                raise item
            yield item


class Working(Node):
    def over(self, pipe):
        return pipe.map(self.function)

    def of(self, place, stream):
        for item in stream:
            place.seconds += self.function.seconds(key_of(item)) + 50e-6
            yield item


class Inflated(Node):
    def over(self, pipe):
        if self.threads:
            return pipe.threadpool_map(self.function, max_workers=self.threads, scheduled_tasks=2 * self.threads)
        return pipe.map(self.function)

    def of(self, place, stream):
        for item in stream:
            place.bytes += self.function.bytes(key_of(item))
            yield item


class Failing(Node):
    def over(self, pipe):
        return pipe.map(self.function)

    def of(self, place, stream):
        seen = self.options.get("seen")  # only while the plan is being made
        for item in stream:
            if seen is not None:
                seen.append(key_of(item))
            if place.armed == self.number and key_of(item) == self.function.key:
                raise Provoked("as planned")
            yield item


class FlatMapped(Node):
    def over(self, pipe):
        return pipe.flatmap(self.function)

    def of(self, place, stream):
        return chain.from_iterable(self.function.made(key_of(item)) for item in stream)


class Filtered(Node):
    def over(self, pipe):
        return pipe.filter(self.function)

    def of(self, place, stream):
        return filter(self.function, stream)


class Batched(Node):
    def over(self, pipe):
        return pipe.batch(self.size, drop_last=self.drop_last)

    def of(self, place, stream):
        while batch := list(islice(stream, self.size)):
            if len(batch) == self.size or not self.drop_last:
                yield batch


class Unbatched(Node):
    def over(self, pipe):
        return pipe.unbatch()

    def of(self, place, stream):
        return chain.from_iterable(stream)


class Prefetched(Node):
    def over(self, pipe):
        return pipe.prefetch(self.size)


class Pinned(Node):
    def over(self, pipe):
        return pipe.pin_memory(pin_memory_fn=self.function)

    def of(self, place, stream):
        for item in stream:
            place.seconds += self.function.seconds(key_of(item)) + 50e-6
            yield item


class Stayed(Node):
    def over(self, pipe):
        return Stay(pipe)


class Shuffled(Node):
    """The model keeps the order; whoever compares knows that it does not count."""

    def over(self, pipe):
        return pipe.shuffle(buffer_size=self.size)


class Headed(Node):
    def over(self, pipe):
        return pipe.header(self.size)

    def of(self, place, stream):
        return islice(stream, self.size)


class Cycled(Node):
    def over(self, pipe):
        return pipe.cycle(self.count)

    def model(self, place):
        for _ in range(self.count):
            yield from self.sources[0].model(place)


class Forked(Node):
    """Two copies of the stream, side by side."""

    def over(self, pipe):
        return Zipper(*pipe.fork(2))

    def of(self, place, stream):
        return ([item, item] for item in stream)


class Zipped(Node):
    def over(self, *pipes):
        return Zipper(*pipes)

    def of(self, place, *streams):
        return (list(row) for row in zip(*streams, strict=False))


class Muxed(Node):
    def over(self, *pipes):
        return Multiplexer(*pipes)

    def of(self, place, *streams):
        return chain.from_iterable(zip(*streams, strict=False))


class MuxedLongest(Node):
    def over(self, *pipes):
        return MultiplexerLongest(*pipes)

    def of(self, place, *streams):
        nothing = object()
        rows = chain.from_iterable(zip_longest(*streams, fillvalue=nothing))
        return (item for item in rows if item is not nothing)


class Concatenated(Node):
    def over(self, *pipes):
        return Concater(*pipes)

    def of(self, place, *streams):
        return chain.from_iterable(streams)


JOINS = (Zipped, Muxed, MuxedLongest, Concatenated)


def dealt(dispatched, workers, armed=None):
    """The items that each worker gets of one pass of the dispatching process, and the place that tells the cost."""
    place = Place(armed=armed)
    shares = [[] for _ in range(workers)]
    turn = 0
    try:
        for item in dispatched.sources[0].model(place):
            shares[turn % workers].append(item)
            turn += 1
    except Provoked as error:
        shares[turn % workers].append(error)
    return shares, place


def collected(streams):
    """The items of all workers in turn, those that have ended left out; pairs (worker, item)."""
    live = list(enumerate(streams))
    while live:
        still = []
        for worker, stream in live:
            try:
                item = next(stream)
            except StopIteration:
                continue
            still.append((worker, stream))
            yield worker, item
        live = still
