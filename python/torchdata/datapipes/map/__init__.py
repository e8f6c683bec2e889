"""Pipes that are read by index."""

from torchdata._publishing import publish
from torchdata.datapipes._pipe.arrow_sources import ArrowChunks, ArrowFragments, IcebergFiles
from torchdata.datapipes._pipe.graph.torch import pair_with_torch
from torchdata.datapipes._pipe.ray_blocks import RayBlocks
from torchdata.datapipes.datapipe import MapDataPipe
from torchdata.datapipes.map.arrow import ArrowParts, from_ray_data
from torchdata.datapipes.map.callable import InMemoryCacheHolder, Mapper
from torchdata.datapipes.map.combinatorics import IndexSampler, Shuffler
from torchdata.datapipes.map.combining import Concater, UnZipper, Zipper, _Column
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

publish(globals(), ArrowChunks, ArrowFragments, IcebergFiles, RayBlocks, _Column)
pair_with_torch("torch.utils.data.datapipes.map", globals())
