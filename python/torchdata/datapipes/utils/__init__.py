"""Helpers for pipes and their users."""

from torchdata.datapipes.utils._drawing import to_graph
from torchdata.datapipes.utils._streams import StreamWrapper, janitor

__all__ = ["StreamWrapper", "janitor", "to_graph"]
