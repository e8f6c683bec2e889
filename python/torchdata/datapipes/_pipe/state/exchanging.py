"""Switches the global random generators and PyTorch's worker info between shards that take turns in one process.

Role: each shard owns a `ShardGlobals`, used in the process and thread that run the shard. A process has one global
generator each of `random`, NumPy and torch, but each shard draws from generators of its own. The states of the
generators, of 2.5 KB each, are therefore exchanged whenever another shard runs. The public functions of the three
libraries convert a state to tuples and tensors, which takes up to 300 microseconds. The extension copies the memory of
the states in 0.3 microseconds. Experiments with other generators of the same classes determine the address of this
memory. If the experiments fail, for example with another version of a library, the public functions are used.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import os
import random
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torchdata._importing import loaded
from torchdata._native import MemoryCopy
from torchdata.datapipes._pipe.state import late_seeding
from torchdata.datapipes._pipe.state.generators import load_generators, save_generators

__all__ = ["ShardGlobals", "one_at_a_time"]

_WORKER = "torch.utils.data._utils.worker"

#: The size in bytes of the 624 words of a state, and of the index of the next word.
_WORDS, _PLACE = 624 * 4, 4
#: The number of bytes before the words of PyTorch's generator (seed, words left, flags), and the size of its whole
#: state, which ends with normal numbers.
_BEFORE, _TORCH = 20, 2544
#: The maximum distance in bytes from the start of PyTorch's object to the words.
_HEAD = 256
#: The size in bytes of the normal number that NumPy stores, with the flag that says whether the number is present.
_GAUSS = 16


class _Way(NamedTuple):
    """How generators are saved and loaded.

    Args:
        memory: the parts of memory that are copied.
        python: the generator of `random` if its memory is copied, because `memory` lacks its spare normal number.
        others: for each generator that is not copied, the functions that save and load its state.
    """

    memory: Sequence[memoryview] = ()
    python: Any = None
    others: Sequence[tuple[Callable[[], Any], Callable[[Any], object]]] = ()


#: Held by the thread that runs a shard.
_turn = threading.RLock()


def _begin_in_child() -> None:
    global _turn
    _turn = threading.RLock()  # in a forked child, a thread of the parent may hold the inherited lock


os.register_at_fork(after_in_child=_begin_in_child)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Prevents other threads of the process, within this context, from exchanging generators and worker info of shards.

    If two threads exchanged these globals at the same time, the last thread to finish would restore the globals of the
    wrong shard.
    """
    with _turn:
        yield


class ShardGlobals:
    """The generators and worker info of a shard while another shard runs in the process."""

    def __init__(self) -> None:
        #: Whether another shard is running.
        self.is_away = False
        self._way = _Way()
        self._copy: MemoryCopy | None = None
        self._normal: float | None = None
        self._kept: list[Any] = []
        self._awaited: dict[str, int] = {}
        self._info: Any = None

    def leave(self) -> None:
        """Saves the globals of the process."""
        self.is_away, way = True, _generators()
        if self._copy is not None and way is self._way:
            self._copy.save()
        else:
            self._way, self._copy = way, MemoryCopy(way.memory)
        if way.python is not None:
            self._normal = way.python.gauss_next
        if way.others:
            self._kept = [save() for save, _ in way.others]
        self._awaited = late_seeding.awaited
        module: Any = sys.modules.get(_WORKER)
        self._info = None if module is None else module._worker_info

    def enter(self) -> bool:
        """Sets the globals of the process to the saved values; returns whether torch's worker info was saved."""
        self.is_away, way = False, self._way
        late_seeding.await_again(self._awaited)
        if self._copy is not None:
            self._copy.load()
        if way.python is not None:
            way.python.gauss_next = self._normal
        if way.others:
            for (_, load), saved in zip(way.others, self._kept, strict=True):
                load(saved)
        if (module := sys.modules.get(_WORKER)) is not None:
            module._worker_info = self._info  # type: ignore[attr-defined]
        return self._info is not None

    def generators(self) -> dict[str, Any]:
        """Returns the result of `save_generators` for this shard, even while another shard runs."""
        if not self.is_away:
            return save_generators()
        others = ShardGlobals()
        others.leave()
        self.enter()
        try:
            return save_generators()
        finally:
            self.leave()  # `enter` may have seeded a library that was imported by another shard
            others.enter()


