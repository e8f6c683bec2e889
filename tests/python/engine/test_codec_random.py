"""Random items of all kinds are received unchanged. Several references to one object still refer to one object."""

import dataclasses
import datetime
import functools
import uuid
from collections import namedtuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopback import Loopback
from torchdata.datapipes import DataChunk

LONG_STRING = 64
"""Strings from this length on stay one object; shorter ones are values."""


@dataclasses.dataclass(eq=False)
class Sample:
    first: object
    second: object


Pair = namedtuple("Pair", "x y")


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value

    def __reduce__(self):
        return Slotted, (self.value,)


@functools.cache
def whole(dtype, size):
    numbers = np.random.default_rng(1).integers(-3, 300, (size, size, 3))
    if dtype == "O":
        return numpy_objects(size)
    if dtype[0] in "mM":
        times = numbers.astype("m8").astype(dtype.replace("M8", "m8")).astype(dtype.replace("M8", "m8"))
        times.reshape(-1)[::7] = "NaT"
        return times.view(dtype)
    return numbers.astype(dtype)


def numpy_objects(size):
    values = np.empty((size, size, 3), dtype=object)
    values.reshape(-1)[:] = [None, 1, "two", 3.0] * (size * size * 3 // 4) + [None] * (size * size * 3 % 4)
    return values


VIEWS = [
    lambda a: a,
    lambda a: a[:, ::-1],
    lambda a: a[::-1, ::-1, ::-1],
    lambda a: a[1:-1, 2:],
    lambda a: a[::3, 1::2, :2],
    lambda a: a.T,
    lambda a: a.transpose(2, 0, 1),
    lambda a: a.transpose(1, 2, 0)[::-1],
    lambda a: a[..., 1],
    lambda a: a[..., ::-1],
    lambda a: a[:0],
    lambda a: a[2:3, :, None],
    lambda a: a[1, 1, 1, ...],
    lambda a: np.broadcast_to(a[0], (4, *a.shape[1:])),
    lambda a: a.copy(order="F"),
    lambda a: a.copy()[::-1],
]
DTYPES = ["?", "u1", "i2", "i4", "f2", "f4", "f8", "c8", "g", "M8[s]", "M8[25us]", "m8[D]", "m8", ">i4", "S3", "O"]

arrays = st.builds(
    lambda dtype, size, view: VIEWS[view](whole(dtype, size)),
    st.sampled_from(DTYPES),
    st.sampled_from([4, 7, 75]),
    st.integers(0, len(VIEWS) - 1),
)
LENGTHS = [0, 1, 3, 63, 64, 65, 1000, 8191, 8192, 20_000]
strings = st.builds(
    lambda text, length: (text * length)[:length], st.sampled_from("xäü😀\udcff"), st.sampled_from(LENGTHS)
)
blobs = st.builds(lambda byte, length: byte * length, st.sampled_from([b"x", b"\0"]), st.sampled_from(LENGTHS))
scalars = st.sampled_from([np.float32(1.5), np.int8(3), np.datetime64("2020-01-01"), np.timedelta64("NaT", "ns")])
moments = st.datetimes() | st.datetimes(timezones=st.just(datetime.UTC)) | st.dates() | st.timedeltas() | st.uuids()
leaves = (
    st.none()
    | st.booleans()
    | st.complex_numbers(allow_nan=False)
    | st.integers()
    | st.floats(allow_nan=False)
    | strings
    | blobs
    | arrays
    | scalars
    | moments
)


def combined(inner):
    return (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=4)
        | st.lists(inner, max_size=3).map(DataChunk)
        | st.builds(Sample, inner, inner)
        | st.builds(Pair, inner, inner)
        | st.builds(Slotted, inner)
    )


trees = st.recursive(leaves, combined, max_leaves=8)


@st.composite
def items(draw):
    pool = draw(st.lists(trees, min_size=1, max_size=4))
    again = st.recursive(st.sampled_from(pool) | leaves, combined, max_leaves=10)
    return draw(again)


class Comparison:
    def __init__(self):
        self.arrived = {}
        self.kept = []

    def check(self, sent, received):
        assert type(sent) is type(received)
        if self.has_identity(sent):
            known = self.arrived.setdefault(id(sent), received)
            assert known is received, f"one object arrived as two: {sent!r:.200}"
            self.kept.append(sent)
        if isinstance(sent, np.ndarray):
            self.check_array(sent, received)
        elif isinstance(sent, (list, tuple)):
            assert len(sent) == len(received)
            for pair in zip(sent, received, strict=True):
                self.check(*pair)
        elif isinstance(sent, dict):
            assert list(sent) == list(received)
            for key in sent:
                self.check(sent[key], received[key])
        elif isinstance(sent, Sample):
            self.check(sent.first, received.first)
            self.check(sent.second, received.second)
        elif isinstance(sent, Slotted):
            self.check(sent.value, received.value)
        else:
            assert sent == received or (np.isnat(sent) and np.isnat(received))

    @staticmethod
    def has_identity(value):
        """Returns whether two references to `value` must still refer to one object after `value` was sent."""
        if isinstance(value, (str, bytes)):
            return len(value) >= LONG_STRING
        if isinstance(value, tuple):
            return len(value) > 0
        return isinstance(
            value, (list, dict, np.ndarray, Sample, Slotted, datetime.date, datetime.timedelta, uuid.UUID)
        )

    @staticmethod
    def check_array(sent, received):
        # NumPy may convert an array with non-native byte order to native byte order when it unpickles the array.
        assert (sent.dtype.newbyteorder("="), sent.shape) == (received.dtype.newbyteorder("="), received.shape)
        np.testing.assert_array_equal(received, sent)
        assert not np.shares_memory(sent, received)

    def check_apart(self):
        found = [one for one in self.arrived.values() if isinstance(one, np.ndarray)]
        for number, one in enumerate(found):
            for other in found[:number]:
                assert not np.shares_memory(one, other)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(sent=items(), budget=st.sampled_from([64 << 20, 64 << 20, 40_000]))
@pytest.mark.filterwarnings("ignore:The 'generic' unit")  # NumPy 2.5 warns that these units are deprecated
def test_random_items_are_received_unchanged(sent, budget):
    received = Loopback(budget=budget).one(sent)
    comparison = Comparison()
    comparison.check(sent, received)
    comparison.check_apart()
