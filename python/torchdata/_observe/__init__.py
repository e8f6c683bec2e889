"""Observation of loaders: their counters, displays, access from other processes, and metrics. Private.

Depends on the pipes. `_engine` and `dataloader2` depend on this package, and increase its counters.
"""
