"""Implements the argument `length` of pipes over files, archives and stores."""

from __future__ import annotations

from torchdata.datapipes._pipe.checks import check_int


class DeclaredLength:
    """Defines the length of a pipe. `DeclaredLength` must precede IterDataPipe in the list of base classes."""

    def _set_length(self, length: int) -> None:
        #: The number of items; -1 if the user has not set it.
        self.length = check_int(type(self).__name__, "length", length, least=-1)

    def __len__(self) -> int:
        if self.length == -1:
            raise TypeError(f"{type(self).__name__} instance doesn't have valid length")
        return self.length
