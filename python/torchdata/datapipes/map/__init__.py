"""Pipes that are read by index."""

from functools import partial
from typing import TYPE_CHECKING

from torchdata._publishing import late_names, publish_late
from torchdata.datapipes._pipe.checks import wrap_data_by
from torchdata.datapipes._pipe.graph.torch import pair_with_torch
from torchdata.datapipes.datapipe import MapDataPipe as MapDataPipe

if TYPE_CHECKING:
    from torchdata.datapipes.map.arrow import *
    from torchdata.datapipes.map.callable import *
    from torchdata.datapipes.map.combinatorics import *
    from torchdata.datapipes.map.combining import *
    from torchdata.datapipes.map.grouping import *
    from torchdata.datapipes.map.wrapping import *

_PIPES = late_names(
    {
        "arrow": "ArrowParts",
        "callable": "InMemoryCacheHolder=in_memory_cache Mapper=map",
        "combinatorics": "IndexSampler=sample_by Shuffler=shuffle",
        "combining": "Concater=concat UnZipper=unzip Zipper=zip",
        "grouping": "Batcher=batch",
        "wrapping": "IterToMapConverter SequenceWrapper",
    }
)
#: Private classes that pickles refer to by name.
_HELD = late_names(
    {
        "torchdata.datapipes._pipe.arrow_sources": "ArrowChunks ArrowFragments IcebergFiles",
        "combining": "_Column",
    }
)
_LATE = {module: {**_PIPES.get(module, {}), **_HELD.get(module, {})} for module in {**_PIPES, **_HELD}}

__all__ = sorted(["MapDataPipe", *(name for names in _PIPES.values() for name in names)])

publish_late(globals(), _LATE, partial(pair_with_torch, "torch.utils.data.datapipes.map"))
MapDataPipe.register_all_late(__name__, _LATE)
wrap_data_by(MapDataPipe, f"{__name__}.wrapping", "SequenceWrapper")
MapDataPipe.register_late("to_iter_datapipe", "torchdata.datapipes.iter.mapping.converting", "MapToIterConverter")
