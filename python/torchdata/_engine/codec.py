"""The part of the item codec that needs Python: pickling what has no encoding of its own.

Role: called by the extension (rust/py/src/codec) for the slow cases. Runs in whichever process sends or receives.
"""

from __future__ import annotations

import copyreg
import functools
import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable
from typing import Any

from torchdata._engine.tensors import Departing, Span, arriving, tensor_pickler
from torchdata.datapipes.datapipe import DataChunk

__all__ = ["DataChunk", "has_own_reducer", "loads", "pickled_parts"]


#: What a pickle begins with that refers to tensors laid out behind it. No pickle begins so by itself.
_WITH_TENSORS = b"T"


def pickled_parts(obj: Any) -> tuple[bytes, list[memoryview], list[Span]]:
    """Pickles `obj` with its large buffers out of band; what pickle cannot, cloudpickle does by value.

    Returns the pickle, the buffers, and where the tensors in `obj` lie.
    """
    try:
        return _dumps_by(pickle.Pickler, obj)
    except Exception:
        import cloudpickle

        return _dumps_by(cloudpickle.Pickler, obj)


#: The reducers of multiprocessing's pickler as they were looked through last, and those of them that are users'.
_looked_through: tuple[dict[type, Any], dict[type, Any]] = ({}, {})


def _users_reducers() -> dict[type, Callable[[Any], Any]]:
    """The reducers that users registered with the pickler of multiprocessing, which torch.multiprocessing uses, too.

    Those that the two registered themselves are left out: they send descriptors and handles by other ways.
    """
    global _looked_through
    reduction = sys.modules.get("multiprocessing.reduction")
    if reduction is None:
        return {}
    found: dict[type, Callable[[Any], Any]] = reduction.ForkingPickler._extra_reducers
    # Torch registers 70 of them, and an object that is pickled may be as small as a seed: comparing costs a hundredth.
    seen, users = _looked_through
    if seen != found:
        libraries = ("multiprocessing", "torch")
        users = {
            cls: reduce
            for cls, reduce in found.items()
            if (getattr(reduce, "__module__", None) or "").partition(".")[0] not in libraries
        }
        _looked_through = (dict(found), users)
    return users


def has_own_reducer(cls: type) -> bool:
    """Whether users said how objects of exactly this type are to be pickled."""
    return cls in copyreg.dispatch_table or cls in _users_reducers()


def _dumps_by(base: Any, obj: Any) -> tuple[bytes, list[memoryview], list[Span]]:
    try:
        return _dumps(base, obj, out_of_band=True)
    except BufferError:  # a buffer that is not contiguous cannot travel as it is
        return _dumps(base, obj, out_of_band=False)


def _dumps(base: Any, obj: Any, out_of_band: bool) -> tuple[bytes, list[memoryview], list[Span]]:
    torch = sys.modules.get("torch")
    if torch is None:
        return *_dump(base, obj, out_of_band), []
    tensors = Departing()
    pickled, buffers = _dump(functools.partial(tensor_pickler(base), tensors), obj, out_of_band)
    if not tensors.places:
        return pickled, buffers, []
    with torch._C.DisableTorchFunctionSubclass():
        places, blocks, spans = tensors.lay_out()
    return _WITH_TENSORS + pickle.dumps((len(blocks), places), 5) + pickled, buffers + blocks, spans


def _dump(pickler: Any, obj: Any, out_of_band: bool) -> tuple[bytes, list[memoryview]]:
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    pickling = pickler(file, protocol=5, buffer_callback=buffers.append if out_of_band else None)
    reducers = _users_reducers()
    if reducers:
        pickling.dispatch_table = ChainMap(
            reducers, getattr(pickling, "dispatch_table", copyreg.dispatch_table)
        )
    pickling.dump(obj)
    return file.getvalue(), [buffer.raw() for buffer in buffers]


def loads(pickled: bytes, buffers: list[Any]) -> Any:
    """The counterpart of `pickled_parts`."""
    if memoryview(pickled)[:1] != _WITH_TENSORS:
        return pickle.loads(pickled, buffers=buffers)
    file = io.BytesIO(pickled)
    file.seek(len(_WITH_TENSORS))
    count, places = pickle.load(file)
    with arriving(places, buffers[len(buffers) - count :]):
        return pickle.Unpickler(file, buffers=buffers).load()