def _generators() -> _Way:
    """Returns how the generators of the loaded libraries are saved and loaded."""
    global _known
    modules, (seen_bits, seen_torch, found) = sys.modules, _known
    numpy_random, torch = modules.get("numpy.random.mtrand"), modules.get("torch")
    # A program may install another bit generator. While NumPy is being imported, it has no global generator.
    state = None if numpy_random is None else getattr(numpy_random, "_rand", None)
    bits = None if state is None else state._bit_generator
    torchs = None if torch is None else getattr(torch, "default_generator", None)
    if found is not None and bits is seen_bits and torchs is seen_torch:
        return found
    python = _of_python()
    ways = [_Way(others=((save_generators, load_generators),)) if python is None else python]
    if python is not None and bits is not None and loaded("numpy.random") is not None:
        ways.append(_of_numpy(state, bits))
    if python is not None and torchs is not None and loaded("torch") is not None:
        ways.append(_of_torch(torchs))
    memory, others = [part for way in ways for part in way.memory], [pair for way in ways for pair in way.others]
    found = _Way(memory, ways[0].python, others)
    _known = bits, torchs, found
    return found


#: The generators of NumPy and torch in the most recent exchange, and how they are saved.
_known: tuple[Any, Any, _Way | None] = None, None, None


# -- memory layout ------------------------------------------------------------------------------------------


def _of_python() -> _Way | None:
    if sys.implementation.name != "cpython":
        return None
    instance = random._inst
    if type(instance) is not random.Random or not _is_copied(_python, _new_python, random.Random.getstate):
        return None
    return _python(instance)


def _of_numpy(state: Any, bits: Any) -> _Way:
    numpy_random = importlib.import_module("numpy.random")

    def new(seed: int) -> Any:
        made = numpy_random.RandomState(seed)
        made.standard_normal(seed)  # after an odd count, the generator stores a spare normal number
        return made

    if type(bits) is numpy_random.MT19937 and _is_copied(_numpy, new, lambda one: repr(one.get_state(legacy=False))):
        return _numpy(state)
    return _Way(others=((lambda: state.get_state(legacy=False), state.set_state),))


def _of_torch(generator: Any) -> _Way:
    torch = sys.modules["torch"]

    def new(seed: int) -> Any:
        made = torch.Generator().manual_seed(seed)
        for dtype in (torch.float32, torch.float64):
            torch.randn(seed, dtype=dtype, generator=made)
        return made

    if _is_copied(_torch, new, lambda one: one.get_state().numpy().tobytes()):
        return _torch(generator)
    return _Way(others=((generator.get_state, generator.set_state),))


def _is_copied(of: Callable[[Any], _Way], new: Callable[[int], Any], seen: Callable[[Any], Any]) -> bool:
    """Returns whether copying the memory of one generator to another generator makes both equal.

    Args:
        of: returns the functions that save and load a generator.
        new: creates a generator from a seed.
        seen: returns a generator's state through a public function.
    """
    try:
        for first, second in ((1, 2), (2, 1)):
            one, other = new(first), new(second)
            to, way = of(other), of(one)
            if seen(one) == seen(other):
                return False
            for mine, its in zip(way.memory, to.memory, strict=True):
                its[:] = mine
            if way.python is not None:
                to.python.gauss_next = way.python.gauss_next
            if seen(one) != seen(other):
                return False
    except Exception:
        return False
    return True


def _new_python(seed: int) -> random.Random:
    made = random.Random(seed)
    for _ in range(seed):
        made.gauss(0.0, 1.0)
    return made


def _memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def _python(generator: Any) -> _Way:
    return _Way((_memory(id(generator) + object.__basicsize__, _PLACE + _WORDS),), generator)


def _numpy(state: Any) -> _Way:
    words = _memory(state._bit_generator.ctypes.state_address, _WORDS + _PLACE)
    return _Way((words, _memory(id(state) + _gauss_offset(state.__class__), _GAUSS)))


@functools.cache
def _gauss_offset(cls: type[Any]) -> int:
    """Returns the offset of the normal number in an object of NumPy's class. A flag precedes the number."""
    made = cls(0)
    made.set_state({**made.get_state(legacy=False), "has_gauss": 1, "gauss": 0.123456789})
    raw = ctypes.string_at(id(made), cls.__basicsize__)
    return raw.index(struct.pack("<qd", 1, 0.123456789)[8:]) - 8


def _torch(generator: Any) -> _Way:
    address: int = generator._cdata
    return _Way((_memory(address + _words_offset() - _BEFORE, _TORCH),))


@functools.cache
def _words_offset() -> int:
    """Returns the offset of the words in PyTorch's object."""
    torch = sys.modules["torch"]
    made = torch.Generator().manual_seed(1)
    torch.rand(1, generator=made)  # computes the words that `get_state` returns
    state = made.get_state().numpy()
    needle = state[24 : 24 + 8 * 8].view("<u8").astype("<u4").tobytes()
    return ctypes.string_at(made._cdata, _HEAD + len(needle)).index(needle)
