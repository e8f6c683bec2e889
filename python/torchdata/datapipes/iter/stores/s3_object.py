"""An S3 object as a file, which is read by range requests."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from torchdata._handlers import FailuresSuppressed
from torchdata._redacting import shown
from torchdata.datapipes.iter.stores.remote_file import ObjectRecipe, RemoteFile
from torchdata.datapipes.iter.stores.s3_client import S3Error, S3Settings, explaining_s3, keep_inherited, split_url

DEFAULT_BUFFER_SIZE = 16 << 20
#: Size in bytes of each request if several parallel requests fetch one piece of an object. The first request for an
#: object fetches at most `PART_SIZE` bytes, too.
PART_SIZE = 4 << 20
#: The number of bytes of the first request after a seek. Each further request for consecutive bytes is twice the size
#: of the previous request.
AFTER_SEEK = 256 << 10
MOST_PARALLEL = 8

_NOTHING = memoryview(b"")


@dataclass(frozen=True, repr=False)
class S3Recipe(ObjectRecipe):
    """Describes how to open an object. The field `version` contains the object's ETag.

    Args:
        buffer_size: the maximum number of bytes per piece.
        parallel: whether a piece of more than `PART_SIZE` bytes is fetched by several concurrent requests.
    """

    settings: S3Settings
    buffer_size: int
    parallel: bool

    def file(self) -> S3Object:
        return S3Object(self)

    def get(self, start: int, size: int) -> Any:
        bucket, key = split_url(self.settings.pipe, self.url, needs_key=True)
        obstore, store = self.settings.connect(bucket, self.url)
        with explaining_s3(self.settings, "read", self.url):
            options: dict[str, Any] = {"range": (start, start + size)}
            if self.version is not None and self.version[0] is not None:
                options["if_match"] = self.version[0]
            try:
                return obstore.get(store, key, options=options)
            except Exception as error:
                # For an empty object, the server answers a range request with status 416, which is not an error here.
                if start or " 416 " not in str(error) or obstore.head(store, key)["size"]:
                    raise
                return None

    def fetch(self, start: int, size: int) -> Any:
        answer = self.get(start, size)
        with explaining_s3(self.settings, "read", self.url):
            return answer.bytes() if answer is not None else b""


class S3Object(RemoteFile[S3Recipe]):
    """An object as a file. A read beyond the current piece requests a new piece."""

    def __init__(self, recipe: S3Recipe) -> None:
        self._piece, self._start, self._end = _NOTHING, 0, 0
        self._ahead = min(recipe.buffer_size, PART_SIZE)
        super().__init__(recipe)

    def _opened(self, recipe: S3Recipe) -> S3Recipe:
        self._answer = recipe.get(0, self._ahead)
        version: tuple[str | None, int] = (None, 0)
        if self._answer is not None:
            version = (self._answer.meta["e_tag"], self._answer.meta["size"])
        return replace(recipe, version=version)

    def drop_answer(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and self._pid != os.getpid():
            keep_inherited(answer)

    def close(self) -> None:
        super().close()
        self._piece = _NOTHING

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        found = self._here(len(target))
        count = min(len(found), len(target))
        target[:count] = found[:count]
        self._position += count
        return count

    def readall(self) -> bytes:
        pieces = []
        while len(piece := self._here(self._recipe.buffer_size)):
            self._position += len(piece)
            pieces.append(piece)
        return b"".join(pieces)

    def _here(self, wanted: int) -> memoryview:
        """Returns the bytes of the current piece from the current position on. If the piece is used up, requests the
        next piece of the S3 object. At the end of the S3 object, the returned bytes are empty."""
        self._check_open()
        if self._position >= self.size:
            return _NOTHING
        if not self._start <= self._position < self._end:
            continues = self._position == self._end
            # The old piece is freed before the next piece is requested, so that only one piece is in memory.
            self._piece, self._start = _NOTHING, self._end
            self._piece = self._next_piece(wanted, continues)
            self._start, self._end = self._position, self._position + len(self._piece)
        return self._piece[self._position - self._start :]

    def _next_piece(self, wanted: int, continues: bool) -> memoryview:
        recipe, piece = self._recipe, _NOTHING
        if self._position == 0:
            piece = self._opening_piece()
        self.drop_answer()
        if not len(piece):
            if not continues:
                self._ahead = AFTER_SEEK
            size = min(max(self._ahead, wanted), recipe.buffer_size, self.size - self._position)
            piece = memoryview(self._fetched(self._position, size)).cast("B")
        if not len(piece):
            raise S3Error(
                f"{recipe.settings.pipe} cannot read {shown(recipe.url)}: the server sent nothing for the bytes from "
                f"{self._position} to {self.size}"
            )
        self._ahead = min(2 * max(self._ahead, len(piece)), recipe.buffer_size)
        return piece

    def _opening_piece(self) -> memoryview:
        """Returns the data of the first response; empty if the response was dropped or its connection broke."""
        answer, self._answer = self._answer, None
        if answer is None or self._pid != os.getpid():
            self._answer = answer
            return _NOTHING
        with FailuresSuppressed():
            return memoryview(answer.bytes()).cast("B")
        return _NOTHING

    def _fetched(self, start: int, size: int) -> Any:
        if not self._recipe.parallel or size <= PART_SIZE:
            return self._recipe.fetch(start, size)
        from concurrent.futures import ThreadPoolExecutor

        starts = range(start, start + size, PART_SIZE)
        sizes = [min(PART_SIZE, start + size - part) for part in starts]
        with ThreadPoolExecutor(min(len(starts), MOST_PARALLEL)) as pool:
            parts = list(pool.map(self._recipe.fetch, starts, sizes))
        if [len(part) for part in parts] != sizes:
            return parts[0]
        return b"".join(parts)
