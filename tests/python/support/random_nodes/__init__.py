"""Random graphs of nodes.

A graph runs completely in one process, and again in a second process without threads. Other processes resume from saved
states, and read three more epochs. All runs of a graph must yield the same items. `sources` contains sources, `graphs`
creates graphs from seeds, `running` runs a graph in a process, and `judging` compares the runs. Half of the graphs
contain only nodes that torchdata 0.11 has, too, so that the two packages can be compared."""
