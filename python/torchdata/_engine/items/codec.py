"""Pickles the objects that the Rust encoder cannot encode.

The extension module (rust/py/src/codec) calls this module in the process that sends or receives an item.
"""

from __future__ import annotations

import inspect
import io
import pickle
import sys
from typing import Any

from torchdata._engine.items.reducers import Tables, program_table
from torchdata._engine.items.reducers import has_own_reducer as has_own_reducer  # used by the Rust extension
from torchdata._engine.items.tensors import Span, arriving
from torchdata._handlers import FailuresSuppressed, is_of_handler
from torchdata._reporting import add_note, attributes_of
from torchdata.datapipes.datapipe import DataChunk as DataChunk

#: The name of the attribute that marks exceptions that were raised while an item was pickled.
UNSENT = "_torchdata_unsent"


#: The first byte of each pickle that refers to tensors.
_WITH_TENSORS = b"T"

#: The descriptor that sets a pickler's `dispatch_table`. An assignment to `pickler.dispatch_table` would be ignored if
#: a subclass of `Pickler` defines an attribute with this name.
_TABLE: Any = vars(pickle.Pickler)["dispatch_table"]

_tables = Tables()


def pickled_parts(obj: Any) -> tuple[bytes, list[memoryview], list[Span]]:
    """Objects that the standard pickler does not support are pickled by cloudpickle."""
    with FailuresSuppressed():
        return dumps_by(pickle.Pickler, obj)
    from torchdata._by_value import ByValuePickler

    try:
        return dumps_by(ByValuePickler, obj)
    except Exception as error:
        if not is_of_handler(error):
            attributes_of(error)[UNSENT] = True
            add_note(error, _why_unsendable(obj))
        raise


def _why_unsendable(obj: Any) -> str:
    remedy = "yield what can be pickled, and open files, locks and connections in the process that uses them"
    if inspect.isgenerator(obj):
        remedy = "return a list, or, with pipes, pass the function to `.flatmap(fn)` instead of `.map(fn)`"
    kind = type(obj).__qualname__
    return f"This exception was raised while a value of type {kind} was pickled for another process: {remedy}."


#: In a pickled program, each `bytes` object of at least `_LEAST_BYTES` bytes becomes a separate buffer, because a
#: pickler passes such an object to `write` without a copy.
_LEAST_BYTES = 64 << 10


class _ProgramFile:
    """A file that receives a pickle, and moves large `bytes` objects out of the pickle into the list `buffers`.

    Pickle itself never moves `bytes` objects to separate buffers, and ignores reducers for `bytes`. A pickler passes
    each large `bytes` object to `write` in a separate call, after a call with the object's opcode and length. This
    class appends each large `bytes` object to `buffers`, and replaces the object's opcode and length by the opcode
    `NEXT_BUFFER`.
    """

    def __init__(self, buffers: list[Any]) -> None:
        self._buffers = buffers
        self._parts: list[bytes] = []

    def write(self, part: Any) -> None:
        if type(part) is bytes and len(part) >= _LEAST_BYTES and self._parts and not _is_frame(part):
            opcode, size = (pickle.BINBYTES, 4) if len(part) < 1 << 32 else (pickle.BINBYTES8, 8)
            header = opcode + len(part).to_bytes(size, "little")
            if self._parts[-1].endswith(header):
                self._parts[-1] = self._parts[-1][: -len(header)] + pickle.NEXT_BUFFER
                self._buffers.append(part)
                return
        self._parts.append(bytes(part))

    def getvalue(self) -> bytes:
        return b"".join(self._parts)


def _is_frame(part: bytes) -> bool:
    return part[:1] == pickle.FRAME and int.from_bytes(part[1:9], "little") <= len(part)


class SharedMemoryHeld(Exception):
    """Raised if an object that was to be pickled contains tensors in shared memory."""


def dumps_by(base: Any, obj: Any, least: int = 0, copies_shared: bool = True) -> tuple[bytes, list[Any], list[Span]]:
    """Pickles `obj` with a pickler of the class `base`.

    Args:
        least: the minimum size in bytes of a buffer that is moved out of the pickle; 0 (the default) for all buffers.
            The memory of tensors is always moved out of the pickle.
        copies_shared: whether to copy tensors in shared memory; if not, such a tensor raises SharedMemoryHeld.
    """
    try:
        return _dumps(base, obj, least, copies_shared)
    except BufferError:  # an array has gaps between its elements
        return _dumps(base, obj, None, copies_shared)


def _dumps(
    base: Any, obj: Any, least: int | None, copies_shared: bool
) -> tuple[bytes, list[bytes | memoryview], list[Span]]:
    buffers: list[Any] = []
    file = _ProgramFile(buffers) if least else io.BytesIO()

    def stays(buffer: pickle.PickleBuffer) -> bool:
        is_small = least is not None and len(buffer.raw()) < least
        if not is_small:
            buffers.append(buffer)
        return is_small

    callback = stays if least else buffers.append
    pickling = base(file, protocol=5, buffer_callback=None if least is None else callback)
    table = _tables.take(pickling) if not least else program_table(pickling)
    _TABLE.__set__(pickling, table)
    pickling.dump(obj)
    pickled, parts = file.getvalue(), [one if type(one) is bytes else one.raw() for one in buffers]
    spans: list[Span] = []
    if table.tensors.locations:
        with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
            if not copies_shared and table.tensors.hold_shared_memory():
                raise SharedMemoryHeld
            locations, blocks, spans = table.tensors.lay_out()
        table.tensors.locations = []
        pickled = _WITH_TENSORS + pickle.dumps((len(blocks), locations), 5) + pickled
        parts += blocks
    _tables.give_back(table)
    return pickled, parts, spans


def refers_to_tensors(pickled: bytes | memoryview) -> bool:
    return bool(memoryview(pickled)[:1] == _WITH_TENSORS)


def loads(pickled: bytes | memoryview, buffers: list[Any]) -> Any:
    if not refers_to_tensors(pickled):
        return pickle.loads(pickled, buffers=buffers)
    file = io.BytesIO(pickled)
    file.seek(len(_WITH_TENSORS))
    count, locations = pickle.load(file)
    with arriving(locations, buffers[len(buffers) - count :]):
        return pickle.Unpickler(file, buffers=buffers).load()
