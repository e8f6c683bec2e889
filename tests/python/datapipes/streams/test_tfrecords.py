"""TFRecordLoader reads files that the `tfrecord` package has written, and records that protobuf has encoded."""

import gzip
import io
import os
import struct
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs import output_of
from refusals import refuses
from resuming import with_state
from stream_checks import check_restore
from torchdata.datapipes.iter import FileLister, IterableWrapper, TFRecordLoader
from torchdata.datapipes.state import save_state
from torchdata.datapipes.utils import StreamWrapper

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # protobuf warns about future versions
    pytest.importorskip("torch", reason="the library that writes TFRecords imports it")
    from tfrecord import TFRecordWriter, example_pb2

KINDS = {"bytes": "bytes_list", "float": "float_list", "int": "int64_list"}


def feature(kind: str, values: Any) -> Any:
    message = example_pb2.Feature()
    values_of = getattr(message, KINDS[kind])
    values_of.SetInParent()
    values_of.value.extend(values)
    return message


def record(context: dict[str, Any], lists: dict[str, Any] | None = None) -> bytes:
    example = example_pb2.SequenceExample()
    for name, it in context.items():
        example.context.feature[name].CopyFrom(feature(*it))
    for name, steps in (lists or {}).items():
        example.feature_lists.feature_list[name].SetInParent()
        for step in steps:
            example.feature_lists.feature_list[name].feature.add().CopyFrom(feature(*step))
    return example.SerializeToString()


def framed(*records: bytes) -> bytes:
    crc = TFRecordWriter.masked_crc
    lengths = [struct.pack("<Q", len(data)) for data in records]
    return b"".join(n + crc(n) + data + crc(data) for n, data in zip(lengths, records, strict=True))


def loaded(data: bytes, *args: Any, **options: Any) -> list[Any]:
    return list(TFRecordLoader([("file", io.BytesIO(data))], *args, **options))


def plain(item: Any) -> Any:
    if isinstance(item, dict):
        return {name: plain(value) for name, value in item.items()}
    if isinstance(item, list):
        return list(map(plain, item))
    return (str(item.dtype).removeprefix("torch."), item.tolist()) if hasattr(item, "dtype") else item


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("records")
    for number, count in enumerate([4, 0, 3]):
        writer = TFRecordWriter(str(root / f"{number}.tfrecord"))
        for i in range(count):
            image = os.urandom(700_000 if i == 1 else 10 * i)  # Two images are larger than one read of the reader.
            example = {
                "image": (image, "byte"),
                "size": ([1.5 * i, -2.0], "float"),
                "label": (i, "int"),
                "names": ([b"a", b""], "byte"),
            }
            steps = {"tokens": ([[1, 2], [-(2**62)]], "int"), "words": ([[b"x"], [b"y"]], "byte")}
            writer.write(example, steps if i % 2 else None)
        writer.close()
    return str(root)


def files(folder: str) -> Any:
    return FileLister(folder, "*.tfrecord").open_files(mode="b")


@pytest.mark.usefixtures("no_torch")
def test_examples_and_sequences_are_yielded_as_arrays_and_lists_of_bytes(folder: str) -> None:
    first, second, *others = files(folder).load_from_tfrecord()
    assert len(others) == 5
    assert {name: type(value) for name, value in first.items()} == {
        "image": list, "size": np.ndarray, "label": np.ndarray, "names": list,
    }  # fmt: skip
    assert plain(first) == {
        "image": [b""], "size": ("float32", [0.0, -2.0]), "label": ("int64", [0]), "names": [b"a", b""],
    }  # fmt: skip
    assert len(second["image"][0]) == 700_000
    assert plain(second["tokens"]) == [("int64", [1, 2]), ("int64", [-(2**62)])]
    assert second["words"] == [[b"x"], [b"y"]]
    first["size"] += 1  # the arrays of an example are writable


