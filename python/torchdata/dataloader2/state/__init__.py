"""States of a loader: their layout, their validation, positions in an epoch, and other numbers of workers."""
