"""Loading a damaged, truncated or incompatible state of a loader always causes a clear error."""

import sys
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdata.dataloader2 import DataLoader2, InProcessReadingService, SequentialReadingService
from torchdata.datapipes.iter import IterableWrapper

FIELDS = ("serialized_datapipe", "reading_service_state", "randomness_state")


def services():
    return SequentialReadingService(InProcessReadingService(), Kept())


class Kept(InProcessReadingService):
    def checkpoint(self):
        return b"kept" * 10

    def restore(self, datapipe, serialized_state):
        return self.initialize(datapipe)


def state():
    loader = DataLoader2(IterableWrapper(list(range(50))).shuffle().map(str), reading_service=services())
    loader.seed(5)
    return loader.state_dict()


STATE = state()
few = settings(max_examples=30)


def damaged(field, part, change):
    whole = STATE[field]
    if isinstance(whole, bytes):
        return {**STATE, field: change(whole)}
    parts = list(whole)
    parts[2 + part] = change(parts[2 + part])
    return {**STATE, field: tuple(parts)}


def refused(state):
    with pytest.raises(ValueError, match=r"state") as caught:
        DataLoader2.from_state(state, services())
    loader = DataLoader2(IterableWrapper([1, 2, 3]))
    with pytest.raises(ValueError, match=r"state"):
        loader.load_state_dict(state)
    assert list(loader) == [1, 2, 3]
    return str(caught.value)


@few
@given(st.sampled_from(FIELDS), st.integers(0, 1), st.data())
def test_any_flipped_bits_are_damage(field, part, data):
    def flip(whole):
        flipped = bytearray(whole)
        bits = st.sets(st.integers(0, 8 * len(whole) - 1), min_size=1, max_size=4)
        for bit in data.draw(bits):
            flipped[bit // 8] ^= 1 << bit % 8
        return bytes(flipped)

    message = refused(damaged(field, part, flip))
    assert f"damaged in its field '{field}'" in message
    assert "load another copy" in message


@few
@given(st.sampled_from(FIELDS), st.integers(0, 1), st.data(), st.booleans())
def test_truncated_states_are_reported_as_damaged_with_and_without_checksums(field, part, data, summed):
    cut = damaged(field, part, lambda whole: whole[: data.draw(st.integers(0, len(whole) - 1))])
    if not summed:
        del cut["checksums"]
    if not summed and field == "reading_service_state":  # The service checks its state only when it starts.
        loader = DataLoader2.from_state(cut, services())
        with pytest.raises(ValueError, match="damaged in its field 'reading_service_state'"):
            iter(loader)
        return
    assert f"damaged in its field '{field}'" in refused(cut)


@pytest.mark.parametrize("field", FIELDS)
@few
@given(value=st.one_of(st.none(), st.integers(), st.text(), st.binary(max_size=40), st.lists(st.integers())))
def test_any_other_value_in_a_field_is_refused_by_name(field, value):
    assert "state" in refused({**STATE, field: value})
    if field == "serialized_datapipe" or (field == "randomness_state" and value is not None):
        assert "state" in refused({**STATE, field: value, "checksums": None})


def test_a_service_may_save_any_object():
    class Odd(Kept):
        def checkpoint(self):
            return {"position": object()}

        def restore(self, datapipe, state):
            assert set(state) == {"position"}
            return self.initialize(datapipe)

    state = DataLoader2(IterableWrapper(range(3)), reading_service=Odd()).state_dict()
    assert list(DataLoader2.from_state(state, Odd())) == [0, 1, 2]


@pytest.mark.parametrize("name", ["checksums", "version"])
@few
@given(value=st.one_of(st.integers(), st.text(), st.dictionaries(st.sampled_from(FIELDS), st.integers())))
def test_damage_to_the_description_of_a_state_is_detected(name, value):
    if value in (STATE[name], None):
        return
    assert "state" in refused({**STATE, name: value})


def test_an_error_names_the_missing_module_of_a_state_and_the_remedy(monkeypatch):
    module = types.ModuleType("only_where_it_was_saved")
    exec("def double(x): return 2 * x", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    state = DataLoader2(IterableWrapper(range(3)).map(module.double)).state_dict()
    assert list(DataLoader2.from_state(state, None)) == [0, 2, 4]
    monkeypatch.delitem(sys.modules, module.__name__)
    with pytest.raises(
        ValueError, match="ModuleNotFoundError: No module named 'only_where_it_was_saved'.*load it where"
    ):
        DataLoader2.from_state(state, None)
    monkeypatch.setitem(sys.modules, module.__name__, types.ModuleType(module.__name__))
    with pytest.raises(ValueError, match="AttributeError: .*double") as caught:
        DataLoader2.from_state(state, None)
    assert isinstance(caught.value.__cause__, AttributeError)
