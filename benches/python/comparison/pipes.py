"""The contenders that share an API: this project and upstream torchdata 0.9.0, depending on the child's environment."""

from __future__ import annotations

from typing import Any

from comparison import items


def shared_out(source: range, make: Any) -> Any:
    from torchdata.datapipes.iter import IterableWrapper

    return IterableWrapper(source, deepcopy=False).sharding_filter().map(make)


def dispatched(source: range, make: Any) -> Any:
    from torchdata.datapipes.iter import IterableWrapper

    try:
        from torchdata.datapipes.iter.ordering.sharding import SHARDING_PRIORITIES
    except ModuleNotFoundError:  # upstream's pipe is in torch
        from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
    made = IterableWrapper(source, deepcopy=False).map(make)
    return made.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING).map(items.same)


def batched(source: range, make: Any) -> Any:
    return shared_out(source, make).batch(items.TOGETHER)


def members(source: range, make: Any) -> Any:
    return shared_out(source, items.tar_path).open_files("b").load_from_tar().map(make)


GRAPHS = {"shared_out": shared_out, "dispatched": dispatched, "batched": batched, "members": members}


def loader(pipe: Any, start_method: str, workers: int | str, splits: int | None = None, **options: Any) -> Any:
    from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService

    service = MultiProcessingReadingService(workers, start_method, **options)
    # Earlier versions of this project do not have the argument `splits`.
    return DataLoader2(pipe, reading_service=service, **({} if splits is None else {"splits": splits}))
