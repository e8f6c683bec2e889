"""Traces: what every process of a loader did when, as a file that Perfetto and chrome://tracing open.

Each process writes a log of its own into shared memory; main makes the logs, and a file of them at the end. Pipes and
processes ask `torchdata._tracing` whether there is a trace.
"""
