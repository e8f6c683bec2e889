"""Helper functions for pipes and their users."""

from torchdata._publishing import publish
from torchdata.datapipes._pipe.skipping import TooManySkipped
from torchdata.datapipes.utils._drawing import to_graph
from torchdata.datapipes.utils._streams import StreamWrapper, janitor
from torchdata.datapipes.utils.pinning import pin_memory_fn

__all__ = ["StreamWrapper", "TooManySkipped", "janitor", "pin_memory_fn", "to_graph"]

publish(globals(), TooManySkipped)
