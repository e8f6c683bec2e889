"""FileLister: yields the files in a folder, local or in a store."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, ClassVar

from torchdata._optional import optional_import, require
from torchdata._redacting import shown
from torchdata.nodes._fields import StateFields
from torchdata.nodes.base_node import BaseNode

__all__ = ["FileLister"]


class FileLister(BaseNode[dict[str, Any]]):
    """Yields the files in a folder that match patterns, sorted by name.

    An item is a dict: `"data"` is the path, or the URL of a file in a store, and `"metadata"` contains the protocol.
    The folder is listed at the beginning of each epoch and when a state is loaded. When a state is loaded, the folder
    must contain the same files as when the state was saved.

    Args:
        uri_base: the folder: a local path, or a URL that fsspec supports.
        patterns: shell patterns relative to the folder, such as `"*.txt"` or `"**/*.json"`; `"*"` by default.
        fs_options: options of fsspec's file system.

    Raises:
        ModuleNotFoundError: fsspec is not installed.
        TypeError: `patterns` is a string.
        FileNotFoundError: while iterating, the folder does not exist.

    Example:
        >>> from torchdata.nodes.io import FileLister, FileReader
        >>> texts = FileReader(FileLister("texts", ["*.txt"]))
    """

    CURRENT_IDX_KEY = "current_idx"
    NUM_FILES_KEY = "num_files"
    DIGEST_KEY = "digest"

    _of_a_run: ClassVar[frozenset[str]] = frozenset({"_advance", "_files", "_index"})

    def __init__(
        self, uri_base: str, patterns: Sequence[str] | None = None, fs_options: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        require("fsspec", extra="fsspec", needed_by="FileLister")
        if isinstance(patterns, str):
            raise TypeError(f"FileLister: patterns must be a list of strings, but got {patterns!r}")
        self.uri_base = uri_base
        self.patterns = list(patterns or ["*"])
        self.fs_options = dict(fs_options or {})
        protocol, separator, _ = uri_base.partition("://")
        self.protocol = protocol if separator else "file"

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begins an epoch or resumes from a state; see `BaseNode.reset`.

        Raises:
            FileNotFoundError: the folder does not exist.
            ValueError: a field of the state is missing or out of range, or the files have changed.
        """
        self._files, self._index = self._listed(), 0
        if initial_state is not None:
            fields = StateFields("FileLister", initial_state)
            saved = fields.integer(self.NUM_FILES_KEY, least=0)
            if saved != len(self._files) or fields[self.DIGEST_KEY] != self._digest():
                raise ValueError(
                    f"FileLister: the state was saved when {shown(self.uri_base)} had {saved} files that match, but "
                    f"there are other files now ({len(self._files)}); restore them, or start the epoch again"
                )
            self._index = fields.integer(self.CURRENT_IDX_KEY, least=0, most=saved)
        super().reset(initial_state)

    def _listed(self) -> list[str]:
        fs, base = optional_import("fsspec.core", extra="fsspec", needed_by="FileLister").url_to_fs(
            self.uri_base, **self.fs_options
        )
        names: set[str] = set()
        for pattern in self.patterns:
            found = fs.glob(f"{base.rstrip('/')}/{pattern}", detail=True)
            names.update(name for name, details in found.items() if details["type"] == "file")
        if not names and not fs.exists(base):
            raise FileNotFoundError(f"FileLister: there is no folder {shown(self.uri_base)}")
        return sorted(names if self.protocol == "file" else map(fs.unstrip_protocol, names))

    def _digest(self) -> str:
        return hashlib.sha256("\n".join(self._files).encode()).hexdigest()

    def next(self) -> dict[str, Any]:
        """Returns the next item; see `BaseNode.next`."""
        if self._index == len(self._files):
            raise StopIteration
        self._index += 1
        return {
            "data": self._files[self._index - 1],
            "metadata": {"fs_protocol": self.protocol, "source": self.protocol},
        }

    def get_state(self) -> dict[str, Any]:
        """Returns the position; see `BaseNode.get_state`."""
        return {
            self.CURRENT_IDX_KEY: self._index,
            self.NUM_FILES_KEY: len(self._files),
            self.DIGEST_KEY: self._digest(),
        }
