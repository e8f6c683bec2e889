"""Nodes that list and read files. These nodes need fsspec."""

from __future__ import annotations

from torchdata.nodes.io.file_list import FileLister
from torchdata.nodes.io.file_read import FileReader

__all__ = ["FileLister", "FileReader"]
