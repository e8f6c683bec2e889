"""Programs that search for failures without a specific test: each draws plans from seeds, runs them, and checks the
results.

    python -m drivers lives --seconds 600 --seed 1     # in tests/python/support; runs seeds 1, 2, 3, …
    python -m drivers lives --seed 17 --runs 1         # one of them again
    python -m drivers all --seconds 3600               # each of them in turn, for this time each

`frame` contains their shared code: the loop over seeds, a separate process for each plan, a watchdog, the check for
leftovers, and the report of a failure. Each driver is the `DRIVER` of a module.
"""

from __future__ import annotations

#: The module of each driver, with the driver's name if that is not `DRIVER`.
DRIVERS = {
    "lives": "lives.run",
    "graph-lives": "lives.graphs",
    "graphs": "random_graphs.check",
    "hangs": "random_hangs",
    "skips": "random_skips",
    "signals": "random_signals",
    "threads": "random_threads",
    "scribbles": "random_scribbles",
    "tensors": "random_tensors",
    "files": "fuzz_files",
    "stateful": "random_stateful.judging",
    "stateful-deaths": "random_stateful.judging:DEATHS",
    "nodes": "random_nodes.judging",
    "diagnoses": "random_diagnoses",
    "positions": "shard_positions",
    "ranks": "rank_chaos",
    "ray": "ray_deaths",
}
