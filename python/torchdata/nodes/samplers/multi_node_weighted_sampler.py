"""MultiNodeWeightedSampler: takes items from several nodes at random, by weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any, ClassVar

import torch

from torchdata.datapipes._pipe.checks import check_int
from torchdata.nodes._fields import StateFields
from torchdata.nodes.base_node import BaseNode, T
from torchdata.nodes.samplers._sources import MultiNode, NoItem
from torchdata.nodes.samplers.stop_criteria import StopCriteria
from torchdata.nodes.samplers.utils import _get_rank_seed, get_rank_and_world_size

__all__ = ["MultiNodeWeightedSampler"]

#: The number of choices that are drawn together. `_DRAWN` is the same as in torchdata 0.11, because this number affects
#: the order.
_DRAWN = 1000

#: The maximum epoch number that a loaded state may contain. The epoch number is limited, because the time for computing
#: an epoch's seed grows with its number.
_MOST_EPOCHS = 10_000_000


class MultiNodeWeightedSampler(MultiNode[T]):
    """Yields items of randomly chosen sources. The random choices of sources are the same as in torchdata 0.11.

    `torch.multinomial` makes the choices, which depend on the seed, the rank, the number of ranks and the epoch. The
    node has a length if `stop_criteria` is `ALL_DATASETS_EXHAUSTED` and all sources have a length.

    Subclasses may extend the checks in `_validate`, which `__init__` calls last. A subclass that chooses sources
    differently overrides `_get_new_weighted_sampler`. `reset` calls `_get_new_weighted_sampler` for an iterator over
    names of sources, and the iterator's `state_dict()` is part of the node's state.

    Args:
        source_nodes: the nodes to read, by name.
        weights: the weight of each source by name; they need not add up to 1.
        stop_criteria: when the epoch ends; a value of `StopCriteria`. The default is
            `CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED`.
        rank: the number of this rank; by default (None), the rank in `torch.distributed`, or else the environment
            variable RANK.
        world_size: the number of ranks; by default (None), the world size in `torch.distributed`, or else the
            environment variable WORLD_SIZE.
        seed: the seed of the choices; 0 by default.
        tag_output: whether items contain the name of their source: a dict gets the key `"dataset_key"`, and any other
            item becomes a dict with this key and `"data"`; False by default.

    Raises:
        TypeError: a source is not a node, or a numeric argument is not an integer.
        ValueError: `source_nodes` is empty, `stop_criteria` is unknown, or the rank is out of range; or `weights` has
            other keys than `source_nodes`, or a value that is not a positive finite number. Reading raises ValueError
            if an item already has a key named `"dataset_key"`.

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
    CHOSEN_KEY = "chosen"

    _of_a_run: ClassVar[frozenset[str]] = MultiNode._of_a_run | {"_choices", "_started", "_weighted_sampler"}

    _num_yielded = 0
    _started = False
    #: The name of the chosen source, until this source has yielded an item. After an error of the source, the next call
    #: reads the same source.
    _chosen: str | None = None

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
        self.seed = check_int("MultiNodeWeightedSampler", "seed", seed)
        if rank is None or world_size is None:
            rank, world_size = get_rank_and_world_size()
        self.rank = rank
        self.world_size = world_size
        self._epoch = 0
        self._validate()

    def _validate(self) -> None:
        node = "MultiNodeWeightedSampler"
        weights: Any = self.weights
        if not isinstance(weights, dict) or set(weights) != set(self.dataset_names):
            raise ValueError(
                f"{node}: weights must be a dict with the names of source_nodes, {self.dataset_names}, but got "
                f"{weights!r}: keys of source_nodes and weights must be the same"
            )
        for name, weight in weights.items():
            is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
            if not is_number or not 0 < weight < float("inf"):
                raise ValueError(
                    f"{node}: weights must be positive finite numbers, but got {weight!r} for {name!r}; leave out a "
                    "source that is never to be chosen: weights must be a 1d sequence, non-negative, and non-zero"
                )

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        self._chosen = None
        if initial_state is None:
            self._epoch += self._started
            self._num_yielded, self._started = 0, False
        else:
            fields = StateFields("MultiNodeWeightedSampler", initial_state)
            self._num_yielded = fields.integer(self.NUM_YIELDED_KEY, least=0)
            self._epoch = fields.integer(self.EPOCH_KEY, least=0, most=_MOST_EPOCHS)
            self._started = fields.flag(self.STARTED_KEY, self._num_yielded > 0)
            if self.CHOSEN_KEY in fields:
                self._chosen = fields[self.CHOSEN_KEY]
                if self._chosen not in self.dataset_names:
                    raise fields.wrong(self.CHOSEN_KEY, f"must be one of {self.dataset_names}")
        self._weighted_sampler = self._get_new_weighted_sampler(initial_state)
        self._choices = map(next, repeat(self._weighted_sampler))
        super().reset(initial_state)

    def _get_new_weighted_sampler(self, initial_state: dict[str, Any] | None = None) -> Any:
        state = StateFields("MultiNodeWeightedSampler", initial_state).state(self.WEIGHTED_SAMPLER_STATE_KEY)
        how = self.weights, self.seed, self.rank, self.world_size, self._epoch
        return _WeightedSampler(*how, initial_state=state)

    def next(self) -> T:
        self._started, choices = True, self._choices
        while not self._is_over:
            if self._chosen is None:
                for self._chosen in choices:
                    break
                else:
                    raise StopIteration
            try:
                item: T = self._item_of(self._chosen)
            except NoItem:
                self._chosen = None
                continue
            except StopIteration:
                self._chosen = None
                raise
            self._chosen, self._num_yielded = None, self._num_yielded + 1
            return item
        raise StopIteration

    def get_state(self) -> dict[str, Any]:
        state = {
            **super().get_state(),
            self.EPOCH_KEY: self._epoch,
            self.NUM_YIELDED_KEY: self._num_yielded,
            self.STARTED_KEY: self._started,
            self.WEIGHTED_SAMPLER_STATE_KEY: self._weighted_sampler.state_dict(),
        }
        return state if self._chosen is None else {**state, self.CHOSEN_KEY: self._chosen}


