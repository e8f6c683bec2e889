"""Simulates a process group."""


class Alone:
    def __init__(self, world_size=1, rank=0):
        self.rank, self.world_size = rank, world_size

    def broadcast(self, value):
        return value

    def all_reduce_min(self, value):
        return value
