"""Views of a running loader from another process or thread: its counters, its stacks, warnings of stalls, `top`."""
