"""Received numbers, times and UUIDs have the same values, types, order and object identities as after pickling."""

import copyreg
import ctypes
import datetime
import math
import os
import pickle
import random
import re
import struct
import uuid
import zoneinfo
from pathlib import Path

import pytest

from loopback import Loopback
from torchdata.datapipes import DataChunk

PORTABLE = os.environ.get("TORCHDATA_PORTABLE") == "1"
UTC = datetime.UTC
EDGES = sorted(
    sign * (1 << bits) + near
    for bits in (0, 7, 31, 53, 62, 63, 64, 65, 127, 128, 1022, 1023, 1024, 1025, 5000)
    for sign in (1, -1)
    for near in (-1, 0, 1)
)
MOMENTS = [
    datetime.datetime.min,
    datetime.datetime.max,
    datetime.datetime(2020, 2, 29, 23, 59, 59, 999_999),
    datetime.datetime(2020, 12, 31, 1, fold=1),
    datetime.datetime(1, 1, 1, tzinfo=UTC),
    datetime.datetime(2024, 10, 27, 2, 30, tzinfo=UTC, fold=1),
    datetime.datetime(2024, 10, 27, 2, 30, tzinfo=datetime.timezone(datetime.timedelta(hours=2), "two")),
    datetime.datetime(2024, 10, 27, 2, 30, tzinfo=datetime.timezone(datetime.timedelta(0), "zero")),
    datetime.datetime(2024, 10, 27, 2, 30, tzinfo=zoneinfo.ZoneInfo("UTC")),
    datetime.date.min,
    datetime.date.max,
    datetime.date(2024, 2, 29),
    datetime.time.min,
    datetime.time.max,
    datetime.time(1, 2, 3, 4, fold=1),
    datetime.time(1, 2, 3, 4, tzinfo=UTC, fold=1),
    datetime.time(1, 2, tzinfo=datetime.timezone(datetime.timedelta(minutes=-7))),
    datetime.timedelta.min,
    datetime.timedelta.max,
    datetime.timedelta(0),
    datetime.timedelta(-1, 1, 1),
    UTC,
    uuid.UUID(int=0),
    uuid.UUID(int=(1 << 128) - 1),
    uuid.UUID(int=1 << 64),
    uuid.UUID(int=5, is_safe=uuid.SafeUUID.safe),
]


def described(item):
    return pickle.dumps(item, 5)


def test_ints_of_all_sizes_arrive(loopback):
    for value in EDGES:
        for item in (value, [value], [value, value], (1, value), [value, -value], DataChunk([value, 2**63])):
            assert described(loopback.one(item)) == described(item)


def test_times_and_uuids_arrive_as_out_of_a_pickle(loopback):
    for value in MOMENTS:
        twice = [value, (value,), {"a": value}]
        for item in (value, [value], twice, [twice, "other", 3]):
            assert described(loopback.one(item)) == described(pickle.loads(described(item)))


def test_runs_of_numbers_keep_their_types_and_bits(loopback):
    nan = struct.unpack("d", struct.pack("Q", 0x7FF8_0000_DEAD_BEEF))[0]
    runs = [
        [1, 2],
        [1, True],
        [True, 1],
        [True, False, None],
        [1, 2.0],
        [1.0, 2],
        [0.0, -0.0, math.inf, -math.inf, nan, 5e-324],
        [2**63, 2**64 - 1, 0],
        [2**63, -1],
        [-1, 2**63],
        [2**64, 1],
        [1] * 5000 + ["end"],
        [True] * 20_000,
        [index / 7 for index in range(20_000)],
        [index << 40 for index in range(20_000)],
        [[index, index + 1] for index in range(3000)],
        [(index / 3, 1.0) for index in range(3000)],
        [],
        [()],
        [[], [1.5], [1.5, 2.5]],
    ]
    for run in runs:
        for kind in (list, tuple, DataChunk):
            assert described(loopback.one(kind(run))) == described(kind(run))


class Int(int):
    """A subclass of int."""


class Day(datetime.date):
    """A subclass of date."""


class Key(uuid.UUID):
    """A subclass of UUID."""


def test_subclasses_keep_their_class(loopback):
    for item in ([Int(1), Int(2)], [1, Int(2)], (Day(2020, 1, 1), Key(int=3)), {Int(2**70): Day.max}):
        assert described(loopback.one(item)) == described(item)


def test_reducers_that_users_register_are_called(loopback, monkeypatch):
    class Odd(datetime.date):
        pass

    monkeypatch.setitem(copyreg.dispatch_table, Odd, lambda day: (datetime.date, (1999, day.month, day.day)))
    assert loopback.one([Odd(2020, 2, 3)]) == [datetime.date(1999, 2, 3)]


DAMAGED = [[1, 2, 3] * 2000, [2**63 + 5] * 6000, [0.5] * 6000, [True, False] * 12_000]

MARK = "what follows is damaged"


def damage(generator):
    maps = Path("/proc/self/maps").read_text()
    for start, end in re.findall(r"^(\w+)-(\w+) rw-s .*memfd:torchdata ", maps, re.MULTILINE):
        first, size = int(start, 16), int(end, 16) - int(start, 16)
        found = ctypes.string_at(first, size).find(MARK.encode())
        if found >= 0:
            for _ in range(generator.choice([1, 3, 30])):
                address_ = first + found + len(MARK) + int(generator.random() ** 3 * 10_000)
                ctypes.c_uint8.from_address(address_).value = generator.getrandbits(8)
            return True
    return False


@pytest.mark.skipif(PORTABLE, reason="the portable fallback names its memory differently")
@pytest.mark.parametrize("number", range(len(DAMAGED)))
def test_damaged_numbers_raise_an_error_or_change(number):
    generator, loopback = random.Random(number), Loopback(budget=1 << 20)
    expected = described(DAMAGED[number])
    for _ in range(20):
        loopback.sender.send_message([MARK, DAMAGED[number]])
        assert damage(generator)
        try:
            received = loopback.collector.receive(0, 30.0)
        except RuntimeError as error:
            message = str(error)
        else:
            message = f"malformed, yet {received!r:.9}"
        assert "malformed" in message
        loopback.sender.send_message([MARK, DAMAGED[number]])
        assert described(loopback.collector.receive(0, 30.0)[1]) == expected
