"""MultiNodeWeightedSampler: takes items of several nodes at random, by weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from torchdata.datapipes._pipe.checks import check_int
from torchdata.nodes.base_node import BaseNode, T
from torchdata.nodes.samplers._sources import MultiNode, NothingThere
from torchdata.nodes.samplers.stop_criteria import StopCriteria
from torchdata.nodes.samplers.utils import get_rank_and_world_size, seed_of_rank

__all__ = ["MultiNodeWeightedSampler"]

#: How many choices are drawn together. Part of what makes the order that of torchdata 0.11.
_DRAWN = 1000


class MultiNodeWeightedSampler(MultiNode[T]):
    """Yields items of its sources, chosen at random by `torch.multinomial`. The orders are those of torchdata 0.11.

    The choices follow from seed, rank, number of ranks and epoch.

    Args:
        source_nodes: the nodes to read, by name.
        weights: how likely each is to be chosen, by the same names; they need not add up to 1.
        stop_criteria: when the epoch ends; a name of `StopCriteria`.
        rank: number of this rank; None for that of `torch.distributed`, or else of the variable RANK.
        world_size: number of ranks; None for that of `torch.distributed`, or else of the variable WORLD_SIZE.
        seed: what the choices follow from.
        tag_output: whether items tell the source they are of: a dict gets the key `"dataset_key"`, anything else
            becomes a dict with that key and `"data"`.

    Raises:
        TypeError: a source is no node, or a number is no integer.
        ValueError: there are no sources, `weights` has other names or holds something other than positive finite
            numbers, `stop_criteria` is unknown, or the rank is out of range; while reading, an item has the key
            already.

    Example:
        >>> from torchdata.nodes import IterableWrapper, MultiNodeWeightedSampler
        >>> sources = {"a": IterableWrapper("aaa"), "b": IterableWrapper("b")}
        >>> sampler = MultiNodeWeightedSampler(sources, {"a": 0.9, "b": 0.1}, "ALL_DATASETS_EXHAUSTED")
        >>> sorted(sampler)
        ['a', 'a', 'a', 'b']
    """

    EPOCH_KEY = "epoch"
    NUM_YIELDED_KEY = "num_yielded"
    WEIGHTED_SAMPLER_STATE_KEY = "weighted_sampler_state"
    STARTED_KEY = "started"

    _of_a_run: ClassVar[frozenset[str]] = MultiNode._of_a_run | {"_choices", "_num_yielded", "_started"}

    _num_yielded = 0
    #: Whether an item of this epoch was asked for.
    _started = False

    def __init__(
        self,
        source_nodes: Mapping[str, BaseNode[T]],
        weights: dict[str, float],
        stop_criteria: str = StopCriteria.CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        tag_output: bool = False,
    ) -> None:
        super().__init__(source_nodes, stop_criteria, tag_output)
        self.weights = weights
        _check_weights(weights, self.dataset_names)
        self.seed = check_int("MultiNodeWeightedSampler", "seed", seed)
        if rank is None or world_size is None:
            rank, world_size = get_rank_and_world_size()
        self.rank = rank
        self.world_size = world_size
        self._epoch = 0

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """See `BaseNode.reset`."""
        choices = None
        if initial_state is None:
            self._epoch += self._started
            self._num_yielded, self._started = 0, False
        else:
            self._epoch, self._num_yielded = (
                initial_state[self.EPOCH_KEY],
                initial_state[self.NUM_YIELDED_KEY],
            )
            self._started = initial_state.get(self.STARTED_KEY, self._num_yielded > 0)
            choices = initial_state[self.WEIGHTED_SAMPLER_STATE_KEY]
        seed = seed_of_rank(self.seed, self.rank, self.world_size, self._epoch)
        self._choices = _Choices(self.weights, seed, choices)
        super().reset(initial_state)

    def next(self) -> T:
        """See `BaseNode.next`."""
        self._started = True
        while not self._is_over:
            choices = self._choices
            if choices.offset == _DRAWN:
                choices.draw()
            choice = choices.drawn[choices.offset]
            choices.offset += 1
            try:
                item: T = self._item_of(choice)
            except NothingThere:
                continue
            except StopIteration:
                raise
            except BaseException:
                choices.offset -= 1  # the next call reads the same source
                raise
            self._num_yielded += 1
            return item
        raise StopIteration

    def get_state(self) -> dict[str, Any]:
        """See `BaseNode.get_state`."""
        return {
            **super().get_state(),
            self.EPOCH_KEY: self._epoch,
            self.NUM_YIELDED_KEY: self._num_yielded,
            self.STARTED_KEY: self._started,
            self.WEIGHTED_SAMPLER_STATE_KEY: self._choices.state(),
        }


class _Choices:
    """The random choices of an epoch."""

    def __init__(self, weights: dict[str, float], seed: int, state: dict[str, Any] | None) -> None:
        self._names = list(weights)
        self._weights = torch.tensor(list(weights.values()), dtype=torch.float64)
        self._generator = torch.Generator()
        self._generator.manual_seed(seed)
        if state is not None:
            self._generator.set_state(state["g_state"])
        self.draw()
        if state is not None:
            self.offset = state["offset"]

    def draw(self) -> None:
        """Draws further choices."""
        #: The generator's state before them.
        self._before = self._generator.get_state()
        drawn = torch.multinomial(self._weights, _DRAWN, replacement=True, generator=self._generator)
        self.drawn = [self._names[index] for index in drawn.tolist()]
        #: How many of them were taken.
        self.offset = 0

    def state(self) -> dict[str, Any]:
        return {"g_state": self._before, "offset": self.offset}


def _check_weights(weights: Any, names: list[str]) -> None:
    node = "MultiNodeWeightedSampler"
    if not isinstance(weights, dict) or set(weights) != set(names):
        raise ValueError(f"{node}: weights must be a dict with the names of source_nodes, {names}, but got {weights!r}")
    for name, weight in weights.items():
        number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not number or not 0 < weight < float("inf"):
            raise ValueError(
                f"{node}: weights must be positive finite numbers, but got {weight!r} for {name!r}; leave out a source "
                "that is never to be chosen"
            )
