"""Switches the global random generators and PyTorch's worker info between shards that take turns in one process.

Role: owned by each shard, in the process and thread that run it. A process has one generator each of `random`, NumPy
and PyTorch, but each shard needs its own sequence. The generators, 2.5 KB each, are therefore exchanged whenever
another shard runs. The public functions of the three libraries convert them to tuples and tensors, which takes up to
300 microseconds, whereas copying the memory takes 2. The memory layout is tested with other generators of the same
classes. If a test fails because a version has another layout, the public functions are used.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import random
import struct
import sys
from collections.abc import Callable
from typing import Any

from torchdata._importing import loaded
from torchdata.datapipes._pipe.state.generators import load_generators, save_generators
from torchdata.datapipes._pipe.state.late_seeding import awaited_seeds, seed_now_or_when_imported

__all__ = ["ShardGlobals"]

_WORKER = "torch.utils.data._utils.worker"

#: Bytes of 624 words, and of the index of the next word.
_WORDS, _PLACE = 624 * 4, 4
#: Bytes before the words of PyTorch's generator (seed, words left, flags), and of the whole with normal numbers after
#: them.
_BEFORE, _TORCH = 20, 2544
#: The words must begin within this many bytes of PyTorch's object.
_HEAD = 256
#: Bytes of the normal number that NumPy stores, including the flag for whether it is present.
_GAUSS = 16

#: Saves a generator, reusing an earlier result if there is one. The second function loads a saved generator.
_Save = Callable[[Any], Any]
_Load = Callable[[Any], None]


class ShardGlobals:
    """The generators and worker info of a shard while another shard runs in the process."""

    def __init__(self) -> None:
        #: Whether another shard is running.
        self.is_away = False
        self._found: list[tuple[_Save, _Load]] = []
        self._kept: list[Any] = []
        self._awaited: dict[str, int] = {}
        self._info: Any = None

    def leave(self) -> None:
        """Saves the process's current generators and worker info."""
        self.is_away, found = True, _generators()
        if found is not self._found:
            self._found, self._kept = found, [None] * len(found)
        for number, (save, _) in enumerate(found):
            self._kept[number] = save(self._kept[number])
        self._awaited = awaited_seeds()
        module = sys.modules.get(_WORKER)
        self._info = getattr(module, "_worker_info", None)

    def enter(self) -> bool:
        """Restores them in the process; returns whether PyTorch's worker info was included."""
        self.is_away = False
        if self._awaited != awaited_seeds():
            seed_now_or_when_imported(self._awaited)
        for (_, load), saved in zip(self._found, self._kept, strict=True):
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
            self.is_away = True
            others.enter()


def _generators() -> list[tuple[_Save, _Load]]:
    """Returns functions that save and load the generators of the loaded libraries."""
    global _known
    modules, (seen, found) = sys.modules, _known
    numpy_random, torch = modules.get("numpy.random.mtrand"), modules.get("torch")
    state = getattr(numpy_random, "_rand", None)
    bits = getattr(state, "_bit_generator", None)
    # A program may replace the bit generator. A module whose import is in progress has no generator yet.
    now = (bits, getattr(torch, "default_generator", None))
    if now[0] is seen[0] and now[1] is seen[1] and found:
        return found
    python = _of_python()
    found = [(lambda _: save_generators(), load_generators)] if python is None else [python]
    if python is not None and bits is not None and loaded("numpy.random") is not None:
        found.append(_of_numpy(state, bits))
    if python is not None and now[1] is not None and loaded("torch") is not None:
        found.append(_of_torch(now[1]))
    _known = now, found
    return found


#: The most recent generators of NumPy and PyTorch, and their functions.
_known: tuple[tuple[Any, Any], list[tuple[_Save, _Load]]] = (None, None), []


# -- memory layout ------------------------------------------------------------------------------------------


def _of_python() -> tuple[_Save, _Load] | None:
    if sys.implementation.name != "cpython":
        return None
    instance = random._inst
    if type(instance) is not random.Random or not _is_copied(_python, _new_python, random.Random.getstate):
        return None
    return _python(instance)