class _WeightedSampler:
    """Yields randomly chosen names of sources without end."""

    GENERATOR_KEY, OFFSET_KEY = "g_state", "offset"

    def __init__(
        self,
        weights: dict[str, float],
        seed: int,
        rank: int,
        world_size: int,
        epoch: int,
        random_tensor_batch_size: int = _DRAWN,
        initial_state: dict[str, Any] | None = None,
    ) -> None:
        self.names = list(weights)
        self.weights = torch.tensor(list(weights.values()), dtype=torch.float64)
        self.epoch = epoch
        self.random_tensor_batch_size = random_tensor_batch_size
        self._generator = torch.Generator()
        fields = StateFields("the choices of MultiNodeWeightedSampler", initial_state)
        offset = fields.integer(self.OFFSET_KEY, least=0, most=random_tensor_batch_size)
        if initial_state is None:
            self._generator.manual_seed(_get_rank_seed(seed, torch.Generator(), rank, world_size, epoch))
        else:
            try:
                self._generator.set_state(fields[self.GENERATOR_KEY])
            except (TypeError, RuntimeError) as error:
                raise fields.wrong(self.GENERATOR_KEY, "must be the state of a torch.Generator") from error
        self._draw()
        self._offset = offset

    def _draw(self) -> None:
        self._before = self._generator.get_state()
        drawn = torch.multinomial(
            self.weights, self.random_tensor_batch_size, replacement=True, generator=self._generator
        )
        self._drawn = [self.names[index] for index in drawn.tolist()]
        self._offset = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._offset == self.random_tensor_batch_size:
            self._draw()
        self._offset += 1
        name: str = self._drawn[self._offset - 1]
        return name

    def state_dict(self) -> dict[str, Any]:
        return {self.GENERATOR_KEY: self._before, self.OFFSET_KEY: self._offset}
