"""Counters of processes and pipes, and the statistics and the diagnosis derived from them."""
