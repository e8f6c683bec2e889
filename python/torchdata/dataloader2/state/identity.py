"""Compares a loader's pipeline with the pipeline that has saved a state, by their fingerprints and pickles."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from torchdata.dataloader2.graph.serialization import GraphTemplate
from torchdata.dataloader2.state.layout import checksum_of
from torchdata.dataloader2.state.position import Outline
from torchdata.datapipes._pipe.graph.fingerprint import Fingerprint, difference, fingerprint
from torchdata.datapipes._pipe.graph.traversal import is_pipe

#: A pickled pipe with more than `_LARGE` bytes is stored in a state only if the user requests it.
_LARGE = 1 << 20


class Identity:
    def __init__(self, snapshot: GraphTemplate, serialize: Callable[[GraphTemplate], bytes]) -> None:
        self._snapshot, self._serialize = snapshot, serialize
        self._fingerprint: Fingerprint | None = None
        self._in_words: str | None = None
        self._is_small: bool | None = None
        self._pickled: bytes | None = None
        self.checksum: int | None = None

    def note(self, datapipe: Any) -> None:
        """At the first call, stores the pipeline's fingerprint; the reading service must not have changed the graph
        yet."""
        if self._fingerprint is None and is_pipe(datapipe):
            self._fingerprint = fingerprint(datapipe)

    @property
    def outline(self) -> Outline:
        """The description of the pipeline in a state. The description contains no hash of the pickled pipe, because a
        hash would help to guess a password in the pipe.
        """
        if self._in_words is None:
            self._in_words = json.dumps(self._fingerprint, separators=(",", ":"))
        return Outline(self._in_words, 0 if self._pickled is None else len(self._pickled))

    def pickled(self, wanted: bool | None) -> bytes | None:
        """If `wanted` is None, returns the pickled pipe only if the pipe can be pickled and the pickle is small.

        Raises TypeError if `wanted` is True and the pipe cannot be pickled.
        """
        if wanted is None:
            if self._is_small is None:
                self._is_small = self._snapshot.fits(_LARGE)
            wanted = self._is_small
        if wanted and self._pickled is None:
            pickled = self._serialize(self._snapshot)
            self.checksum, self._pickled = checksum_of(pickled), pickled
        return self._pickled if wanted else None

    def compare(self, outline: Outline, *, between_epochs: bool) -> None:
        """Raises ValueError if a state belongs to another pipeline.

        `between_epochs` is true if the state was saved before the first item of an epoch was delivered.
        """
        if self._fingerprint is None:
            raise ValueError("this loader has no pipeline to compare with the pipeline of the state")
        other = difference(outline.fingerprint, self._fingerprint, "this loader", between_epochs=True)
        if other:
            raise ValueError(
                f"this state was saved from another pipeline: {other}. Build the same pipeline, or load the state with "
                "strict=False if the difference does not matter"
            )
        if not between_epochs:
            require_same_settings(outline, self._fingerprint)


def require_same_settings(outline: Outline, found: Fingerprint) -> None:
    """Raises ValueError if two pipelines differ only in settings that may change between epochs, but not within one."""
    saved = outline.fingerprint
    if not difference(saved, found, "this loader", between_epochs=True):
        other = difference(saved, found, "this loader")
        if other:
            raise ValueError(
                f"this state was saved inside an epoch, so the pipeline must not change: {other}. Load the state with "
                "the same value. Only a state that was saved between two epochs can be loaded with another value"
            )
