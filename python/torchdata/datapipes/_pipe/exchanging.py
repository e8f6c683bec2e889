"""Switches the global random generators and PyTorch's worker info between shards that take turns in one process.

Each shard has a `ShardGlobals`, which is used in the process and thread that run the shard. Each shard needs its own
generators of `random`, NumPy and torch, but a process has only one global generator of each library. Whenever another
shard runs, the states of the global generators (2.5 KB each) are exchanged.

The public functions of `random`, NumPy and torch convert a generator's state to tuples and tensors, which takes up to
300 microseconds. Copying the memory of the states takes 0.3 microseconds, so this module copies the memory. Before the
first copy, this module tests with new generators whether copying a generator's memory also copies its state. If copying
a generator's memory does not copy its state, this module calls the public functions of the libraries instead.
"""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import random
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torchdata._importing import import_whole, loaded
from torchdata._native import Exchange, HeldLock, SavedGlobals
from torchdata.datapipes._pipe import random as own_random
from torchdata.datapipes._pipe import skipping, splitting, witnessing
from torchdata.datapipes._pipe.state import generators
from torchdata.datapipes._pipe.state.generators import load_generators, save_generators

#: The module with the file locks of `on_disk_cache`. A shard must release the file locks of `on_disk_cache` before
#: another shard runs.
LOCKS = "torchdata.datapipes.iter.disk_cache.locks"
_NUMPY, _WORKER = "numpy.random.mtrand", "torch.utils.data._utils.worker"
#: When one of these modules is imported, `_exchange` creates a new `Exchange` that also exchanges the variables of this
#: module.
_IMPORTED_LATE = (_NUMPY, "torch", _WORKER, LOCKS)
_VARIABLES = (
    (vars(generators), "awaited"),
    (vars(own_random), "is_replica"),
    (vars(skipping), "worker"),
    (vars(splitting), "set_info"),
    (vars(witnessing), "current"),
)

#: Sizes in bytes: the 624 32-bit numbers of a Mersenne Twister state, and the index of the next number.
_WORDS, _POSITION = 624 * 4, 4
#: Sizes in bytes of PyTorch's generator state: of the header before the 624 numbers, and of the whole state.
_BEFORE, _TORCH = 20, 2544
#: The maximum offset in bytes of the 624 numbers in PyTorch's generator object.
_HEAD = 256
#: The size in bytes of the spare normal number that NumPy stores, including the flag that shows whether it is present.
_GAUSS = 16


class _Way(NamedTuple):
    """Describes how to save and load the states of random generators.

    Args:
        memory: the memory of the generators' states, which is copied to save or load them.
        variables: further variables of the generators, each as a dict and a key in this dict.
        others: for each generator that is not in `memory`, a function that returns its state, and a function that sets
            it.
    """

    memory: Sequence[memoryview] = ()
    variables: Sequence[tuple[dict[str, Any], str]] = ()
    others: Sequence[tuple[Callable[[], Any], Callable[[Any], object]]] = ()


_turn = threading.RLock()


def _begin_in_child() -> None:
    global _turn, _has_exchanged
    _turn = threading.RLock()  # in a forked child, a thread of the parent may hold the inherited lock
    _has_exchanged = False


os.register_at_fork(after_in_child=_begin_in_child)


def one_at_a_time() -> HeldLock:
    """Within the returned context, no other thread can switch the global variables to another shard."""
    return HeldLock(_turn)


class ShardGlobals(SavedGlobals):
    """The global variables of a shard or of the program. If `is_away` is False, the process contains the variables of
    this shard. Only the native methods `save` and `load` change `is_away`, so it is also correct in a signal
    handler."""

    def __init__(self) -> None:
        self._others: Sequence[tuple[Callable[[], Any], Callable[[Any], object]]] = ()
        self._kept: list[Any] = []

    def __enter__(self) -> ShardGlobals:
        return self  # `leave` is called within the context, so that `__exit__` restores what it saves

    def leave(self, *, is_all: bool = False) -> None:
        """Saves the random generators and further global variables of the running shard, before another shard runs.

        Args:
            is_all: whether another shard can run without further steps, such as stopping this shard's threads. If two
                shards have called `leave` with `is_all=True`, `ShardTurns` may switch between them without calling
                `leave` and `enter`.
        """
        global _has_exchanged
        _has_exchanged = True
        exchange, self._others = _exchange()
        self._kept = [save() for save, _ in self._others]
        self.save(exchange)
        self.is_all = is_all and not self._others

    def enter(self) -> bool:
        """Restores the global variables that `leave` has saved for the shard. Returns whether torch's worker info was
        restored."""
        module: Any = sys.modules.get(_WORKER)
        if module is not None:
            module._worker_info = None  # no value was saved if another shard has imported the module
        for (_, load), saved in zip(self._others, self._kept, strict=True):
            load(saved)
        self.load()
        generators.await_again(generators.awaited)
        return module is not None and module._worker_info is not None


class Exchanged:
    """Within this context, the global variables of `entered` replace the variables of `left`.

    Callers must enter `left`, which is also a context manager, before this context, because the native `__exit__` of
    `left` restores the variables even if Ctrl-C interrupts a method of this class.
    """

    def __init__(self, left: ShardGlobals, entered: ShardGlobals) -> None:
        self._left, self._entered = left, entered

    def __enter__(self) -> None:
        self._left.leave()
        self._left.other = self._entered
        self._entered.enter()

    def __exit__(self, *_: object) -> None:
        if not self._entered.is_away:
            self._entered.leave()
        self._left.enter()


_Others = Sequence[tuple[Callable[[], Any], Callable[[Any], object]]]

