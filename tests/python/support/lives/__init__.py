"""Whole lives of random loaders: all that one may do to a loader, in any order, against one that is only read.

A life has a pipeline, a service, and some epochs, of which some are left early and some begin with a seed of their own.
The items of a loader that is only read must come in the other loader, too, in which everything else happens: states
between two items and from signal handlers and threads, loaders that go on from them, also from older ones, before and
after `iter`, with other numbers of workers, and in other processes; `skip`, limits, other iterators, statistics; deaths
of processes. Where nothing is drawn, a model says what a loader that is only read must give.

`pipelines` has steps of pipelines, `plans` draws a life, `epochs` has the items of one, `model` says them in advance,
`run` carries a life out, `events` has what happens in it, `blows` what ends it: somebody dies, stands still or presses
Ctrl-C, and nobody replaces whom it hits. `graphs` has lives of the graphs of `random_graphs`.
"""
