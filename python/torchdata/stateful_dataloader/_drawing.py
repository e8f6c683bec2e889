"""Provides the generators for orders and seeds, including after a resume in a program that was seeded differently.

Role: runs in the main process, one object per loader. Without a loaded state, the loader draws from torch's global
generator or from its own, like PyTorch's loader. A state contains the positions of these generators. A resume simply
sets the loader's own generators. The global generators belong to the program, which seeds them and draws from them. A
resumed loader therefore sees them *displaced*: it starts from the saved position and follows the numbers that the
program draws from the global generator. In turn, the global generator advances by as many words as the loader draws. If
the program seeds or sets the global generator, the loader uses the new values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from typing import Any

import numpy
import torch

from torchdata.stateful_dataloader._generators import (
    GLOBAL,
    Moment,
    comparable,
    decoded,
    encoded,
    found_in,
    mark_of,
    put_back_afterwards,
    read,
    with_words,
    words_of,
    write,
)
from torchdata.stateful_dataloader._twister import distance, moved_on, torch_parts

__all__ = ["Drawing"]

#: Maximum number of words between two epochs. If more were drawn, the program counts as having set the generator.
_FAR = 1 << 28
#: The same limit between loading a state and the next loop.
_NEAR = 1 << 22


class Drawing:
    """The generators that one loader uses.

    Args:
        loader: the loader.
        names: the global generators that the samplers may draw from.
    """

    def __init__(self, loader: Any, names: tuple[str, ...]) -> None:
        self._own = found_in(loader)
        self._names = names
        #: By name: the state that the loader sees, and the corresponding state of the global generator.
        self._displaced: dict[str, tuple[Any, Any]] = {}
        self._is_under_way = False
        #: The global generators when a state was loaded.
        self._at_load: Moment = {}

    def is_own(self, key: Any, generator: Any) -> bool:
        """Returns whether a key of a moment belongs to a generator of the loader or of a sampler, rather than a global
        one.
        """
        return isinstance(key, int) and self._own[key] is generator

    def now(self, keys: Set[Any] | None = None) -> Moment:
        """Returns the states of the generators as the loader sees them.

        Args:
            keys: the global generators to include; other generators are included only if there are keys. None for all.
        """
        with self.under_way():
            moment: Moment = {name: read(name) for name in self._names if keys is None or name in keys}
            if keys is None or not keys <= {*self._names}:
                moment |= {number: read(one) for number, one in enumerate(self._own)}
            return moment

    def marks(self) -> Moment:
        """Returns values that change when the generators change. Call it while the loader draws."""
        marks: Moment = {name: mark_of(name) for name in self._names}
        return marks | {number: comparable(read(one)) for number, one in enumerate(self._own)}

    def set(self, moment: Moment) -> None:
        """Sets the generators of the moment. Call it while the loader draws."""
        for name in self._names:
            if name in moment:
                write(name, moment[name])
        for number, one in enumerate(self._own):
            if number in moment:
                write(one, moment[number])

    # -- displaced generators ------------------------------------------------------------------------

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Context in which the loader draws: global generators have the states that the loader sees."""
        if self._is_under_way or not self._displaced:
            yield
            return
        program = {name: read(name) for name in self._displaced}
        seen = {}
        for name, (state, then) in list(self._displaced.items()):
            moved = _moved(then, program[name])
            if moved is None:  # the program has set the generator
                del self._displaced[name]
                continue
            words = words_of(state)
            assert words is not None
            seen[name] = with_words(state, moved_on(words, moved)) if moved else state
            write(name, seen[name])
        self._is_under_way = True
        try:
            yield
        finally:
            self._is_under_way = False
            for name, before in seen.items():
                self._part(name, before, program[name])

    def _part(self, name: str, before: Any, program: Any) -> None:
        """Advances the program's generator past the numbers that the loader has drawn."""
        after = read(name)
        drawn = _moved(before, after)
        if drawn is None:  # a sampler has set it, which counts as the program's intention
            del self._displaced[name]
            return
        words = words_of(program)
        assert words is not None
        if drawn:
            program = with_words(program, moved_on(words, drawn))
        write(name, program)
        self._displaced[name] = after, program

    def loaded(self, names: Iterable[str] = GLOBAL) -> None:
        """Records that a state was loaded.

        Args:
            names: the global generators that already have the states intended by the program or by the loaded state.
        """
        self._at_load |= {name: read(name) for name in names}

    def was_set(self, name: str, saved: Any) -> bool:
        """Returns whether the program has set a global generator, other than to the saved run's seed, since a state was
        loaded.

        Args:
            name: the name of the generator.
            saved: the generator's state in the loaded state.
        """
        now, then = read(name), self._at_load.get(name)
        if isinstance(now, bytes):
            seeds = {torch_parts(one)[0] for one in (then, saved) if one is not None}
            return torch_parts(now)[0] not in seeds
        return then is not None and _moved(then, now, _NEAR) is None

    @contextmanager
    def going_on(self, moment: Moment) -> Iterator[None]:
        """Context in which a saved position is restored: the generators start from their saved states.

        The program's global generators are not affected. The loader sees the states at the end of the context.

        Args:
            moment: the generators when the state was saved.
        """
        program = {name: read(name) for name in self._names}
        kept = {name for name in self._names if name in moment and self.was_set(name, moment[name])}
        self._displaced = {}
        self.set(moment)
        self._is_under_way = True
        try:
            yield
        finally:
            self._is_under_way = False
            seen = {name: read(name) for name in self._names}
            for name, state in program.items():
                write(name, state)
            self._displaced = {
                name: (state, program[name])
                for name, state in seen.items()
                if name in moment and name not in kept and _stand_apart(state, program[name])
            }

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Context that restores all generators to their previous states."""
        with put_back_afterwards([*self._names, *self._own]):
            yield

    # -- saved form ----------------------------------------------------------------------------------

    def encoded(self, moment: Moment, first: Moment | None = None) -> dict[str, Any]:
        """Converts a moment to plain values.

        Args:
            moment: the generators.
            first: an earlier moment that shortens the values. The same moment is then required for decoding.
        """
        first = first or {}
        plain: dict[str, Any] = {name: encoded(moment[name], first.get(name)) for name in self._names if name in moment}
        numbers = [number for number in range(len(self._own)) if number in moment]
        own = [encoded(moment[number], first.get(number)) for number in numbers]
        return plain | ({"own": own} if own else {})

    def decoded(self, plain: dict[str, Any], first: Moment | None = None) -> Moment:
        """Converts plain values back to a moment.

        Args:
            plain: the result of `encoded`.
            first: the earlier moment that was passed to `encoded`.

        Raises:
            ValueError: the values are damaged.
        """
        first = first or {}
        moment: Moment = {name: decoded(name, plain[name], first.get(name)) for name in GLOBAL if name in plain}
        for number, (one, state) in enumerate(zip(self._own, plain.get("own", ()), strict=False)):
            moment[number] = decoded(one, state, first.get(number))
        return moment


def _stand_apart(one: Any, other: Any) -> bool:
    """Returns whether two states of a Mersenne Twister are at different positions."""
    ours, theirs = words_of(one), words_of(other)
    if ours is None or theirs is None:
        return False
    seeds = {torch_parts(state)[0] for state in (one, other) if isinstance(state, bytes)}
    return len(seeds) > 1 or ours[1] != theirs[1] or not numpy.array_equal(ours[0], theirs[0])


def _moved(before: Any, after: Any, most: int = _FAR) -> int | None:
    """Returns how many words a generator has produced between two states; None if it was set."""
    first, last = words_of(before), words_of(after)
    if first is None or last is None:
        return None
    seeded = None
    if isinstance(before, bytes):
        seed = torch_parts(before)[0]
        if torch_parts(after)[0] != seed:
            return None
        seeded = torch.Generator().manual_seed(seed)
    return distance(first, last, seeded, most)
