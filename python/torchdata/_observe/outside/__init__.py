"""Access to a running loader from another process or thread: counters, stacks, stall warnings, and `top`."""
