"""Observes loaders: counters, displays, access from other processes, and metrics."""
