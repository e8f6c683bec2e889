"""What a loader counts, what that says, and who reads it from outside. Private; `DataLoader2.stats` hands it out.

Stands below `dataloader2` and `_engine`, both of which count here, and above the pipes.
"""