def test_with_torch_loaded_arrays_are_tensors(folder: str) -> None:
    torch = pytest.importorskip("torch")
    spec = {"size": ((2, 1), torch.float64), "label": ((), "int32"), "tokens": (None, None)}
    first, second = files(folder).load_from_tfrecord({name: spec[name] for name in ("size", "label")}).header(2)
    assert isinstance(first["size"], torch.Tensor)
    assert plain(second) == {"size": ("float64", [[1.5], [-2.0]]), "label": ("int32", 1)}
    _, second = files(folder).load_from_tfrecord().header(2)
    assert plain(second["tokens"]) == [("int64", [1, 2]), ("int64", [-(2**62)])]
    data = framed(record({"x": ("float", [0, 1.5])}, {"s": [("int", [1, 2]), ("int", [3, 4])]}))
    half = {"x": ((2, 1), torch.bfloat16), "s": ((4,), torch.float32)}
    assert plain(loaded(data, half)) == [{"x": ("bfloat16", [[0.0], [1.5]]), "s": ("float32", [1.0, 2.0, 3.0, 4.0])}]
    assert plain(loaded(data, {"s": ((-1,), None)})) == [{"s": ("int64", [1, 2, 3, 4])}]
    for spec, message in (({"x": ((3,), None)}, "Cannot reshape 2 values of feature 'x'"), ({"s": 5}, "pairs")):
        with pytest.raises((RuntimeError, TypeError), match=message):
            loaded(data, spec)


numbers = st.one_of(
    st.tuples(st.just("float"), st.lists(st.floats(width=32, allow_nan=False), max_size=9)),
    st.tuples(st.just("int"), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9)),
    st.tuples(st.just("bytes"), st.lists(st.binary(max_size=9), max_size=4)),
)
names = st.text(st.characters(codec="utf-8"), max_size=6)


def model(it: tuple[str, list[Any]]) -> Any:
    kind, values = it
    return {"float": ("float32", values), "int": ("int64", values), "bytes": values}[kind]


@pytest.mark.usefixtures("no_torch")
def test_every_example_that_protobuf_encodes_is_read() -> None:
    @given(st.dictionaries(names, numbers), st.dictionaries(names, st.lists(numbers, max_size=3), max_size=3))
    def check(context: dict[str, Any], lists: dict[str, Any]) -> None:
        lists = {name: steps for name, steps in lists.items() if name not in context}
        expected = {name: model(it) for name, it in context.items()}
        expected |= {name: list(map(model, steps)) for name, steps in lists.items()}
        data = framed(record(context, lists), record({}))
        assert plain(loaded(data)) == [expected, {}]
        wanted = dict.fromkeys(list(expected)[::2], (None, None))
        if wanted:
            found = plain(loaded(framed(record(context, lists)), wanted))
            assert found == [{name: expected[name] for name in wanted}]

    check()


SEQUENCE = record(
    {"f": ("float", [1.5, 2, 3, 4]), "b": ("bytes", [b"a", b"b"]), "one": ("bytes", [b"z"]), "none": ("bytes", [])},
    {
        "steps": [("int", [1, 2]), ("int", [3, 4])],
        "ragged": [("int", [1]), ("int", [2, 3])],
        "empty": [],
        "words": [("bytes", [b"p", b"q"]), ("bytes", [b"r"])],
        "f": [("int", [9])],
    },
)


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize(
    ("name", "shape", "dtype", "expected"),
    [
        ("f", (2, 2), np.float64, ("float64", [[1.5, 2], [3, 4]])),
        ("f", (2, -1), "int16", ("int16", [[1, 2], [3, 4]])),
        ("f", None, bool, ("bool", [True] * 4)),
        ("b", (2, 1), None, [[b"a"], [b"b"]]),
        ("b", (1, -1, 1), bytes, [[[b"a"], [b"b"]]]),
        ("one", (), None, b"z"),
        ("one", None, None, [b"z"]),
        ("none", (0,), None, []),
        ("none", (2, 0), None, [[], []]),
        ("steps", (4,), "float32", ("float32", [1, 2, 3, 4])),
        ("steps", None, np.int8, ("int8", [[1, 2], [3, 4]])),
        ("steps", None, None, [("int64", [1, 2]), ("int64", [3, 4])]),
        ("ragged", None, None, [("int64", [1]), ("int64", [2, 3])]),
        ("ragged", (3,), None, ("int64", [1, 2, 3])),
        ("empty", None, None, []),
        ("words", (3,), None, [b"p", b"q", b"r"]),
        ("words", None, None, [[b"p", b"q"], [b"r"]]),
    ],
)
def test_a_spec_determines_shape_and_type(name: str, shape: Any, dtype: Any, expected: Any) -> None:
    assert plain(loaded(framed(SEQUENCE), {name: (shape, dtype)})) == [{name: expected}]


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"f": ((3,), "float32")}, "Cannot reshape 4 values of feature 'f' into shape"),
        ({"b": ((), None)}, "Cannot reshape 2 values of feature 'b'"),
        ({"b": ((-1, 3), None)}, "Cannot reshape 2 values of feature 'b'"),
        ({"b": ((2,), "int64")}, "feature 'b' holds bytes"),
        ({"words": (None, "int64")}, "feature 'words' holds bytes"),
        ({"ragged": (None, "int64")}, r"'ragged' has steps of the lengths \[1, 2\]"),
        ({"empty": (None, "int64")}, "'empty' has no steps"),
        ({"f": (None, None), "lacking": (None, None)}, r"missing some required keys: \['lacking'\]"),
        (None, '"f" is contained in both its context and its feature lists'),
    ],
)
def test_a_record_that_does_not_fit_is_an_error_that_names_path_record_and_byte(spec: Any, message: str) -> None:
    fits = record({"f": ("float", [0] * 3), "b": ("bytes", [b""]), "lacking": ("int", [])})
    if spec is None or "f" not in spec or "lacking" in spec or spec["f"][0] == ():
        spec_first, data, location = spec, framed(SEQUENCE), "record 0 at byte 0"
    else:
        spec_first, data = spec, framed(fits, SEQUENCE)
        location = f"record 1 at byte {len(framed(fits))}"
    with pytest.raises(RuntimeError, match=f"TFRecordLoader: 'file', {location}: .*{message}"):
        loaded(data, spec_first)


