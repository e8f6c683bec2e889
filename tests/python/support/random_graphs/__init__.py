"""Random graphs of pipes, their states at every position, and chains of saving and loading: what comes is what a run
that was never stopped yields, over several epochs.

    python -m random_graphs 10                     # minutes; in tests/python/support
    python -m random_graphs --seed 17 --graphs 1   # one of them again
    python -m random_graphs 10 --kind loaders      # graphs in loaders only, most of them with workers

`users` has pipes and functions as users write them, `stages` what a graph is made of, `graphs` draws one from a seed,
`check` holds one against its run without a stop. `loaders` draws a loader around a graph: where its items are shared,
what stays in main, workers, budgets; `check_loaders` does for it what `check` does for a graph. `elsewhere` goes on in
a fresh interpreter, `__main__` runs many.
"""
