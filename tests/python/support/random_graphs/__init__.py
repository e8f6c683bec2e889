"""Saves and loads random graphs of pipes at every position.

Over several epochs, resumed runs must yield the same items as an uninterrupted run.

`users` contains pipes and functions as users write them, and `stages` contains the parts of graphs. `graphs` creates a
random graph, and `loaders` a loader with random arguments. `check` compares resumed runs with uninterrupted runs."""