def test_a_feature_without_a_list_raises_an_error() -> None:
    example = example_pb2.Example()
    example.features.feature["n"].SetInParent()
    with pytest.raises(RuntimeError, match=r"record 0 .*feature \"n\" does not contain a list"):
        loaded(framed(example.SerializeToString()))


ONE = framed(record({"x": ("int", [1])}))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (ONE[:10], "truncated: it ends after 10 of the record's 12 bytes"),
        (ONE[:8] + b"\0\0\0\0" + ONE[12:], "checksum of its length is wrong"),
        (ONE[:-6] + b"!" + ONE[-5:], "checksum of its data is wrong"),
        (b"no TFRecord file at all", "is not an .uncompressed. TFRecord file"),
        (gzip.compress(ONE, mtime=0), "is not an .uncompressed. TFRecord file"),
        (framed(b"\xff\xff"), "not a valid protocol buffer"),
        (framed(struct.pack("<Q", 2**40))[16:16] + struct.pack("<Q", 2**40), "truncated"),
        (struct.pack("<Q", 2**40) + TFRecordWriter.masked_crc(struct.pack("<Q", 2**40)), "max_length=134217728"),
    ],
)
def test_an_error_names_path_record_and_byte_of_damage(data: bytes, message: str) -> None:
    pipe = IterableWrapper([("whole", io.BytesIO(ONE)), ("damaged", io.BytesIO(ONE + data))]).load_from_tfrecord()
    items = iter(pipe)
    assert len([next(items), next(items)]) == 2
    with pytest.raises(RuntimeError, match=rf"'damaged', record 1 at byte {len(ONE)}: .*{message}"):
        next(items)
    assert len(list(TFRecordLoader([("file", io.BytesIO(ONE))]))) == 1


def test_a_length_that_promises_more_than_there_is_allocates_nothing() -> None:
    length = struct.pack("<Q", 2**31 - 1)
    script = (
        "import io, resource, sys\n"
        "from torchdata.datapipes.iter import TFRecordLoader\n"
        "data = bytes.fromhex(sys.argv[1])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    list(TFRecordLoader([('file', io.BytesIO(data))], verify_checksums=len(sys.argv) < 3, max_length=None))\n"
        "except RuntimeError as error:\n"
        "    assert 'truncated' in str(error), error\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    head = length + TFRecordWriter.masked_crc(length)
    for arguments in ([head.hex()], [(length + b"none").hex(), "unverified"]):
        assert int(output_of(script, *arguments)) < 64 << 10


def test_wrong_checksums_are_read_over_on_demand() -> None:
    data = ONE[:8] + b"\0\0\0\0" + ONE[12:-4] + b"\0\0\0\0"
    assert plain(loaded(data, verify_checksums=False)) == [{"x": ("int64", [1])}]


def test_records_in_memory_and_after_other_bytes_are_restored() -> None:
    data = framed(*(record({"x": ("int", [i])}) for i in range(4)))

    def build() -> Any:
        streams = [io.BytesIO(data), io.BytesIO(b"head" + data)]
        streams[1].seek(4)
        return IterableWrapper([("a", streams[0]), ("b", StreamWrapper(streams[1]))]).load_from_tfrecord()

    assert len(check_restore(build, keep=plain)) == 8


class OneWay:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, size: int) -> bytes:
        size = min(size, 100)
        piece, self.data = self.data[:size], self.data[size:]
        return piece


