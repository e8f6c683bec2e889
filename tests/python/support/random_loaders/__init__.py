"""Random loaders over real processes: graphs, options and actions from a seed, each epoch held against a model.

    python -m random_loaders --seconds 600 --seed 1          # in tests/python/support; runs seeds 1, 2, 3, …
    python -m random_loaders --seed 17 --runs 1              # one of them again

`items` has what the pipes run, `graphs` the pipes with their models, `plans` draws a plan from a seed, `epochs` carries
out what main does in an epoch and judges what came, `run` runs a plan in this process,
`__main__` runs many, each in a process of its own under a watchdog.
"""
