"""Defines pipes and functions of users without torch, so that a spawned worker need not import torch."""

import sys
from typing import Any

from torchdata.dataloader2.graph import find_dps, list_dps, replace_dp, traverse_dps
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe


def plus_one(item: int) -> int:
    return item + 1


class TupleState(IterDataPipe):
    """A pipe with a tuple as its pickled state. Pickling the pipe calls `getstate_hook`."""

    def __init__(self, source_datapipe: Any, factor: int) -> None:
        self.source_datapipe, self.factor = source_datapipe, factor
        self.resets = 0

    def __iter__(self) -> Any:
        for item in self.source_datapipe:
            yield item * self.factor

    def reset(self) -> None:
        self.resets += 1

    def __getstate__(self) -> Any:
        state = (self.source_datapipe, self.factor)
        if IterDataPipe.getstate_hook is not None:
            return IterDataPipe.getstate_hook(state)
        return state

    def __setstate__(self, state: Any) -> None:
        self.source_datapipe, self.factor = state
        self.resets = 0


class FirstFour(IterDataPipe):
    def __init__(self, source: Any) -> None:
        self.source = source
        self.taken = self.start = 0

    def __iter__(self) -> Any:
        self.taken, self.start = self.start, 0
        for item in self.source:
            if self.taken == 4:
                return
            self.taken += 1
            yield item

    def state_dict(self) -> Any:
        return {"taken": self.taken}

    def load_state_dict(self, state_dict: Any) -> None:
        self.start = state_dict["taken"]


class Cutting(IterDataPipe):
    def __init__(self, source_datapipe: Any) -> None:
        self.source_datapipe = source_datapipe

    def __iter__(self) -> Any:
        for item in list(self.source_datapipe):
            (source,) = find_dps(traverse_dps(self), IterableWrapper)
            graph = replace_dp(traverse_dps(self), source, IterableWrapper([item, 10 * item]))
            assert list_dps(graph)[0] is self
            yield from self.source_datapipe


is_late = [False]


def worker_of_torch(item: int) -> Any:
    is_late[0] |= "torch" not in sys.modules
    import torch.utils.data

    info: Any = torch.utils.data.get_worker_info()
    has_seed = is_late[0] or info.seed == torch.initial_seed()
    return info.id, info.num_workers, has_seed, type(info.dataset).__name__, torch.get_num_threads()
