"""A group of ranks that has one."""

from __future__ import annotations


class Alone:
    """What a reading service asks of a group."""

    rank, world_size = 0, 1

    def broadcast(self, value):
        return value

    def all_reduce_min(self, value):
        return value
