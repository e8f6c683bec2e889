"""Random graphs of nodes: some epochs are left early, the place is saved at each item, and a new process continues
there.

A graph runs whole in one process, in another one as it would without threads and processes, and in further ones from
some of its states for three epochs more. All must give the same. `sources` are what graphs read, `graphs` makes a graph
from a seed, `running` runs it in a process of `fresh_processes`, `judging` compares. Half of the graphs have only nodes
of torchdata 0.11, so that it can be measured next to.

    python -m drivers nodes --runs 1000 --next to PATH_OF_A_PYTHON_WITH_TORCHDATA_0.11
"""
