"""The pipe over datasets of the Hugging Face Hub: HuggingFaceHubReader.

Every iteration creates a new dataset object, which owns its connections and files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from torchdata._optional import optional_import
from torchdata._redacting import shown
from torchdata._stateful import load_into
from torchdata.datapipes._pipe.checks import explaining, wrong_type
from torchdata.datapipes._pipe.state.declared import checked_state, state
from torchdata.datapipes._pipe.state.layout import explaining_damage
from torchdata.datapipes.datapipe import IterDataPipe, token_of

__all__ = ["HuggingFaceHubReader"]


class HuggingFaceHubReader(IterDataPipe[dict[str, Any]]):
    """Yields the rows of a dataset of the Hugging Face Hub, each a dict from column to value.

    Rows are streamed: nothing is downloaded ahead, and nothing is stored on disk. A saved state contains the position
    in the dataset, and a resumed run does not read earlier rows. Every worker process yields all rows, so add a
    `sharding_filter` after this pipe.

    Args:
        dataset: the name of a dataset (`"owner/name"`), a folder of files, or the name of a file format, as for
            `datasets.load_dataset`.
        **config_kwargs: further arguments of `datasets.load_dataset`, such as `split`, `revision`, `data_files` or
            `token`. `streaming` is True by default; with False, the whole dataset is downloaded to the cache of
            `datasets`. Without `split`, the dataset must have only one split.

    Raises:
        ModuleNotFoundError: `datasets` is not installed.
        TypeError: `dataset` is not a string.
        ValueError: while iterating, the dataset has several splits and `split` is not given.
        Exception: while iterating, any error of `datasets` if a dataset cannot be found, reached or read.

    Example:
        >>> from torchdata.datapipes.iter import HuggingFaceHubReader
        >>> rows = HuggingFaceHubReader("lhoestq/demo1", split="train", revision="main")
        >>> stars = rows.map(lambda row: row["star"])
    """

    _data: Any = state(saved=False)
    _rows: int = state(0)  # the number of rows that the next iteration skips, if the data set is not streamed
    #: The state of a streamed data set. The next iteration resumes from this state.
    _position: Any = checked_state((dict, None))

    def __init__(self, dataset: str, **config_kwargs: Any) -> None:
        self._import()
        if not isinstance(dataset, (str, os.PathLike)):
            raise wrong_type("HuggingFaceHubReader", "dataset", "the name of a data set", dataset)
        self.dataset = os.fspath(dataset)
        self.config_kwargs = config_kwargs

    @staticmethod
    def _import() -> Any:
        return optional_import("datasets", extra="huggingface", needed_by="HuggingFaceHubReader")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        data = self._load()
        if _is_streamed(data):
            if self._position is not None:
                with explaining_damage(type(self).__name__):
                    load_into(data, self._position)
            # In a torch worker, the dataset's `__iter__` would yield only a part of the rows, so batches of one row are
            # read.
            rows: Iterable[dict[str, Any]] = map(_only_row, data.iter(batch_size=1))
        else:
            left = range(self._rows, len(data))
            rows = data.select(left) if left else ()
        self._data = data
        try:
            yield from rows
        finally:
            if self._data is data:  # keeps the position, not the dataset, which may hold open files
                self._load_declared(self.state_dict())

    def _load(self) -> Any:
        with explaining(self, "was loading the data set", self.dataset):
            data = self._import().load_dataset(path=self.dataset, **{"streaming": True, **self.config_kwargs})
        if not isinstance(data, dict):
            return data
        if len(data) != 1:
            raise ValueError(
                f"HuggingFaceHubReader: the data set {shown(self.dataset)} has the splits {[*data]}; choose one, as "
                f"in split={next(iter(data), 'train')!r}"
            )
        return next(iter(data.values()))

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} instance doesn't have valid length")

    def state_dict(self) -> dict[str, Any]:
        if self._data is None:
            return self._declared_state()
        position = self._data.state_dict() if _is_streamed(self._data) else None
        return {"rows": token_of(self).yielded, "position": position}


def _is_streamed(data: Any) -> bool:
    return hasattr(data, "load_state_dict")


def _only_row(batch: dict[str, list[Any]]) -> dict[str, Any]:
    return {column: values[0] for column, values in batch.items()}
