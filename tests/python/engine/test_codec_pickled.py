"""Items with repeated strings arrive unchanged, and pickling functions that users have registered are called."""

import copyreg
import dataclasses
import importlib
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest

from loopback import Loopback
from torchdata._engine.items import codec, reducers

TEXT, LATIN, BROKEN, BLOB = "x" * (1 << 20), "ä" * (1 << 20), "x" * 99 + "\udcff", b"y" * (1 << 20)


@dataclasses.dataclass(eq=False)
class Sample:
    value: object


@pytest.mark.parametrize("string", [TEXT, LATIN, BROKEN, BLOB, "w" * 64, b"w" * 64])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: [s] * 300,
        lambda s: {"a": s, "b": [(s, 1)], s: {"c": s}},
        lambda s: [Sample(s), s],
        lambda s: (s, Sample([s]), Sample(s)),
    ],
)
def test_a_long_string_is_sent_once_and_stays_one_object(wrap, string):
    def strings(item):
        if isinstance(item, (str, bytes)):
            return [item] if len(item) > 1 else []
        if isinstance(item, Sample):
            return strings(item.value)
        if isinstance(item, dict):
            return [found for pair in item.items() for one in pair for found in strings(one)]
        return [found for one in item for found in strings(one)] if isinstance(item, (list, tuple)) else []

    loopback = Loopback()
    received = strings(loopback.one(wrap(string)))
    assert len(received) == len(strings(wrap(string)))
    assert all(one is received[0] for one in received)
    assert received[0] == string
    _, sent = loopback.link.sent()
    size = len(string if isinstance(string, bytes) else string.encode("utf-8", "surrogatepass"))
    assert size <= sent < 1.1 * size + 20_000


def test_an_item_of_many_strings_does_not_slow_the_later_ones(loopback):
    words = [f"{number:070}" for number in range(50_000)]
    assert loopback.one([words, list(words)]) == [words, words]
    assert loopback.one(["w" * 70] * 3) == ["w" * 70] * 3


class Ours:
    def __init__(self, value):
        self.value = value


# A pickling function stays registered until the process exits, so each test registers a function for its own class.
class Registered(Ours):
    pass


class First(Ours):
    pass


class Later(Ours):
    pass


def test_a_reducer_that_is_registered_between_two_items_is_used_from_then_on(loopback):
    assert loopback.one([Ours(1), Ours(2)])[1].value == 2
    try:
        for answer in ("first", "second"):
            copyreg.pickle(Ours, lambda obj, answer=answer: (str, (answer,)))
            assert loopback.one([Ours(1), Ours(2)]) == [answer, answer]
    finally:
        del copyreg.dispatch_table[Ours]
    assert loopback.one(Ours(3)).value == 3


def test_a_reducer_of_multiprocessing_is_called_for_objects_that_only_cloudpickle_can_pickle(loopback):
    ForkingPickler.register(Registered, lambda obj: (str, ("by its reducer",)))
    function, reduced = loopback.one([lambda: 7, Registered(1)])
    assert function() == 7
    assert reduced == "by its reducer"


def test_a_reducer_of_multiprocessing_is_used_at_the_first_item_of_its_type_and_after_an_import(
    loopback, tmp_path, monkeypatch
):
    monkeypatch.setattr(codec, "_tables", reducers.Tables())  # tables of earlier tests do not have the reducer
    ForkingPickler.register(First, lambda obj: (str, ("first",)))
    assert loopback.one([First(1), Later(1)])[0] == "first"
    (tmp_path / "registers_a_reducer.py").write_text(
        "from multiprocessing.reduction import ForkingPickler\n"
        f"from {__name__} import Later\n"
        'ForkingPickler.register(Later, lambda obj: (str, ("later",)))\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("registers_a_reducer")
    assert loopback.one([First(1), Later(1)]) == ["first", "later"]


def test_objects_that_pickle_items_while_they_are_pickled_themselves_arrive(loopback):
    class Nested:
        def __reduce__(self):
            pickled, buffers, _ = codec.pickled_parts([Sample(1), np.arange(5000)[::-1]])
            return codec.loads, (pickled, [bytes(buffer) for buffer in buffers])

    first, second = loopback.one([Nested(), Sample(3)])
    assert first[0].value == 1
    np.testing.assert_array_equal(first[1], np.arange(5000)[::-1])
    assert second.value == 3


def test_tables_of_reducers_do_not_keep_temporary_classes_alive(loopback):
    class Local:
        """A class that only cloudpickle can pickle."""

    assert type(loopback.one([Local(), 1])[0]).__name__ == "Local"
    assert all(Local not in table for table in codec._tables._free)
    tables, pickling = reducers.Tables(), pickle.Pickler(io.BytesIO())
    for _ in range(3):
        table = tables.take(pickling)
        assert len(table) < 500
        table.update((type(f"Made{number}", (), {}), str) for number in range(400))
        tables.give_back(table)
