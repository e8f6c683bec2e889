"""Functions that inspect and change a pipe graph: find, list, replace, remove and seed its pipes.

A graph is a nested dictionary `{id(pipe): (pipe, graph of its sources)}` with the last pipe as its only entry. A graph
describes the connections at the moment when `traverse_dps` was called.
"""

from torchdata.dataloader2.graph import cutting, utils
from torchdata.dataloader2.graph.settings import set_datapipes_seed, set_graph_random_seed
from torchdata.dataloader2.graph.utils import (
    DataPipe,
    DataPipeGraph,
    find_dps,
    list_dps,
    remove_dp,
    replace_dp,
    traverse_dps,
)

__all__ = [
    "DataPipe",
    "DataPipeGraph",
    "find_dps",
    "list_dps",
    "remove_dp",
    "replace_dp",
    "set_datapipes_seed",
    "set_graph_random_seed",
    "traverse_dps",
]

# Code that was written for torchdata 0.9 imports `find_replicable_branches` from `graph.utils`, under a name with an
# underscore.
setattr(utils, "_find_replicable_branches", cutting.find_replicable_branches)  # noqa: B010 - not known to checkers there