def test_streams_that_do_not_seek_are_restored_with_what_was_read_ahead() -> None:
    data = framed(*(record({"x": ("int", range(i))}) for i in range(20)))
    build = lambda: IterableWrapper([("s", OneWay(data))]).load_from_tfrecord()  # noqa: E731
    assert len(check_restore(build, keep=plain)) == 20


def test_a_state_resumes_at_the_damaged_record() -> None:
    data = ONE + ONE[:-1] + b"!"
    pipe = IterableWrapper([("file", io.BytesIO(data))]).load_from_tfrecord()
    items = iter(pipe)
    next(items)
    with pytest.raises(RuntimeError, match="record 1"):
        next(items)
    other = with_state(IterableWrapper([("file", io.BytesIO(data))]).load_from_tfrecord(), save_state(pipe))
    with pytest.raises(RuntimeError, match=f"record 1 at byte {len(ONE)}"):
        list(other)


test_items_that_are_no_binary_streams_are_type_errors = refuses(
    (
        lambda: list(TFRecordLoader([("file", io.StringIO("text"))])),
        TypeError,
        "'file'.*str instead of bytes.*binary mode",
    ),
    (lambda: list(TFRecordLoader([("file", b"bytes")])), TypeError, "binary stream"),
    (lambda: list(TFRecordLoader(["file"])), TypeError, "TFRecordLoader expects pairs"),
    (lambda: list(TFRecordLoader([(1, io.BytesIO())])), TypeError, "expects a str as path"),
)


test_wrong_options_are_refused_by_the_constructor = refuses(
    (lambda: TFRecordLoader([], 5), TypeError, "spec must be a dict"),
    (lambda: TFRecordLoader([], {"x": 5}), TypeError, "pairs .shape, dtype.*'x'"),
    (lambda: TFRecordLoader([], {5: (None, None)}), TypeError, "pairs"),
    (lambda: TFRecordLoader([], {"x": (3, None)}), ValueError, r"spec\['x'\] has the shape 3"),
    (lambda: TFRecordLoader([], {"x": ((1.5,), None)}), ValueError, "shape"),
    (lambda: TFRecordLoader([], {"x": ((-1, -1), None)}), ValueError, "at most one length may be -1"),
    (lambda: TFRecordLoader([], {"x": ((-2,), None)}), ValueError, "no length may be less"),
    (lambda: TFRecordLoader([], {"x": ((), "int65")}), ValueError, "dtype 'int65'"),
    (lambda: TFRecordLoader([], {"x": ((), str)}), ValueError, "dtype.*or None"),
    (lambda: TFRecordLoader([], length=-2), ValueError, "length"),
    (lambda: TFRecordLoader([], length=1.5), TypeError, "length"),
    (lambda: TFRecordLoader([], max_length=0), ValueError, "TFRecordLoader: max_length must be"),
    (lambda: TFRecordLoader([], max_length=True), TypeError, "TFRecordLoader: max_length must be"),
)


def test_a_record_longer_than_max_length_is_refused_before_it_is_read() -> None:
    short, long = record({"a": ("bytes", [b"x"])}), record({"a": ("bytes", [b"x" * 500])})
    assert len(loaded(framed(short, long), max_length=len(long))) == 2
    assert len(loaded(framed(short, long), max_length=None)) == 2
    items = iter(TFRecordLoader([("file", io.BytesIO(framed(short, long)))], max_length=len(long) - 1))
    next(items)
    message = rf"TFRecordLoader: 'file', record 1 at byte \d+: its length of {len(long)} bytes is more than max_length="
    with pytest.raises(RuntimeError, match=message):
        next(items)
