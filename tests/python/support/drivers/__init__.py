"""Drivers are programs that search for unknown failures.

Each driver draws plans from seeds, runs the plans, and checks the results.

    python -m drivers loaders --seconds 600 --seed 1     # in tests/python/support; runs seeds 1, 2, 3, …
    python -m drivers loaders --seed 17 --runs 1         # runs seed 17 again
    python -m drivers all --seconds 3600                 # runs all drivers, an hour each
    python -m drivers nodes --upstream PYTHON            # compares with torchdata 0.11; also `stateful`

The module `frame` contains common code of the drivers. Each driver is the variable `DRIVER` of another module."""

#: The module that defines each driver, and the name of the driver's variable if this name is not `DRIVER`.
DRIVERS = {
    "loaders": "random_loaders.run",
    "graph-loaders": "random_loaders.graphs",
    "graphs": "random_graphs.check",
    "scribbles": "random_scribbles",
    "tensors": "random_tensors",
    "files": "fuzz_files",
    "stateful": "random_stateful.judging",
    "stateful-exits": "random_stateful.judging:EXITS",
    "nodes": "random_nodes.judging",
    "positions": "shard_positions",
    "ranks": "rank_chaos",
    "web": "faulty_http",
}
