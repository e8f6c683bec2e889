"""Runs random sequences of operations on a loader, and compares its items with the items of an undisturbed loader.

New loaders resume from the saved states, also with other numbers of workers and in other processes. If a pipeline draws
no random numbers, a model computes the expected items as well.

`pipelines` contains steps, `plans` generates plans, `epochs` reads items, `run` executes a plan, and `events` contains
the events."""
