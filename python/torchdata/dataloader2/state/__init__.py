"""States of a loader: their layout, whether they may be believed, places in an epoch, and other numbers of workers."""
