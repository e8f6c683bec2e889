"""Provides the random generators of a loader, which determine orders and seeds. A resumed loader draws the original
numbers, even if the program has seeded the global generators differently.

A state contains the positions of all generators for orders and seeds. A resumed loader sets its own generators to the
saved positions. The global generators belong to the program, so the loader draws from *displaced* copies, which start
at the saved positions. A draw from a global generator also advances its displaced copy, and a draw from the displaced
copy also advances the global generator. If the program seeds a global generator, the loader drops the displaced copy.

If a sampler cannot save its state, `Replay` sets the generators to their states from the epoch's beginning, and rereads
the sampler. Other code may use the generators within an epoch, so `Draws` records the generators' states whenever the
sampler draws after other code has drawn. A checksum of some indices shows whether the sampler has repeated its order.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import torch

from torchdata.datapipes._pipe.witnessing import SampleDigest
from torchdata.stateful_dataloader._generators import (
    GLOBAL,
    Moment,
    comparable,
    decoded,
    distance,
    encoded,
    found_in,
    mark_of,
    moved_on,
    put_back_afterwards,
    read,
    set_all,
    torch_parts,
    with_words,
    words_of,
    write,
)
from torchdata.stateful_dataloader.sampler import pass_over

#: If a generator has advanced by more than `_FAR` 32-bit words since its last known state, the program is assumed to
#: have set the generator.
_FAR = 1 << 28
#: The maximum number of 32-bit words that the program is assumed to draw from a generator between loading a state and
#: beginning an epoch.
_NEAR = 1 << 22


class Moments(NamedTuple):
    """The states of all generators at one time. `program` is a function that returns the state of the program's global
    generator with a given name."""

    order: Moment
    program: Callable[[str], Any]


class Drawing:
    #: The number of times that loaders of this process have restored each global generator from a loaded state.
    _restores: ClassVar[Counter[str]] = Counter()

    def __init__(self, loader: Any, names: tuple[str, ...]) -> None:
        self._own = found_in(loader)
        self._names = names
        #: The global generators that may change when an epoch begins. Without workers, `_shared` contains all global
        #: generators, because the dataset may use any of them.
        self._shared = names if loader.num_workers else GLOBAL
        self._all: dict[Any, Any] = {name: name for name in names} | dict(enumerate(self._own))
        #: Maps the name of a global generator to two states at the same moment: the state of the displaced copy, and
        #: the state of the generator.
        self._displaced: dict[str, tuple[Any, Any]] = {}
        self._is_under_way = False
        #: For each global generator, its state and its count in `_restores` when this loader last loaded a state.
        self._at_load: dict[str, tuple[Any, int]] = {}

    def now(self, keys: Set[Any] | None = None) -> Moment:
        with self.under_way():
            if keys is not None and not keys <= {*self._names}:
                keys = keys | self._all.keys() - {*self._names}
            return {key: read(one) for key, one in self._all.items() if keys is None or key in keys}

    def moments(self) -> Moments:
        return Moments(self.now(), read)

    @contextmanager
    def unchanged_on_error(self) -> Iterator[Moments]:
        """Resets all generators to their previous states if an exception leaves this context."""
        now, displaced = self.now(), self._displaced.copy()
        program = {name: read(name) for name in self._shared}
        try:
            yield Moments(now, program.__getitem__)
        except BaseException:
            self._displaced = displaced
            self.set(now)
            set_all(program)
            raise

    def marks(self) -> Moment:
        """Returns a value for each generator, which changes when the generator is used. Must be called within
        `under_way`."""
        marks: Moment = {name: mark_of(name) for name in self._names}
        return marks | {number: comparable(read(one)) for number, one in enumerate(self._own)}

    def set(self, moment: Moment, but: Any = None) -> None:
        """Sets all generators except `but`."""
        for key, one in self._all.items():
            if key in moment and one is not but:
                write(one, moment[key])

    # -- displaced generators ------------------------------------------------------------------------

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Within this context, the global generators have the loader's states, and outside the context, the program's
        states."""
        if self._is_under_way or not self._displaced:
            yield
            return
        program = {name: read(name) for name in self._displaced}
        seen = {}
        for name, (state, then) in list(self._displaced.items()):
            moved = _moved(then, program[name])
            if moved is None:
                del self._displaced[name]
                continue
            seen[name] = _advanced(state, moved)
            write(name, seen[name])
        self._is_under_way = True
        try:
            yield
        finally:
            self._is_under_way = False
            for name, before in seen.items():
                drawn = _moved(before, after := read(name))
                if drawn is None:
                    del self._displaced[name]
                    continue
                self._displaced[name] = after, _advanced(program[name], drawn)
                write(name, self._displaced[name][1])

    def loaded(self, names: Iterable[str] = GLOBAL) -> None:
        self._at_load |= {name: (read(name), self._restores[name]) for name in names}

    def restore(self, moment: Moment) -> None:
        """Sets the program's global generators to saved states. Each restored generator is counted in `_restores`, so
        that `was_set` of other loaders detects the change."""
        set_all(moment)
        self._restores.update([*moment])
        self.loaded(moment)

    def was_set(self, name: str, saved: Any) -> bool:
        """Returns whether the program or another loader has set the generator since this loader loaded a state."""
        now, (then, restores) = read(name), self._at_load.get(name, (None, self._restores[name]))
        if restores != self._restores[name]:
            return True
        if isinstance(now, bytes):
            seeds = {torch_parts(one)[0] for one in (then, saved) if one is not None}
            return torch_parts(now)[0] not in seeds
        return then is not None and _moved(then, now, _NEAR) is None

    def has_passed(self, name: str, saved: Any) -> bool:
        """Returns whether the program's draws since the last load have moved a global generator to its saved state, or
        further."""
        then, _ = self._at_load.get(name, (None, 0))
        is_later = then is None or _moved(saved, then, _NEAR) is not None
        return not is_later and _moved(saved, read(name), _NEAR) is not None

    @contextmanager
    def resumed(self, moment: Moment) -> Iterator[None]:
        """Within this context, the generators have the states in `moment`, so that the caller can restore a sampler's
        position.

        At the end of the context, the new states are stored for the loader, and the global generators regain the
        program's states.
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
                if name in moment and name not in kept and comparable(state) != comparable(program[name])
            }

    def untouched(self) -> AbstractContextManager[None]:
        return put_back_afterwards([*self._all.values()])

    # -- saved form ----------------------------------------------------------------------------------

    def encoded(self, moment: Moment) -> dict[str, Any]:
        plain: dict[Any, Any] = {key: encoded(moment[key]) for key in self._all if key in moment}
        own = [plain.pop(number) for number in range(len(self._own)) if number in plain]
        return plain | ({"own": own} if own else {})

    def decoded(self, plain: dict[str, Any]) -> Moment:
        moment: Moment = {name: decoded(name, plain[name]) for name in GLOBAL if name in plain}
        own = zip(self._own, plain.get("own", ()), strict=False)
        return moment | {number: decoded(one, state) for number, (one, state) in enumerate(own)}


def _advanced(state: Any, count: int) -> Any:
    words = words_of(state)
    return with_words(state, moved_on(words, count)) if count and words is not None else state


def _moved(before: Any, after: Any, most: int = _FAR) -> int | None:
    """Returns how many 32-bit words a generator has produced between the states `before` and `after`; None if other
    code has set the generator in between."""
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


# -- samplers without a state ------------------------------------------------------------------------------

_MOST = 1024


class Draws:
    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing
        self.begin({})

    def begin(self, first: Moment, noted: Iterable[list[Any]] = (), digest: SampleDigest | None = None) -> None:
        """Begins an epoch.

        Args:
            first: the states that the generators have before the first index is read; empty if no index will be read.
            noted: the recorded draws of random numbers in a loaded state; see `self.noted`.
            digest: the checksum of the indices that were read in this epoch; None if no indices were read.
        """
        self._digest = digest or SampleDigest()
        self._left: Moment = self._drawing.marks() if first else {}
        self._before: Moment = {}
        self._moment: Moment = {}
        #: For each recorded draw: the number of indices before the draw, and the encoded states of the generators at
        #: the draw.
        self.noted: deque[list[Any]] = deque(noted, maxlen=_MOST)
        #: For each generator, the number of indices that had been read when the sampler last drew from this generator.
        self.last: dict[Any, int] = {}

    def before(self) -> None:
        """`before` must be called before each read of an index or a batch, and `after` after the read."""
        self._before = self._drawing.marks()
        moved = {key for key, mark in self._left.items() if mark != self._before[key]}
        self._moment = self._drawing.now(moved) if moved else {}

    def is_within(self) -> bool:
        """Returns whether the sampler has drawn random numbers since the last call of `before`."""
        return self._drawing.marks() != self._before

    def after(self, number: int, drawn: int, indices: list[Any]) -> None:
        """Records whether the sampler drew random numbers for an index or a batch.

        Args:
            number: the number of indices that were read before `indices`.
            drawn: how many indices, or batches of indices, the sampler returned before `indices`.
        """
        digest = self._digest
        while number <= digest.next < number + len(indices):
            digest.add(indices[digest.next - number])
        left = self._drawing.marks()
        moved = [key for key, mark in left.items() if mark != self._before[key]]
        self._left |= {key: left[key] for key in moved}
        self.last.update(dict.fromkeys(moved, drawn))
        if any(key in self._moment for key in moved):
            wanted = {key: state for key, state in self._moment.items() if key in moved or isinstance(key, int)}
            self.noted.append([number, self._drawing.encoded(wanted)])

    @property
    def digest(self) -> SampleDigest | None:
        return self._digest if len(self.noted) < _MOST else None


def _sampled(iterator: Iterator[Any], digest: SampleDigest) -> Iterator[Any]:
    for number, item in enumerate(iterator):
        if number == digest.next:
            digest.add(item)
        yield item


class Replay(Iterator[Any]):
    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        #: Indices that are returned a second time, because the user had not received their samples in the saved run.
        self.early: deque[Any] = deque()

    def run(
        self, received: int, ahead: int, draws: list[tuple[int, Moment]], drawing: Drawing, saved: SampleDigest | None
    ) -> SampleDigest | None:
        """Reads the indices that were read in the saved run, and returns their checksum if `saved` is not None.

        Args:
            received: the number of samples that the user had received.
            ahead: the number of indices that had been read ahead, so that the user had not received their samples.
            draws: for each recorded draw of random numbers, the number of earlier indices, and the generators' states
                at the draw.

        Raises:
            ValueError: the sampler returns fewer than `received` indices, or other indices than in the saved run.
        """
        digest, read = SampleDigest(), 0
        iterator = self._iterator if saved is None else _sampled(self._iterator, digest)
        for number, moment in [*draws, (received + ahead, {})]:
            pass_over(iterator, min(number, received) - read)
            self.early.extend(islice(iterator, max(0, number - max(read, received))))
            read = number
            drawing.set(moment)
        if saved is None:
            return None
        if not digest.agrees_with(saved):
            raise ValueError(
                f"the sampler does not repeat itself, so the loader cannot resume from the state: the first {read} "
                "indices differ from the indices that were read before the state was saved. Seed the code that "
                "shuffles them in each epoch, or give the sampler state_dict() and load_state_dict(). "
                "load_state_dict(state, strict=False) skips the same number of indices of the new order"
            )
        return digest

    def __next__(self) -> Any:
        return self.early.popleft() if self.early else next(self._iterator)
