"""Observation of loaders: their counters, displays, access from other processes, and metrics. Private.

This package imports the pipes. `_engine` and `dataloader2` import this package, and increase its counters.
"""
