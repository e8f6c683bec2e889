"""`torchdata.nodes`: data loading with iterators that save and restore their positions, as in PyTorch's package of the
same name.

Role: a node reads other nodes, and returns an item for each call of `next`. A node can be reset to its beginning or to
a saved state. `Loader` reads the last node once per epoch. Importing this package imports PyTorch.
"""

from __future__ import annotations

from torchdata._optional import optional_import

try:
    import torch  # noqa: F401
except ModuleNotFoundError:
    optional_import("torch", extra="torch", needed_by="torchdata.nodes")

from torchdata._version import warn_if_replaced
from torchdata.nodes.adapters import IterableWrapper, MapStyleWrapper, SamplerWrapper
from torchdata.nodes.base_node import BaseNode, T
from torchdata.nodes.batch import Batcher, Collator, Unbatcher
from torchdata.nodes.bridges import from_pipe, to_pipe
from torchdata.nodes.cycler import Cycler
from torchdata.nodes.filter import Filter
from torchdata.nodes.header import Header
from torchdata.nodes.loader import Loader
from torchdata.nodes.map import Mapper, ParallelMapper
from torchdata.nodes.pin_memory import PinMemory
from torchdata.nodes.prefetch import Prefetcher
from torchdata.nodes.samplers.multi_node_round_robin_sampler import MultiNodeRoundRobinSampler
from torchdata.nodes.samplers.multi_node_weighted_sampler import MultiNodeWeightedSampler
from torchdata.nodes.samplers.stop_criteria import StopCriteria
from torchdata.nodes.shuffler import Shuffler
from torchdata.nodes.transforms import Compose
from torchdata.nodes.types import Stateful

__all__ = [
    "BaseNode",
    "Batcher",
    "Collator",
    "Compose",
    "Cycler",
    "Filter",
    "Header",
    "IterableWrapper",
    "Loader",
    "MapStyleWrapper",
    "Mapper",
    "MultiNodeRoundRobinSampler",
    "MultiNodeWeightedSampler",
    "ParallelMapper",
    "PinMemory",
    "Prefetcher",
    "SamplerWrapper",
    "Shuffler",
    "Stateful",
    "StopCriteria",
    "T",
    "Unbatcher",
    "from_pipe",
    "to_pipe",
]

warn_if_replaced(__name__)
