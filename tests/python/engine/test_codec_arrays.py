"""Received arrays of every layout and dtype equal the sent arrays. Arrays are sent without pickle if possible."""

from collections import namedtuple

import numpy as np
import pytest

from loopback import Loopback
from torchdata import _engine
from torchdata._engine.items import codec

Pair = namedtuple("Pair", "image label")

LAYOUTS = {
    "flipped from left to right": lambda a: a[:, ::-1],
    "upside down": lambda a: a[::-1],
    "turned by half": lambda a: a[::-1, ::-1],
    "channels reversed": lambda a: a[..., ::-1],
    "everything reversed": lambda a: a[::-1, ::-1, ::-1],
    "cropped": lambda a: a[5:-5, 3:-8],
    "cropped and flipped": lambda a: a[5:-5, -8:3:-1],
    "channels first": lambda a: a.transpose(2, 0, 1),
    "channels first, cropped, flipped": lambda a: a.transpose(2, 0, 1)[:, 4:, ::-1],
    "two channels": lambda a: a[..., :2],
    "one channel": lambda a: a[..., 1],
    "every third pixel": lambda a: a[::3, ::3],
    "transposed": lambda a: a.T,
    "broadcast": lambda a: np.broadcast_to(a[0], (9, *a.shape[1:])),
    "with axes of one": lambda a: a[None, :, None, ::-1],
    "with no elements": lambda a: a[:, 5:5, ::-1],
    "windows": lambda a: np.lib.stride_tricks.sliding_window_view(a[:20, :20], (5, 5), (0, 1)),
}
DTYPES = ["?", "u1", "i2", "f2", "f4", "f8", "c8", "c16", "g", "G", "M8[us]", "m8[3h]"]


def image(dtype, height=40, width=50):
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3))
    return values.astype("m8").astype(dtype) if dtype[0] == "m" else values.astype(dtype)


def assert_equal_and_apart(received, sent):
    assert type(received) is np.ndarray
    assert (received.dtype, received.shape) == (sent.dtype, sent.shape)
    np.testing.assert_array_equal(received, sent)
    assert received.flags.writeable
    assert not np.shares_memory(received, sent)
    if received.size > 0:
        assert all(stride > 0 for stride, size in zip(received.strides, received.shape, strict=True) if size > 1)
        low, high = np.lib.array_utils.byte_bounds(received)
        assert high - low == received.nbytes


@pytest.fixture
def without_pickle(monkeypatch):
    def refuse(*_):
        raise AssertionError("the item was pickled")

    monkeypatch.setattr(codec, "_dumps", refuse)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_every_layout_cross_without_pickle(loopback, without_pickle, dtype):
    large, small = image(dtype), image(dtype, 25, 21)
    for layout in LAYOUTS.values():
        for sent in (layout(large), layout(small)):
            assert_equal_and_apart(loopback.one(sent), sent)
            assert_equal_and_apart(loopback.one({"x": [sent]})["x"][0], sent)


def test_arrays_keep_the_order_of_their_axes_in_memory(loopback):
    volume = np.arange(20 * 30 * 40.0).reshape(20, 30, 40)
    for axes in [(0, 1, 2), (2, 1, 0), (2, 0, 1), (1, 0, 2), (0, 2, 1)]:
        received = loopback.one(volume.transpose(axes))
        assert received.strides == volume.transpose(axes).strides
        cropped = loopback.one(volume[1:, 2:-3, ::-1].transpose(axes))
        assert np.argsort(cropped.strides).tolist() == np.argsort(volume.transpose(axes).strides).tolist()


@pytest.mark.parametrize("kind", ["M8", "m8"])
def test_times_of_every_unit_cross_without_pickle(loopback, without_pickle, kind):
    units = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"]
    for unit in (step + unit for unit in units for step in ("", "25")):
        sent = np.arange(2000).astype(f"{kind}[{unit}]")
        sent[3] = "NaT"
        for times in (sent, sent[:7], sent[::-1], sent[5], sent[3], sent[:4].reshape(2, 2).T):
            received = loopback.one([times])[0]
            assert type(received) is type(times)
            assert received.dtype == times.dtype
            np.testing.assert_array_equal(received, times)


def test_times_of_the_other_byte_order_arrive(loopback):
    sent = np.arange(3000).astype(">M8[s]")
    received = loopback.one(sent)
    assert np.datetime_data(received.dtype) == ("s", 1)  # NumPy's pickles do not preserve the byte order of this dtype.
    np.testing.assert_array_equal(received, sent)


def test_numbers_of_long_double_have_the_size_that_numpy_reports(loopback, without_pickle, monkeypatch):
    for code in "gG":
        for count in (1, 3, 5000):
            sent = np.arange(count).astype(code) / 3
            received = loopback.one(sent)
            assert received.nbytes == count * np.dtype(code).itemsize
            np.testing.assert_array_equal(received, sent)
        assert loopback.one([sent[1]])[0] == sent[1]
        loopback.sender.start_epoch(99)
        made = loopback.sender.allocate([5000], np.dtype(code).num)
        assert made.nbytes == 5000 * np.dtype(code).itemsize


@pytest.mark.parametrize("dtype", ["u1", "f8", "M8[s]"])
def test_arrays_of_every_layout_in_pickled_objects_are_sent_outside_the_pickle(loopback, dtype):
    whole = image("i8" if dtype == "M8[s]" else dtype).astype(dtype)
    for layout in LAYOUTS.values():
        sent = layout(whole)
        received = loopback.one(Pair(sent, 3))
        assert type(received) is Pair
        assert_equal_and_apart(received.image, sent)
        pickled, buffers, _ = codec.pickled_parts(Pair(sent, 3))
        assert sum(map(len, buffers)) == sent.nbytes
        assert len(pickled) < 1000


def test_torchdata_empty_returns_a_plain_array_outside_of_workers():
    import torchdata

    assert _engine.current_sender is None
    assert torchdata.empty(3).base is None
    assert torchdata.empty((2, 2), "int8").dtype == np.int8


@pytest.mark.parametrize("dtype", ["?", "i4", "f8", "c8", "M8[us]", "m8[3h]"])
@pytest.mark.parametrize("size", [0, 3, 30_000])
def test_the_metadata_of_a_dtype_are_received(loopback: Loopback, dtype: str, size: int) -> None:
    marked = np.dtype(dtype, metadata={"unit": "m", "scale": (2, [3])})
    array = np.zeros(size, dtype).astype(marked)
    for sent in (array, {"a": [array, array.reshape(1, -1).T]}, np.zeros((4, max(size, 1)), marked)[::2]):
        received = loopback.one(sent)
        inner = received if isinstance(received, np.ndarray) else received["a"][1]
        assert dict(inner.dtype.metadata) == {"unit": "m", "scale": (2, [3])}
        np.testing.assert_array_equal(inner, sent if isinstance(sent, np.ndarray) else sent["a"][1])
    assert loopback.one(np.zeros(size, dtype)).dtype.metadata is None
