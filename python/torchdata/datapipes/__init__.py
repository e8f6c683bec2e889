"""Pipes: composable steps of a data pipeline, read by iterating (`iter`) or by index (`map`)."""

from torchdata._version import warn_if_replaced
from torchdata.datapipes._pipe.registry import functional_datapipe
from torchdata.datapipes.datapipe import DataChunk

from . import iter, map, utils  # isort: skip - they import the names above

__all__ = ["DataChunk", "functional_datapipe", "iter", "map", "utils"]

warn_if_replaced(__name__)
