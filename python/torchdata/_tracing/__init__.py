"""Traces: what every process of a loader did when, as a file that Perfetto and chrome://tracing open.

Each process writes a log of its own into shared memory; main makes the logs, and a file of them at the end. `state` is
known to pipes and processes and knows nothing of them; the rest stands above the pipes.
"""
