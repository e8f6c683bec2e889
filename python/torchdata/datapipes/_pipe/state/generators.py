"""Saves and loads the global random generators of `random`, NumPy and torch in this process.

A saved state of a graph includes the states of the global generators, because user functions may draw numbers from
them.

At the beginning of an epoch, a worker process seeds the generators of the libraries that are imported. If a user
function imports NumPy or torch during the epoch, this module seeds the library's generator before the importing code
continues. Without a seed, a generator would start from the system's entropy, and the run could not be reproduced. Saved
states contain the seeds for the generators of libraries that are not imported yet. In the main process, the first saved
state chooses these seeds.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import warnings
from array import array
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torchdata._importing import call_when_imported, import_whole, loaded
from torchdata._plain_pickles import from_plain, refuse_pickled, to_plain

_WORDS = 625


def save_generators() -> dict[str, Any]:
    """Returns the states of the global random generators of `random`, NumPy and torch (on the CPU) as plain data.

    If a library is not imported yet, the result contains the seed that its generator receives after the import. The
    returned states take about 10 KiB.

    Example:
        >>> import random
        >>> from torchdata.datapipes.state import load_generators, save_generators
        >>> saved = save_generators()
        >>> number = random.random()
        >>> load_generators(saved)
        >>> random.random() == number
        True
    """
    numpy_random, torch = loaded("numpy.random"), loaded("torch")
    if numpy_random is None and "numpy.random" not in awaited and loaded("numpy") is not None:
        numpy_random = import_whole("numpy.random")  # otherwise NumPy imports it at its first use, with another state
    found = {"numpy.random": numpy_random, "torch": torch}
    if unseeded := [name for name, module in found.items() if module is None and name not in awaited]:
        # Each generator then begins like without this seed: NumPy's at random, and torch's with torch's default seed.
        seeds = {"numpy.random": int.from_bytes(os.urandom(4), "little"), "torch": 67280421310721}
        seed_when_imported({**awaited, **{name: seeds[name] for name in unseeded}})
    numpys = numpy_random and numpy_random.mtrand._rand
    return _states(random, numpys, getattr(torch, "default_generator", None), awaited_seeds())


def seeded_generators(seeds: dict[str, int]) -> dict[str, Any]:
    """Returns the states that the global generators have after they are seeded, in the form of `save_generators`."""
    numpy_random, torch = loaded("numpy.random"), loaded("torch")
    numpys = numpy_random and numpy_random.RandomState(seeds.pop("numpy.random"))
    torchs = torch and torch.Generator().manual_seed(seeds.pop("torch"))
    return _states(random.Random(seeds.pop("random")), numpys, torchs, seeds)


def _states(python: Any, numpys: Any, torchs: Any, seeds: dict[str, int]) -> dict[str, Any]:
    version, numbers, gauss = python.getstate()
    state: dict[str, Any] = {"random": (version, array("I", numbers).tobytes(), gauss)}
    if numpys is not None:
        state["numpy"] = _of_numpy(numpys)
    if torchs is not None:
        state["torch"] = torchs.get_state().numpy().tobytes()
    return {**state, "awaited": seeds} if seeds else state


def load_generators(state: dict[str, Any]) -> None:
    """Sets the global random generators to the states that `save_generators` returned.

    If a state contains the generator of a library, the library is imported; if the library is not installed, a warning
    is issued. The generator of a library that was not imported when the state was saved is seeded now, or right after
    the library is imported.

    Args:
        state: a result of `save_generators`.

    Example:
        >>> import random
        >>> from torchdata.datapipes.state import load_generators, save_generators
        >>> saved = save_generators()
        >>> first = [random.random(), random.random()]
        >>> load_generators(saved)
        >>> [random.random(), random.random()] == first
        True
    """
    version, numbers, gauss = state["random"]
    random.setstate((version, tuple(array("I", numbers)), gauss))
    if "numpy" in state and (numpy_random := _imported("numpy.random")) is not None:
        numpy_random.set_state(_to_numpy(state["numpy"]))
    if "torch" in state and (torch := _imported("torch")) is not None:
        torch.default_generator.set_state(torch.frombuffer(bytearray(state["torch"]), dtype=torch.uint8))
    if "awaited" in state:
        seed_when_imported(seed_loaded(state["awaited"]))


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        warnings.warn(
            f"the state holds the generator of {name}, which cannot be imported here; functions that draw from it "
            "will not repeat",
            stacklevel=4,
        )
        return None


def _of_numpy(generator: Any) -> Any:
    if type(generator._bit_generator) is not sys.modules["numpy.random"].MT19937:  # the program's own generator
        return to_plain(generator.get_state(legacy=False), "NumPy's global generator")
    _, key, position, has_gauss, gauss = generator.get_state()
    return key.astype("<u4").tobytes(), int(position), int(has_gauss), float(gauss)


def _to_numpy(state: Any) -> Any:
    if isinstance(state, dict):
        return from_plain(state, "NumPy's global generator")
    from numpy import frombuffer

    key, position, has_gauss, gauss = state
    return "MT19937", frombuffer(key, "<u4"), position, has_gauss, gauss


# -- seeding -----------------------------------------------------------------------------------------------------------


def seed_torch(torch: Any, seed: int) -> None:
    """Seeds torch as `torch.manual_seed(seed)` does, but does not format the caller's stack as text.

    For each kind of device that was not used yet, `torch.manual_seed` formats the caller's stack for the message of a
    later error. Formatting the stack checks each source file on disk, which would delay the first item of every epoch.
    """
    limit = getattr(sys, "tracebacklimit", None)
    sys.tracebacklimit = 0  # the number of entries in a formatted stack
    try:
        torch.manual_seed(seed)
    finally:
        if limit is None:
            del sys.tracebacklimit
        else:
            sys.tracebacklimit = limit


_SEED: Mapping[str, Callable[[Any, int], object]] = {
    "torch": seed_torch,
    "numpy.random": lambda numpy_random, seed: numpy_random.seed(seed),
}

#: The seeds for the generators of modules that are not imported yet, by full module name. If several shards take turns
#: in this process, `awaited` contains the seeds of the running shard.
awaited: dict[str, int] = {}


def seed_when_imported(seeds: Mapping[str, int]) -> None:
    """Seeds the generator of each module once, right after the module is imported.

    Args:
        seeds: the seeds by full module name ("torch", "numpy.random"). Seeds of the previous epoch that were not used
            are dropped.
    """
    global awaited
    awaited = dict(seeds)
    call_when_imported("seeds", {name: partial(_seed, name) for name in seeds})


def seed_loaded(seeds: Mapping[str, int]) -> dict[str, int]:
    """Seeds the generators of the libraries that are imported, and returns the seeds of the other libraries."""
    later = dict(seeds)
    for name in seeds:
        if (module := loaded(name)) is not None:
            _SEED[name](module, later.pop(name))
    return later


def await_again(seeds: dict[str, int]) -> None:
    """Sets `awaited` to the seeds of the shard that runs next. If another shard has already imported one of the
    modules, seeds the generator of this module now."""
    global awaited
    awaited = seeds
    for name in seeds.keys() & sys.modules.keys():
        _seed(name, sys.modules[name])


def awaited_seeds() -> dict[str, int]:
    return dict(awaited)


def _seed(name: str, module: Any) -> None:
    seed = awaited.pop(name, None)
    if seed is not None:
        _SEED[name](module, seed)


def check_generators(state: Any, allow_pickle: bool = True) -> None:
    """Raises ValueError unless the value may be a result of `save_generators`.

    The index in a random generator's state must be checked here, because the libraries use the index without checking
    it. The state of NumPy's generator contains a pickle only if the program has replaced NumPy's default generator.
    """
    if not isinstance(state, dict) or "random" not in state:
        raise ValueError("its global generators are not valid")
    _check_random(state["random"])
    numpy, torch, awaited = state.get("numpy"), state.get("torch", b""), state.get("awaited", {})
    if "numpy" in state and not isinstance(numpy, dict):
        _check_numpy(numpy)
    if not allow_pickle:
        refuse_pickled(numpy, "NumPy's global generator")
    if type(torch) is not bytes:
        raise ValueError(f"the state of torch's generator is of type {type(torch).__name__}")
    if not isinstance(awaited, dict) or not all(
        name in ("torch", "numpy.random") and type(seed) is int and 0 <= seed < 2**64 for name, seed in awaited.items()
    ):
        raise ValueError(f"the seeds of libraries that are not imported are {awaited!r}")


def _check_random(state: Any) -> None:
    parts = state if isinstance(state, (list, tuple)) and len(state) == 3 else (None, None, None)
    version, numbers, gauss = parts
    if version != 3 or type(numbers) is not bytes or len(numbers) != 4 * _WORDS:
        raise ValueError("the state of Python's generator is not valid")
    if gauss is not None and type(gauss) is not float:
        raise ValueError(f"the state of Python's generator holds {gauss!r} instead of a number")


def _check_numpy(state: Any) -> None:
    parts = state if isinstance(state, (list, tuple)) and len(state) == 4 else (None, None, None, None)
    key, position, has_gauss, gauss = parts
    if type(key) is not bytes or len(key) != 4 * (_WORDS - 1) or type(position) is not int:
        raise ValueError("the state of NumPy's generator is not valid")
    if not 0 <= position < _WORDS or has_gauss not in (0, 1) or type(gauss) is not float:
        raise ValueError(f"the state of NumPy's generator has an invalid position {position!r} or value {gauss!r}")
