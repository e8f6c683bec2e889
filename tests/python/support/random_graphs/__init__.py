"""Random graphs of pipes, their states at every position, and chains of saving and loading: what comes is what a run
that was never stopped yields, over several epochs.

    python -m drivers graphs --seconds 600            # in tests/python/support

`users` has pipes and functions as users write them, `stages` what a graph is made of, `graphs` draws one from a seed,
`check` holds one against its run without a stop. `loaders` draws a loader around a graph: where its items are shared,
what stays in the main process, workers, budgets; its life is in `lives.graphs`. `elsewhere` continues in a fresh
interpreter.
"""
