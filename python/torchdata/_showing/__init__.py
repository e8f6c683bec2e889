"""What people look at: chains in words, pictures, notebooks, metrics, progress. Private; loaders, pipes and
`torchdata.metrics` hand it out.

Stands above the statistics, and is imported when somebody looks.
"""
