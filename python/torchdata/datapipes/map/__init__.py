"""Pipes that are read by index."""

from typing import TYPE_CHECKING

from torchdata.datapipes._pipe.checks import wrap_data_by
from torchdata.datapipes.datapipe import MapDataPipe as MapDataPipe

if TYPE_CHECKING:
    from torchdata.datapipes.map.arrow import *
    from torchdata.datapipes.map.callable import *
    from torchdata.datapipes.map.combinatorics import *
    from torchdata.datapipes.map.combining import *
    from torchdata.datapipes.map.grouping import *
    from torchdata.datapipes.map.wrapping import *

_PIPES = {
    "arrow": "ArrowParts",
    "callable": "InMemoryCacheHolder=in_memory_cache Mapper=map",
    "combinatorics": "IndexSampler=sample_by Shuffler=shuffle",
    "combining": "Concater=concat UnZipper=unzip Zipper=zip",
    "grouping": "Batcher=batch",
    "wrapping": "IterToMapConverter SequenceWrapper",
}
#: Private classes that pickles refer to by name.
_HELD = {"torchdata.datapipes._pipe.arrow_sources": "ArrowChunks ArrowFragments IcebergFiles", "combining": "_Column"}

__all__ = MapDataPipe.publish_late(globals(), _PIPES, _HELD)
wrap_data_by(MapDataPipe, f"{__name__}.wrapping", "SequenceWrapper")
MapDataPipe.register_late("to_iter_datapipe", "torchdata.datapipes.iter.mapping.converting", "MapToIterConverter")
