"""Gives damaged input (see `fuzz_files`) to readers of archives, compressed files, TFRecords, caches and images."""

import bz2
import gzip
import io
import lzma
import os
import random
import struct
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fuzz_files import Target, mutated
from torchdata.datapipes import iter as pipes
from torchdata.datapipes.iter.disk_cache.lists import dumped
from torchdata.datapipes.utils.decoder import basichandlers, imagehandler

#: The exceptions that readers may raise. `zipfile` raises RuntimeError for encrypted members.
PROMISED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    OSError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    NotImplementedError,
    RuntimeError,
)

_MOST_READ = 8 << 20


def _check_text(message: str, what: str) -> None:
    assert what in message, message


def _read_all(pairs: Iterable[tuple[str, Any]], folder: str | None = None) -> None:
    left = _MOST_READ
    try:
        for path, stream in pairs:
            if folder is not None:
                assert path == os.path.normpath(path), path
                assert path.startswith(folder), path
                assert "\0" not in path
            while left > 0 and (data := stream.read(1 << 16)):
                left -= len(data)
            stream.close()
            if left <= 0:
                return
    except RecursionError as error:
        raise AssertionError("a RecursionError came through") from error
    except PROMISED:
        pass


_NAMES = ["a.txt", "../x", "/etc/passwd", "..", ".", "a/../../b", "", "\n", "a\0b", "grün", "x" * 120, "a//b", "C:\\x"]


def _pax_records(rng: random.Random) -> bytes:
    records = []
    for _ in range(rng.choice((1, 2, 3, 50))):
        key = rng.choice(
            (b"path", b"size", b"linkpath", b"hdrcharset", b"GNU.sparse.map", b"GNU.sparse.size", b"mtime")
        )
        if rng.random() < 0.2:
            key = rng.choice(
                (b"GNU.sparse.major", b"GNU.sparse.minor", b"GNU.sparse.realsize", b"GNU.sparse.name", b"x")
            )
        value = rng.choice(
            (b"1", b"-1", b"0,5,9", b"a/b", b"../x", b"9" * 30, b"BINARY", b"\xff\n", b"", b"1e999", b"nan")
        )
        body = b" " + key + b"=" + value + b"\n"
        length = len(body) + 1
        length += len(str(length)) - 1
        length += len(str(length)) + len(body) - length
        if rng.random() < 0.1:
            length += rng.choice((-5, -1, 1, 100, 10**9))
        records.append(b"%d" % length + body)
    data = b"".join(records)
    if rng.random() < 0.1:
        data = rng.choice((b"1" * 9000, b"5 ab\n" * 2000 + b"=", b"1" * 4000 + b" hdrcharset=\n"))
    return data


