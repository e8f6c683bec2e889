"""Counters of processes and pipes, and the values and the verdict that are made of them."""