def _of_numpy(state: Any, bits: Any) -> tuple[_Save, _Load]:
    numpy_random = importlib.import_module("numpy.random")

    def new(seed: int) -> Any:
        made = numpy_random.RandomState(seed)
        made.standard_normal(seed)  # after an odd count, the generator stores another normal number
        return made

    if type(bits) is numpy_random.MT19937 and _is_copied(_numpy, new, lambda one: repr(one.get_state(legacy=False))):
        return _numpy(state)
    return lambda _: state.get_state(legacy=False), state.set_state


def _of_torch(generator: Any) -> tuple[_Save, _Load]:
    torch = sys.modules["torch"]

    def new(seed: int) -> Any:
        made = torch.Generator().manual_seed(seed)
        for dtype in (torch.float32, torch.float64):
            torch.randn(seed, dtype=dtype, generator=made)
        return made

    if _is_copied(_torch, new, lambda one: one.get_state().numpy().tobytes()):
        return _torch(generator)
    return lambda _: generator.get_state(), generator.set_state


def _is_copied(of: Callable[[Any], tuple[_Save, _Load]], new: Callable[[int], Any], seen: Callable[[Any], Any]) -> bool:
    """Returns whether copying the memory of one generator to another makes them equal.

    Args:
        of: returns the functions that save and load a generator.
        new: creates a generator from a seed.
        seen: returns a generator's state through a public function.
    """
    try:
        for first, second in ((1, 2), (2, 1)):
            one, other = new(first), new(second)
            _, load = of(other)
            save, _ = of(one)
            if seen(one) == seen(other):
                return False
            load(save(None))
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


def _python(generator: Any) -> tuple[_Save, _Load]:
    view = _memory(id(generator) + object.__basicsize__, _PLACE + _WORDS)

    def save(saved: Any) -> Any:
        words = bytearray(len(view)) if saved is None else saved[0]
        words[:] = view
        return words, generator.gauss_next

    def load(saved: Any) -> None:
        view[:], generator.gauss_next = saved

    return save, load


def _numpy(state: Any) -> tuple[_Save, _Load]:
    words = _memory(state._bit_generator.ctypes.state_address, _WORDS + _PLACE)
    normal = _memory(id(state) + _gauss_offset(state.__class__), _GAUSS)

    def save(saved: Any) -> Any:
        kept, its_normal = saved or (bytearray(len(words)), bytearray(_GAUSS))
        kept[:], its_normal[:] = words, normal
        return kept, its_normal

    def load(saved: Any) -> None:
        words[:], normal[:] = saved

    return save, load


@functools.cache
def _gauss_offset(cls: type[Any]) -> int:
    """Returns the offset of the normal number in an object of NumPy's class. A flag precedes the number."""
    made = cls(0)
    made.set_state({**made.get_state(legacy=False), "has_gauss": 1, "gauss": 0.123456789})
    raw = ctypes.string_at(id(made), cls.__basicsize__)
    return raw.index(struct.pack("<qd", 1, 0.123456789)[8:]) - 8


def _torch(generator: Any) -> tuple[_Save, _Load]:
    address: int = generator._cdata
    view = _memory(address + _words_offset() - _BEFORE, _TORCH)

    def save(saved: Any) -> Any:
        kept = bytearray(_TORCH) if saved is None else saved
        kept[:] = view
        return kept

    def load(saved: Any) -> None:
        view[:] = saved

    return save, load


@functools.cache
def _words_offset() -> int:
    """Returns the offset of the words in PyTorch's object."""
    torch = sys.modules["torch"]
    made = torch.Generator().manual_seed(1)
    torch.rand(1, generator=made)  # computes the words that `get_state` returns
    state = made.get_state().numpy()
    needle = state[24 : 24 + 8 * 8].view("<u8").astype("<u4").tobytes()
    return ctypes.string_at(made._cdata, _HEAD + len(needle)).index(needle)