def tar_bytes(rng: random.Random) -> bytes:
    out = io.BytesIO()
    for _ in range(rng.randint(1, 6)):
        info = tarfile.TarInfo(rng.choice(_NAMES)[:99])
        info.type = rng.choice((b"0", b"0", b"0", b"L", b"K", b"x", b"g", b"X", b"S", b"2", b"5", b"7", b"D", b"\xff"))
        body = b"content " * rng.randint(0, 90)
        if info.type in b"xgX":
            body = _pax_records(rng)
        info.size = len(body)
        if rng.random() < 0.15:
            info.size = rng.choice((0, 1 << 20, (1 << 20) + 1, 1 << 31, 8**11 - 1, 1 << 62))
        block = bytearray(info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
        if rng.random() < 0.1:
            block[124:136] = rng.choice((b"\xff" * 12, b"\x80" + b"\xff" * 11, b"-0000000001\0", b"\0" * 12))
        if info.type == b"S":
            block[386:482] = (b"%011o\0" % rng.choice((0, 5, 512, 8**11 - 1))) * 8
            block[482:483] = rng.choice((b"\0", b"\1"))
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        out.write(block)
        out.write(body + bytes(-len(body) % 512))
    if rng.random() < 0.7:
        out.write(bytes(1024))
    return out.getvalue()


def tar(rng: random.Random) -> None:
    data = tar_bytes(rng)
    if rng.random() < 0.5:
        data = mutated(rng, data)
    pack = rng.choice((bytes, bytes, gzip.compress, bz2.compress, lzma.compress))
    data = pack(data)
    if rng.random() < 0.2:
        data = mutated(rng, data)
    stream: Any = io.BytesIO(data)
    folder = rng.choice(("d/a.tar", "..", "../..", "/", "a.tar", "."))
    inside = os.path.normpath(folder)
    inside = "" if inside == "." else os.path.join(inside, "")
    mode = rng.choice(("r:*", "r|*", "r:*", "r|"))
    _read_all(pipes.TarArchiveLoader([(folder, stream)], mode=mode), inside)


def zip_bytes(rng: random.Random) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for _ in range(rng.randint(1, 5)):
            kind = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
            info = zipfile.ZipInfo(rng.choice(_NAMES).replace("\0", "") or "e")
            archive.writestr(info, b"content " * rng.randint(0, 90), kind)
    data = bytearray(out.getvalue())
    offset = data.find(b"PK\1\2")
    while offset >= 0 and rng.random() < 0.7:
        field, width = rng.choice(((20, 4), (24, 4), (42, 4), (28, 2), (30, 2), (8, 2), (10, 2), (16, 4)))
        value = rng.choice((0, 1, 30, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, rng.getrandbits(16))) % 256**width
        data[offset + field : offset + field + width] = value.to_bytes(width, "little")
        offset = data.find(b"PK\1\2", offset + 1)
    return bytes(data)


def zip_(rng: random.Random) -> None:
    data = zip_bytes(rng)
    if rng.random() < 0.6:
        data = mutated(rng, data)
    _read_all(pipes.ZipArchiveLoader([("d/a.zip", io.BytesIO(data))]), "d/a.zip/")


_RAR_SAMPLES = Path(__file__).parents[1] / "data" / "rar"


def rar(rng: random.Random) -> None:
    import rarfile

    data = mutated(rng, rng.choice(sorted(_RAR_SAMPLES.glob("*.rar"))).read_bytes())
    try:
        for path, stream in pipes.RarArchiveLoader([("d/a.rar", io.BytesIO(data))]):
            assert path.startswith("d/a.rar/"), path
            if stream.file_obj.raw.seeks_cheaply:  # an uncompressed member needs no external program
                stream.read(1 << 16)
            stream.close()
    except RecursionError as error:
        raise AssertionError("a RecursionError came through") from error
    except (rarfile.Error, OSError, EOFError) as error:
        _check_text(str(error) + "".join(getattr(error, "__notes__", [])), "RarArchiveLoader")


def compressed(rng: random.Random) -> None:
    content = rng.choice((b"", b"content " * 50, rng.randbytes(300), bytes(1 << 20)))
    kind = rng.choice(("gzip", "bz2", "lzma"))
    data = {"gzip": gzip.compress, "bz2": bz2.compress, "lzma": lzma.compress}[kind](content)
    data = mutated(rng, data)
    loaders = {"gzip": [], "bz2": [pipes.Bz2FileLoader], "lzma": [pipes.XzFileLoader]}[kind]
    loader = rng.choice([lambda pairs: pipes.Decompressor(pairs, file_type=kind), *loaders])
    _read_all(loader([("a", io.BytesIO(data))]))


def archive_in_stream(rng: random.Random) -> None:
    kind = rng.choice(("tar", "zip"))
    data = tar_bytes(rng) if kind == "tar" else zip_bytes(rng)
    if rng.random() < 0.5:
        data = mutated(rng, data)
    try:
        for _, archive in pipes.Decompressor([("a", io.BytesIO(data))], file_type=kind):
            names = archive.getnames() if kind == "tar" else archive.namelist()
            assert len(names) < 1000
            archive.close()
    except RecursionError as error:
        raise AssertionError("a RecursionError came through") from error
    except PROMISED:
        pass


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    low, value = value & 127, value >> 7
    return bytes([low | 128]) + _varint(value) if value else bytes([low])


def _example(rng: random.Random) -> bytes:
    def feature() -> bytes:
        values = [rng.choice((b"", b"x" * rng.randint(0, 40), rng.randbytes(8))) for _ in range(rng.randint(0, 5))]
        kind = rng.choice((1, 2, 3))
        return _field(kind, b"".join(_field(1, value) for value in values))

    def named(content: bytes) -> bytes:
        return _field(1, _field(1, rng.choice((b"a", b"b", b"\xff", b""))) + _field(2, content))

    context = b"".join(named(feature()) for _ in range(rng.randint(0, 3)))
    lists = b"".join(named(b"".join(_field(1, feature()) for _ in range(rng.randint(0, 3)))) for _ in range(2))
    return _field(1, context) + (_field(2, lists) if rng.random() < 0.5 else b"")


def tfrecords(rng: random.Random) -> None:
    file = b""
    for _ in range(rng.randint(1, 4)):
        record = _example(rng)
        if rng.random() < 0.4:
            record = mutated(rng, record)
        length = len(record) if rng.random() < 0.9 else rng.choice((0, 1, 1 << 27, 1 << 31, (1 << 64) - 1))
        file += struct.pack("<QI", length, 0) + record + bytes(4)
    if rng.random() < 0.5:
        file = mutated(rng, file)
    spec = rng.choice((None, None, {"a": ((-1,), None)}, {"a": ((2, -1), "int64"), "b": None}, {"a": ((), None)}))
    try:
        for example in pipes.TFRecordLoader([("f", io.BytesIO(file))], spec, verify_checksums=rng.random() < 0.1):
            assert isinstance(example, dict)
    except RecursionError as error:
        raise AssertionError("a RecursionError came through") from error
    except RuntimeError as error:
        _check_text(str(error), "'f'")


def _contents() -> dict[str, bytes]:
    from PIL import Image

    found = {"json": b'{"a": [1, 2.5, null, "x"], "b": {"c": 10000000000}}', "cls": b"12", "txt": "grün".encode()}
    for extension, kind in {"png": "png", "jpg": "jpeg", "ppm": "ppm"}.items():
        out = io.BytesIO()
        Image.effect_noise((9, 7), 50).convert("RGB").save(out, kind)
        found[extension] = out.getvalue()
    return found


def decoders(rng: random.Random) -> None:
    if not _CONTENTS:
        _CONTENTS.update(_contents())
    extension = rng.choice([*_CONTENTS])
    content = mutated(rng, _CONTENTS[extension])
    if extension == "json" and rng.random() < 0.3:
        content = rng.choice((b"[", b'{"a":', b"9" * 5000, b'"\\ud800')) * rng.choice((1, 3000))
    handlers = (basichandlers, imagehandler(rng.choice(("rgb8", "l", "pil"))))
    try:
        list(pipes.RoutedDecoder([(f"a.{extension}", content)], *handlers, allow_pickle=False))
    except Exception as error:
        from PIL import Image

        # If an image claims a huge size, Pillow raises its own error, and the pipe passes this error on.
        if not isinstance(error, (ValueError, OSError, Image.DecompressionBombError)):
            raise
        _check_text("".join(error.__notes__), f"RoutedDecoder was decoding 'a.{extension}'")


_CONTENTS: dict[str, bytes] = {}


def cache_list(rng: random.Random) -> None:
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # syncing files takes no time in this folder
    with tempfile.TemporaryDirectory(dir=memory) as above:
        folder = os.path.join(above, "cache")
        os.makedirs(os.path.join(folder, "sub"))
        targets = [
            "a",
            "sub/b",
            "link",
            "fifo",
            "out/c",
            "../c",
            "sub",
            "sub/../a",
            "",
            ".",
            "/etc/passwd",
            "a\nb",
            "c\\",
        ]
        for name in ("cache/a", "cache/sub/b", "c"):
            with open(os.path.join(above, name), "w"):
                pass
        os.symlink("../c", os.path.join(folder, "link"))
        os.symlink("..", os.path.join(folder, "out"))
        os.mkfifo(os.path.join(folder, "fifo"))
        chosen = [os.path.join(folder, target) for target in rng.choices(targets, k=rng.randint(0, 4))]
        data = dumped(chosen)
        data = mutated(rng, data) if rng.random() < 0.5 else data
        with open(os.path.join(folder, "item.torchdata_list"), "wb") as file:
            file.write(data)
        made = os.path.join(folder, "".join(rng.choices("ab\n\\./\udcff", k=rng.randint(1, 6))))

        def unpack(path: str) -> list[tuple[str, bytes]]:
            return [(made, b"made"), (os.path.join(folder, "more"), b"made")]

        pipe = pipes.IterableWrapper([os.path.join(folder, "item")]).on_disk_cache().flatmap(unpack).end_caching()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                paths = [*pipe, *pipe]
        except (RuntimeWarning, OSError, ValueError):  # the name is outside the folder, a folder, or reserved
            return
        root = os.path.realpath(folder)
        for path in paths:
            assert os.path.isfile(path), path
            assert not os.path.islink(path), path
            assert os.path.realpath(path).startswith(root + "/"), path


TARGETS: dict[str, Target] = {
    "cache list": cache_list,
    "tfrecords": tfrecords,
    "decoders": decoders,
    "tar": tar,
    "zip": zip_,
    "rar": rar,
    "compressed": compressed,
    "archive in stream": archive_in_stream,
}
