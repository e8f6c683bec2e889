"""Random programs over `StatefulDataLoader`: each is stopped, starts anew as another process, and continues.

A program is a dataset, a sampler, options of the loader, what it draws from the global generators, and a moment at
which it is stopped. It runs three times, in a process of its own each time: without a stop, up to its stop, and from
the saved state for three epochs more. The last run must give what the first one gave. `programs` makes a program from
a seed, `running` runs it in a process of `fresh_processes`, `judging` compares. None of them needs more than torch,
NumPy and some torchdata, so that another torchdata can be measured next to.

    python -m drivers stateful --runs 1000 --next to PATH_OF_A_PYTHON_WITH_TORCHDATA_0.11
"""