_known: tuple[Exchange, _Others] | None = None
_parts: Sequence[memoryview] = ()
_saved: tuple[list[Any], dict[str, Any] | None] | None = None
_has_exchanged = False


def current_generators(seeded: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns the states of the global generators, or None if the states equal `seeded`. To save time, returns the
    previous result if the memory of the generators has not changed since the previous call."""
    global _saved
    exchange, others = _exchange()
    contents = [exchange, seeded, vars(random._inst).get("gauss_next"), generators.awaited_seeds(), *map(bytes, _parts)]
    if others or _saved is None or _saved[0] != contents:
        found = save_generators()
        _saved = contents, None if found == seeded else found
    return _saved[1]


def exchanged_generators() -> Sequence[bytes]:
    """Returns copies of the memory of the global random generators; empty if shards do not take turns in this
    process."""
    return [*map(bytes, _parts)] if _has_exchanged and own_random.is_replica else ()


def _exchange() -> tuple[Exchange, _Others]:
    global _known, _parts
    if _known is not None and _known[0].is_current():
        return _known
    modules = sys.modules
    numpy_random, torch, worker = (modules.get(name) for name in _IMPORTED_LATE[:3])
    expected: list[tuple[Any, str, Any]] = [(modules, name, modules.get(name)) for name in _IMPORTED_LATE]
    state = bits = torchs = None
    if numpy_random is not None:  # while NumPy is being imported, it lacks its generator
        state = getattr(numpy_random, "_rand", None)
        expected.append((vars(numpy_random), "_rand", state))
    if state is not None:  # a program may install another bit generator
        bits = state._bit_generator
        expected.append((state, "_bit_generator", bits))
    if torch is not None:
        torchs = getattr(torch, "default_generator", None)
        expected.append((vars(torch), "default_generator", torchs))
    python = _of_python()
    ways = [_Way(others=((save_generators, load_generators),)) if python is None else python]
    if python is not None and bits is not None and loaded("numpy.random") is not None:
        ways.append(_of_numpy(state, bits))
    if python is not None and torchs is not None and loaded("torch") is not None:
        ways.append(_of_torch(torchs))
    variables = [*_VARIABLES, *(pair for way in ways for pair in way.variables)]
    if worker is not None:
        variables.append((vars(worker), "_worker_info"))
    _parts = [part for way in ways for part in way.memory]
    exchange = Exchange(expected, variables, _parts)
    _known = exchange, [pair for way in ways for pair in way.others]
    return _known


# -- memory layout ------------------------------------------------------------------------------------------


def _of_python() -> _Way | None:
    is_usual = sys.implementation.name == "cpython" and type(random._inst) is random.Random
    return _python(random._inst) if is_usual and _is_copied(_python, _new_python, random.Random.getstate) else None


def _of_numpy(state: Any, bits: Any) -> _Way:
    numpy_random = importlib.import_module("numpy.random")

    def new(seed: int) -> Any:
        made = numpy_random.RandomState(seed)
        made.standard_normal(seed)  # after an odd count, the generator stores a spare normal number
        return made

    # The states are compared as pickles, because formatting a state as text would take milliseconds.
    is_usual = type(bits) is numpy_random.MT19937
    if is_usual and _is_copied(_numpy, new, lambda one: pickle.dumps(one.get_state(legacy=False))):
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
    """Tests whether copying the memory of a random generator to another generator also copies the state.

    Args:
        of: a function that returns the `_Way` of a generator, which describes how to copy its memory.
        new: a function that creates a generator from a seed.
        seen: a function that returns the state of a generator by the library's public interface.
    """
    try:
        for first, second in ((1, 2), (2, 1)):
            one, other = new(first), new(second)
            to, way = of(other), of(one)
            if seen(one) == seen(other):
                return False
            for source, target in zip(way.memory, to.memory, strict=True):
                target[:] = source
            for (mine, name), (its, _) in zip(way.variables, to.variables, strict=True):
                its[name] = mine[name]
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
    return memoryview((import_whole("ctypes").c_char * size).from_address(address)).cast("B")


def _python(generator: Any) -> _Way:
    memory = _memory(id(generator) + object.__basicsize__, _POSITION + _WORDS)
    return _Way((memory,), ((vars(generator), "gauss_next"),))  # the spare normal number is not in the memory


def _numpy(state: Any) -> _Way:
    words = _memory(state._bit_generator.ctypes.state_address, _WORDS + _POSITION)
    return _Way((words, _memory(id(state) + _gauss_offset(state.__class__), _GAUSS)))


@functools.cache
def _gauss_offset(cls: type[Any]) -> int:
    """Returns the offset, in a NumPy generator's memory, of the flag that precedes the stored spare normal number."""
    made = cls(0)
    made.set_state({**made.get_state(legacy=False), "has_gauss": 1, "gauss": 0.123456789})
    raw: bytes = import_whole("ctypes").string_at(id(made), cls.__basicsize__)
    return raw.index(struct.pack("<qd", 1, 0.123456789)[8:]) - 8


def _torch(generator: Any) -> _Way:
    address: int = generator._cdata
    return _Way((_memory(address + _words_offset() - _BEFORE, _TORCH),))


@functools.cache
def _words_offset() -> int:
    torch = sys.modules["torch"]
    made = torch.Generator().manual_seed(1)
    torch.rand(1, generator=made)  # the first draw computes the words that `get_state` returns
    state = made.get_state().numpy()
    needle = state[24 : 24 + 8 * 8].view("<u8").astype("<u4").tobytes()
    return int(import_whole("ctypes").string_at(made._cdata, _HEAD + len(needle)).index(needle))
