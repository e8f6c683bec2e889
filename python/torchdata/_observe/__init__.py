"""How loaders are seen: what they count, what is shown of it, who reads it from outside, metrics. Private.

Stands above the pipes, and below `_engine` and `dataloader2`, both of which count here.
"""
