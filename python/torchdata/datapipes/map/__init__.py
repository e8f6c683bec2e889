"""Pipes that are read by index."""

from functools import partial
from typing import TYPE_CHECKING

from torchdata._publishing import publish_late
from torchdata.datapipes._pipe.checks import wrap_data_by
from torchdata.datapipes._pipe.graph.torch import pair_with_torch
from torchdata.datapipes.datapipe import MapDataPipe

if TYPE_CHECKING:
    from torchdata.datapipes._pipe.arrow_sources import ArrowChunks as ArrowChunks
    from torchdata.datapipes._pipe.arrow_sources import ArrowFragments as ArrowFragments
    from torchdata.datapipes._pipe.arrow_sources import IcebergFiles as IcebergFiles
    from torchdata.datapipes._pipe.ray_blocks import RayBlocks as RayBlocks
    from torchdata.datapipes.map.arrow import ArrowParts, from_ray_data
    from torchdata.datapipes.map.callable import InMemoryCacheHolder, Mapper
    from torchdata.datapipes.map.combinatorics import IndexSampler, Shuffler
    from torchdata.datapipes.map.combining import Concater, UnZipper, Zipper
    from torchdata.datapipes.map.combining import _Column as _Column
    from torchdata.datapipes.map.grouping import Batcher
    from torchdata.datapipes.map.wrapping import IterToMapConverter, SequenceWrapper

__all__ = [
    "ArrowParts",
    "Batcher",
    "Concater",
    "InMemoryCacheHolder",
    "IndexSampler",
    "IterToMapConverter",
    "MapDataPipe",
    "Mapper",
    "SequenceWrapper",
    "Shuffler",
    "UnZipper",
    "Zipper",
    "from_ray_data",
]

#: All is imported when it is first used, as of `torchdata.datapipes.iter`.
_LATE: dict[str, dict[str, str | None]] = {
    "torchdata.datapipes._pipe.arrow_sources": {
        "ArrowChunks": None,
        "ArrowFragments": None,
        "IcebergFiles": None,
    },
    "torchdata.datapipes._pipe.ray_blocks": {
        "RayBlocks": None,
    },
    "arrow": {
        "ArrowParts": None,
        "from_ray_data": None,
    },
    "callable": {
        "InMemoryCacheHolder": "in_memory_cache",
        "Mapper": "map",
    },
    "combinatorics": {
        "IndexSampler": "sample_by",
        "Shuffler": "shuffle",
    },
    "combining": {
        "Concater": "concat",
        "UnZipper": "unzip",
        "Zipper": "zip",
        "_Column": None,
    },
    "grouping": {
        "Batcher": "batch",
    },
    "wrapping": {
        "IterToMapConverter": None,
        "SequenceWrapper": None,
    },
}

publish_late(globals(), _LATE, partial(pair_with_torch, "torch.utils.data.datapipes.map"))
MapDataPipe.register_all_late(__name__, _LATE)
wrap_data_by(MapDataPipe, f"{__name__}.wrapping", "SequenceWrapper")
MapDataPipe.register_late("to_iter_datapipe", "torchdata.datapipes.iter.mapping.converting", "MapToIterConverter")
