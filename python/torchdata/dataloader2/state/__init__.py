"""States of a loader: their layout, their validation, positions in an epoch, and resuming with another number of
workers.
"""
