"""Reading services, which run a loader's pipe graph in this process, in worker processes, or on several ranks."""
