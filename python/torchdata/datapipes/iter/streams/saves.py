"""The base class of pipes that save items as files of a file system."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from torchdata._redacting import shown
from torchdata.datapipes._pipe.checks import check_callable, check_mode, explaining
from torchdata.datapipes._pipe.item_by_item import ItemByItem
from torchdata.datapipes.iter.streams.pairs import source_pipe
from torchdata.datapipes.utils.names import check_target


class SavesItems(ItemByItem[str]):
    def __init__(
        self, source_datapipe: Iterable[tuple[Any, Any]], mode: str, filepath_fn: Callable[[Any], str] | None
    ) -> None:
        name = type(self).__name__
        self.source_datapipe = source_pipe(source_datapipe, self)
        self.mode = check_mode(name, mode, writes=True)
        check_callable(name, "filepath_fn", filepath_fn, optional=True)
        self.filepath_fn = filepath_fn

    def _save(self, path: str, data: Any) -> None:
        raise NotImplementedError

    def _result(self, item: Any) -> str:
        name = type(self).__name__
        try:
            meta, data = item
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name} expects pairs of metadata and data, but got {shown(item)}") from error
        path = meta if self.filepath_fn is None else self.filepath_fn(meta)
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"{name} expects a str as path, but got {shown(path)} for the metadata {shown(meta)}")
        path = os.fspath(path)
        if self.filepath_fn is None:
            check_target(self, path)
        self._check_data(name, path, data)
        with explaining(self, "cannot save", path):
            self._save(path, data)
        return path

    def _check_data(self, name: str, path: str, data: Any) -> None:
        """Checks the type of the data before any data is written."""
        if "b" not in self.mode:
            fits = isinstance(data, str)
        else:
            try:
                memoryview(data).release()
                fits = True
            except TypeError:
                fits = False
        if not fits:
            kind, other = ("bytes", "w") if "b" in self.mode else ("str", "wb")
            raise TypeError(
                f"{name} cannot save {shown(path)}: mode {self.mode!r} takes {kind}, but the data are of type "
                f"{type(data).__name__}; convert them, or use mode={other!r}"
            )
