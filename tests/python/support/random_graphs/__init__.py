"""Saves and loads random graphs of pipes at every position.

Over several epochs, resumed runs must yield the same items as an uninterrupted run.

    python -m drivers graphs --seconds 600            # in tests/python/support

`users` contains pipes and functions as users write them, and `stages` contains the parts of graphs. `graphs` draws a
graph from a seed, and `check` compares resumed runs with uninterrupted runs. `loaders` draws a loader for a graph."""
