"""Pipes that join several pipes: Concater, Zipper, ZipperLongest, Multiplexer, MultiplexerLongest,
SampleMultiplexer."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from typing import Any, overload

from torchdata.datapipes._pipe.checks import check_source, check_sources, check_weights, length_of
from torchdata.datapipes._pipe.seeding import Seeded
from torchdata.datapipes._pipe.state.declared import checked_state, random_state, state
from torchdata.datapipes._pipe.unfolding import Unfolding
from torchdata.datapipes.datapipe import IterDataPipe, R, T, T_co

__all__ = ["Concater", "Multiplexer", "MultiplexerLongest", "SampleMultiplexer", "Zipper", "ZipperLongest"]


_ZIPPED = "All inputs are required to be `IterDataPipe` for `ZipIterDataPipe`."


class Concater(IterDataPipe[Any]):
    """Yields the items of its inputs, one input after another. `a + b` is the same as `a.concat(b)`.

    Args:
        datapipes: the pipes or datasets to read.

    Raises:
        ValueError: no input is given.
        TypeError: an input is neither an IterDataPipe nor a dataset.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper("ab").concat(IterableWrapper("c")))
        ['a', 'b', 'c']
    """

    _current: int = checked_state(lambda pipe: (range(len(pipe.datapipes)),), 0)

    def __init__(self, *datapipes: Any) -> None:
        self.datapipes = check_sources("Concater", datapipes)

    def __iter__(self) -> Iterator[Any]:
        # `iter` must be called here, before the first item is requested, because the first input may resume from a
        # loaded state.
        return chain.from_iterable(self._inputs(iter(self.datapipes[self._current])))

    def _inputs(self, current: Iterator[Any]) -> Iterator[Iterator[Any]]:
        yield current
        while self._current + 1 < len(self.datapipes):
            self._current += 1
            yield iter(self.datapipes[self._current])

    def __len__(self) -> int:
        return sum(length_of(self, datapipe) for datapipe in self.datapipes)

    def _sources_in_use(self) -> list[Any]:
        return [self.datapipes[self._current]]


class Zipper(IterDataPipe[T_co]):
    """Yields tuples of one item of each input, until the shortest input ends.

    Args:
        datapipes: the pipes or datasets to read.

    Raises:
        ValueError: no input is given.
        TypeError: an input is neither an IterDataPipe nor a dataset.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper("ab").zip(IterableWrapper(range(5))))
        [('a', 0), ('b', 1)]
    """

    iteration_state = ()

    @overload
    def __init__(self: Zipper[tuple[T]], source: Iterable[T], /) -> None: ...

    @overload
    def __init__(self: Zipper[tuple[T, R]], source: Iterable[T], other: Iterable[R], /) -> None: ...

    @overload
    def __init__(self: Zipper[tuple[Any, ...]], *datapipes: Any) -> None: ...

    def __init__(self, *datapipes: Any) -> None:
        self.datapipes = check_sources("Zipper", datapipes, words=_ZIPPED)

    def __iter__(self) -> Iterator[Any]:
        return zip(*self.datapipes, strict=False)

    def __len__(self) -> int:
        return min(length_of(self, datapipe) for datapipe in self.datapipes)


class Multiplexer(Unfolding, IterDataPipe[Any]):
    """Yields one item of each input in turn, until the shortest input ends. If an input ends within a round, the items
    of the incomplete round are not yielded.

    Args:
        datapipes: the pipes or datasets to read.

    Raises:
        ValueError: no input is given.
        TypeError: an input is neither an IterDataPipe nor a dataset.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper("abc").mux(IterableWrapper(range(2))))
        ['a', 0, 'b', 1]
    """

    def __init__(self, *datapipes: Any) -> None:
        self.datapipes = check_sources("Multiplexer", datapipes)

    def __iter__(self) -> Iterator[Any]:
        return self._unfold(zip(*self.datapipes, strict=False), tuple)

    def __len__(self) -> int:
        return min(length_of(self, datapipe) for datapipe in self.datapipes) * len(self.datapipes)


class ZipperLongest(IterDataPipe[tuple[Any, ...]]):
    """Yields tuples of one item of each input, until the longest input ends.

    Args:
        datapipes: the pipes or datasets to read.
        fill_value: the value for inputs that have ended; None by default.

    Raises:
        ValueError: no input is given.
        TypeError: an input is neither an IterDataPipe nor a dataset.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper("ab").zip_longest(IterableWrapper(range(3)), fill_value="-"))
        [('a', 0), ('b', 1), ('-', 2)]
    """

    iteration_state = ()

    def __init__(self, *datapipes: Any, fill_value: Any = None) -> None:
        self.datapipes = check_sources("ZipperLongest", datapipes)
        self.fill_value = fill_value

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return zip_longest(*self.datapipes, fillvalue=self.fill_value)

    def __len__(self) -> int:
        return max(length_of(self, datapipe) for datapipe in self.datapipes)


class MultiplexerLongest(IterDataPipe[Any]):
    """Yields one item of each input in turn, and skips inputs that have ended, until all inputs have ended.

    Args:
        datapipes: the pipes or datasets to read.

    Raises:
        TypeError: an input is neither an IterDataPipe nor a dataset.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper("a").mux_longest(IterableWrapper(range(3))))
        ['a', 0, 1, 2]
    """

    _turn: int = state(0)

    def __init__(self, *datapipes: Any) -> None:
        self.datapipes = tuple(
            check_source("MultiplexerLongest", datapipe, f"input {position}")
            for position, datapipe in enumerate(datapipes)
        )

    def __iter__(self) -> Iterator[Any]:
        return self._in_turn([iter(datapipe) for datapipe in self.datapipes])

    def _in_turn(self, iterators: list[Iterator[Any]]) -> Iterator[Any]:
        waiting = list(enumerate(iterators, 1))
        turns = waiting[self._turn :]
        while waiting:
            for entry in turns:
                following, iterator = entry
                for item in iterator:
                    self._turn = following
                    yield item
                    break
                else:
                    waiting.remove(entry)
            turns = waiting.copy()

    def __len__(self) -> int:
        return sum(length_of(self, datapipe) for datapipe in self.datapipes)


class SampleMultiplexer(Seeded, IterDataPipe[Any]):
    """Yields items of inputs that are chosen at random by their weights, until all inputs have ended.

    If an input has ended, items are chosen from the remaining inputs. To keep the ratio between the inputs until the
    end, use inputs without an end, for example by `cycle`.

    Args:
        pipes_to_weights_dict: the pipes to read, each with its positive weight.
        seed: the seed of all random choices; `set_seed` and DataLoader2 do not change this seed. The first iteration of
            a new pipe makes the same choices as in torchdata 0.9; later iterations continue with the same random
            generator. With `seed=None` (the default), every iteration has its own seed, as for `shuffle`.

    Raises:
        ValueError: no input is given, or a weight is not positive and finite.
        TypeError: the argument is not a dict, a key is not an IterDataPipe, or a weight is not a number.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper, SampleMultiplexer
        >>> often, seldom = IterableWrapper("aaaa"), IterableWrapper("b")
        >>> list(SampleMultiplexer({often: 0.9, seldom: 0.1}, seed=2))
        ['b', 'a', 'a', 'a', 'a']
        >>> list(often.sample_multiplex({seldom: 0.1}, weight=0.9, seed=2))
        ['b', 'a', 'a', 'a', 'a']
    """

    _left: list[int] = checked_state(lambda pipe: ([range(len(pipe.pipes_and_weights))],), list)
    _rng: random.Random = random_state(lasts=True)

    def __init__(self, pipes_to_weights_dict: dict[Any, float], seed: int | None = None) -> None:
        name = "SampleMultiplexer"
        if isinstance(pipes_to_weights_dict, dict) and not pipes_to_weights_dict:
            raise ValueError(f"{name}: Empty dictionary: pipes_to_weights_dict must name the pipes to read")
        weights = check_weights(name, "pipes_to_weights_dict", pipes_to_weights_dict, positive=True)
        pipes = check_sources(name, pipes_to_weights_dict)
        self.pipes_and_weights = list(zip(pipes, weights, strict=True))
        self.seed = seed
        self._rng = random.Random(seed)

    def set_seed(self, seed: int) -> SampleMultiplexer:
        """Makes `seed` the seed of the next iteration only, unless the constructor received a seed.

        Returns the pipe itself.
        """
        return super().set_seed(seed) if self.seed is None else self

    def reset(self) -> None:
        """Restarts all inputs. Seeds the random generator, unless the constructor received a seed."""
        self._left = list(range(len(self.pipes_and_weights)))
        if self.seed is None:
            self._rng.seed(self._take_seed())

    def __iter__(self) -> Iterator[Any]:
        return self._chosen([iter(pipe) for pipe, _ in self.pipes_and_weights])

    def _chosen(self, iterators: list[Iterator[Any]]) -> Iterator[Any]:
        draw, shares = self._rng.random, self._shares()
        while len(shares) > 1:
            point, passed = draw(), 0.0
            for number, share in shares:
                passed += share
                if point < passed:
                    for item in iterators[number]:
                        yield item
                        break
                    else:
                        self._left.remove(number)
                        shares = self._shares()
                    break
        for number, _ in shares:
            yield from iterators[number]

    def _shares(self) -> list[tuple[int, float]]:
        weights = [self.pipes_and_weights[number][1] for number in self._left]
        total = sum(weights)
        return [(number, weight / total) for number, weight in zip(self._left, weights, strict=True)]

    def __len__(self) -> int:
        return sum(length_of(self, pipe) for pipe, _ in self.pipes_and_weights)


def _sample_multiplex(
    source_datapipe: IterDataPipe[Any],
    pipes_to_weights_dict: dict[Any, float],
    seed: int | None = None,
    weight: float = 1.0,
) -> SampleMultiplexer:
    """Yields items of pipes that are chosen at random by their weights, until all pipes have ended.

    Args:
        seed: as for `SampleMultiplexer`.
        weight: the weight of `source_datapipe`, unless `pipes_to_weights_dict` already contains this pipe.
    """
    weights = pipes_to_weights_dict
    if isinstance(weights, dict) and weights and source_datapipe not in weights:
        weights = {source_datapipe: weight, **weights}
    return SampleMultiplexer(weights, seed)


IterDataPipe.register_function("sample_multiplex", _sample_multiplex)
