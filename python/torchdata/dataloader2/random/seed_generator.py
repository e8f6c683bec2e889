"""The seed generator of a loader, which checks arguments for the native generator (rust/core/src/seed.rs)."""

from __future__ import annotations

from typing import Any

from torchdata import _native
from torchdata.datapipes._pipe.random import draw_seed

__all__ = ["SeedGenerator"]

_UINT64_UPPER_BOUND = 2**64


def check_seed(seed: Any) -> int:
    """Raises TypeError if the seed is not an integer, and ValueError if it is outside the range of 64 bits."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise TypeError(f"a seed must be an integer, not {seed!r}")
    seed = seed.__index__()
    if not 0 <= seed < _UINT64_UPPER_BOUND:
        raise ValueError(f"Expected an uint64 seed, but got {seed}.")
    return int(seed)


class SeedGenerator(_native.SeedGenerator):
    """Draws seeds that are all derived from one number.

    The generator has two streams of seeds. The *shared* seeds are equal in all generators with the same seed: on every
    rank and in every worker. The seeds of the second stream differ from worker to worker; `spawn` returns the generator
    of a worker. A shuffle before a `sharding_filter` uses shared seeds, so it has the same order in a single process
    and in workers. ChaCha12 generates both streams.

    Args:
        seed: an integer from 0 to 2**64 - 1; None (the default) draws a seed from torch's global generator if torch is
            imported, otherwise from Python's `random`.
        _rngs: for internal use: the generator to copy; None by default.

    Raises:
        TypeError, ValueError: the seed is not an integer, or out of range.

    Example:
        >>> from torchdata.dataloader2.random import SeedGenerator
        >>> generator = SeedGenerator(7)
        >>> workers = [generator.spawn(0), generator.spawn(1)]
        >>> workers[0].generate_shared_seed() == workers[1].generate_shared_seed()
        True
        >>> workers[0].generate_seed() == workers[1].generate_seed()
        False
    """

    def __init__(self, seed: int | None = None, _rngs: _native.SeedGenerator | None = None) -> None:
        if seed is not None and _rngs is not None:
            raise ValueError("give a SeedGenerator either a seed or the generator to copy, not both")
        if _rngs is None:
            self.seed(seed)
        else:
            self.__setstate__(_rngs.__getstate__())

    def seed(self, seed: int | None = None) -> None:
        """Restarts from `seed`; None draws a new seed, so that two epochs without a seed differ.

        Raises:
            TypeError, ValueError: the seed is not an integer, or out of range.
        """
        self.restart(draw_seed() if seed is None else check_seed(seed))

    def spawn(self, worker_id: int, inplace: bool = False) -> SeedGenerator:
        """Returns a new generator for a worker or rank.

        The new generator has the same shared seeds as this generator, but its other seeds are independent of this
        generator.

        Args:
            worker_id: the number of the worker or rank, from 0.
            inplace: whether this generator itself becomes the worker's generator. With `inplace=False`, the default,
                this generator is not changed.

        Raises:
            TypeError: `worker_id` is not an integer.
            ValueError: `worker_id` is negative.
        """
        if isinstance(worker_id, bool) or not isinstance(worker_id, int):
            raise TypeError(f"worker_id must be an integer, not {worker_id!r}")
        if worker_id < 0:
            raise ValueError(
                f"worker_id must not be negative. Expected `rank` equal or larger than 0, but got {worker_id}."
            )
        child = self if inplace else SeedGenerator(_rngs=self)
        child.become_child(worker_id)
        return child

    def exported(self) -> bytes:
        """Returns the state of the generator; `imported` restores a generator with the same future seeds."""
        return self.__getstate__()

    @classmethod
    def imported(cls, state: bytes) -> SeedGenerator:
        """Returns a generator that draws the same seeds as the exported generator.

        Args:
            state: the bytes that `exported` returned.

        Raises:
            ValueError: `state` was not returned by `exported`.
        """
        generator = cls.__new__(cls)
        generator.__setstate__(state)
        return generator

    def __copy__(self) -> SeedGenerator:
        duplicate = self.imported(self.exported())
        vars(duplicate).update(vars(self))
        return duplicate
