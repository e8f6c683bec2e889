"""Observes loaders: counters, displays, access from other processes, and metrics.

`_engine` and `dataloader2` import this package, and increase its counters.
"""
