"""How a loader runs its pipe graph: in this process, in worker processes, among ranks, one after the other."""
