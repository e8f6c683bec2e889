"""Copies of a loader, by `copy` or pickle: loaders of their own, which have not begun.

Role: a base of `DataLoader2`, of which it is a part. Runs in whichever thread copies.

A copy has what the loader was made of and its seed; and, as long as the loader has not begun, the state that was
loaded. It shares nothing with the loader that either of them changes.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torchdata._observe.stats.recorder import Recorder
from torchdata.dataloader2._identity import Identity
from torchdata.dataloader2.graph.serialization import Snapshot

__all__ = ["Copying"]

#: What the loader was made of.
_MADE_OF = frozenset({"datapipe_adapter_fns", "_service", "_snapshot", "_graph_name"})
#: What a loaded state has put into it, and its generators.
_LOADED = frozenset(
    {
        "_is_seeded_since",
        "_initial_seed_generator",
        "_place",
        "_reset_seed",
        "_restored_randomness",
        "_saved_places",
        "_seed",
        "_seed_generator",
        "_state_dict",
        "reading_service_state",
    }
)
#: What it gets only as it runs.
_RUN = frozenset({"_is_seeded_since", "_left", "_names", "_reader_patience", "_warned"})


class Copying:
    """The part of a loader that is copied."""

    datapipe: Any
    reading_service: Any
    reading_service_state: bytes | None
    datapipe_adapter_fns: Any
    valid_iterator_id: int | None
    _identity: Identity
    _recorder: Recorder
    _seed: int | None
    _service: Snapshot
    _snapshot: Snapshot
    #: Names of attributes that every loader has; a subclass has others, which its copies have, too.
    _names: frozenset[str]

    if TYPE_CHECKING:  # what else it asks of the loader

        def _adapt_service(self, service: Any) -> Any: ...

        def _set_up(self) -> None: ...

        def _identified(self, snapshot: Snapshot) -> Identity: ...

    def __getstate__(self) -> dict[str, Any]:
        own, recorder = vars(self), self._recorder
        kept = {name: value for name, value in own.items() if name in _MADE_OF or name not in self._names | _RUN}
        if self.valid_iterator_id is None:
            kept.update((name, value) for name, value in own.items() if name in _LOADED)
        else:
            kept["_seed"] = self._seed
        return {**kept, "_recorder": ("full" if recorder.full else "counts", recorder.stall_warning)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = vars(self)
        own["_terminated"] = own["_ended"] = True  # until it is whole
        own.update({name: state[name] for name in _MADE_OF})
        self._recorder = Recorder(*state["_recorder"])
        self.reading_service = self._adapt_service(self._service.copy())
        self.reading_service_state = None
        self.datapipe = self._snapshot.copy()
        self._identity = self._identified(self._snapshot)
        self._set_up()
        for name, value in state.items():
            if name not in _MADE_OF and name != "_recorder":
                own[name] = copy.copy(value) if name.endswith("_generator") else value
