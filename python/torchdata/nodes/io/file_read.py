"""FileReader: yields the contents of files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchdata._optional import optional_import, require
from torchdata._redacting import shown
from torchdata.datapipes._pipe.checks import check_int
from torchdata.datapipes._pipe.retrying import retried
from torchdata.nodes.base_node import BaseNode
from torchdata.nodes.map import ParallelMapper

__all__ = ["FileReader"]

#: fsspec's name for each value of `"compression"` in `transport_params`.
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd", "disable": None}


class FileReader(ParallelMapper[dict[str, Any]]):
    """Reads whole files. The node is a `ParallelMapper`, by default without workers.

    An item of the source is a dict with the path or URL in `"data"`, as `FileLister` yields it. The result has the
    contents in `"data"`, and the item's `"metadata"` with an additional `"file_path"`.

    Args:
        source_node: the node to read.
        mode: `"r"` for text, `"rb"` for bytes.
        encoding: the encoding of text.
        transport_params: options of fsspec's file system. `"compression"` is the compression of the file (`".gz"`,
            `".bz2"`, `".xz"`, `".zst"`, or `"disable"`); by default, it is determined by the file name.
        max_retries: the maximum number of further attempts, each after a warning and a pause, if reading a file raises
            an OSError.
        **parallel_mapper_kwargs: arguments of `ParallelMapper`, such as `num_workers` and `method`.

    Raises:
        ModuleNotFoundError: fsspec is not installed.
        TypeError: `source_node` is not a node, or `max_retries` is not an integer.
        ValueError: `mode` is neither `"r"` nor `"rb"`, `max_retries` is negative, or the compression is unknown.
        OSError: while iterating, a file cannot be read.

    Example:
        >>> from torchdata.nodes.io import FileLister, FileReader
        >>> images = FileReader(FileLister("images", ["**/*.png"]), mode="rb", num_workers=4)
    """

    DATA_KEY = "data"
    METADATA_KEY = "metadata"

    def __init__(
        self,
        source_node: BaseNode[dict[str, Any]],
        mode: str = "r",
        encoding: str | None = "utf-8",
        transport_params: Mapping[str, Any] | None = None,
        max_retries: int = 3,
        **parallel_mapper_kwargs: Any,
    ) -> None:
        require("fsspec", extra="fsspec", needed_by="FileReader")
        if mode not in ("r", "rt", "rb"):
            raise ValueError(f"FileReader: mode must be 'r' or 'rb', but got {mode!r}")
        options = dict(transport_params or {})
        compression = options.pop("compression", "infer")
        if compression != "infer" and compression not in _COMPRESSIONS:
            raise ValueError(
                f"FileReader: compression must be one of {', '.join(_COMPRESSIONS)}, but got {compression!r}"
            )
        check_int("FileReader", "max_retries", max_retries, least=0)
        options |= {"mode": mode, "compression": _COMPRESSIONS.get(compression, compression)}
        if mode != "rb":
            options["encoding"] = encoding
        super().__init__(source_node, _Read(options, max_retries), **{"num_workers": 0, **parallel_mapper_kwargs})


class _Read:
    """Reads one file.

    Args:
        options: arguments of `fsspec.open`.
        max_retries: the maximum number of retries.
    """

    def __init__(self, options: dict[str, Any], max_retries: int) -> None:
        self.options, self.max_retries = options, max_retries

    def __call__(self, item: Any) -> dict[str, Any]:
        path = item[FileReader.DATA_KEY]
        metadata = {"file_path": path, **(item.get(FileReader.METADATA_KEY) or {})}
        return {FileReader.DATA_KEY: self._content(path), FileReader.METADATA_KEY: metadata}

    def _content(self, path: str) -> Any:
        fsspec = optional_import("fsspec", extra="fsspec", needed_by="FileReader")

        def read() -> Any:
            with fsspec.open(path, **self.options) as file:
                return file.read()

        return retried(read, self.max_retries, f"FileReader: reading {shown(path)}")
