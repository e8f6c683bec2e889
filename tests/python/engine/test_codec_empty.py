"""An array from `torchdata.empty` is sent without a copy, unless the producer could still write to the sent array."""

import ctypes
import gc
import weakref
from typing import ClassVar

import numpy as np
import pytest

import torchdata
from torchdata import _engine
from torchdata._native import ArenaBuffer, LeasedBuffer

SHAPE = (100, 200)


@pytest.fixture
def loopback(loopback, monkeypatch):
    monkeypatch.setattr(_engine, "current_sender", loopback.sender)
    return loopback


def made(value=5):
    array = torchdata.empty(SHAPE, "float32")
    assert isinstance(array.base, ArenaBuffer)
    array[:] = value
    return array


def address(array):
    return array.__array_interface__["data"][0]


def sent_and_received(loopback, wrap):
    sources = []

    def make(_):
        array = made()
        sources.append(address(array))
        return wrap(array)

    (received,) = loopback.send(map(make, [0]))
    return sources[0], received


def peak(loopback):
    ((_, most, _),) = loopback.sender.arena_usage()
    return most


HANDED_OVER = {
    "by itself": (lambda array: array, lambda item: item),
    "in a dict": (lambda array: {"x": array}, lambda item: item["x"]),
    "in containers": (lambda array: [(0, {"x": [array]})], lambda item: item[0][1]["x"][0]),
    "in another shape": (lambda array: array.reshape(-1, 50), lambda item: item),
    "transposed": (lambda array: {"x": array.T}, lambda item: item["x"]),
    "as integers": (lambda array: array.view("i4"), lambda item: item),
}


@pytest.mark.parametrize("name", HANDED_OVER)
def test_an_array_that_only_the_item_refers_to_crosses_without_a_copy(loopback, name):
    wrap, find = HANDED_OVER[name]
    source, item = sent_and_received(loopback, wrap)
    received = find(item)
    assert isinstance(received.base, LeasedBuffer)
    np.testing.assert_array_equal(received, find(wrap(np.full(SHAPE, 5, "float32"))))
    assert peak(loopback) < 2 * received.nbytes
    assert address(received) % 4096 == source % 4096 == 0
    received += 1


class Sub(np.ndarray):
    pass


def kept_pointer(array):
    pointer = array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    return array, np.ctypeslib.as_array(pointer, SHAPE), pointer


#: Each function returns an object to send, and another object that can still write to the same memory.
KEPT = {
    "the array": lambda array: (array, array),
    "a view": lambda array: (array, array[:]),
    "a row": lambda array: (array, array[0]),
    "a view of a view": lambda array: (array, array[1:][2:].reshape(-1)),
    "the array under a view that covers it": lambda array: (array.reshape(-1), array),
    "a view beside a view": lambda array: (array.reshape(-1), array.view("i4")),
    "a subclass": lambda array: (array, array.view(Sub)),
    "a buffer": lambda array: (array, np.frombuffer(memoryview(array).cast("B"), "float32")),
    "a pointer": kept_pointer,
    "the array in a list": lambda array: ([array], array),
    "a view of the array in a list": lambda array: ([array], array[3:]),
    "the part that was not yielded": lambda array: (array[:50], array),
}


@pytest.mark.parametrize("name", KEPT)
def test_later_writes_of_the_producer_do_not_change_a_yielded_array(loopback, name):
    def items():
        holder = KEPT[name](made())
        yield holder[0]
        np.asarray(holder[1]).reshape(-1).view("u1")[:] = 77
        yield "written"

    iterator = loopback.send(items())
    received = next(iterator)
    assert next(iterator) == "written"
    array = received[0] if isinstance(received, list) else received
    np.testing.assert_array_equal(array, np.full(array.shape, 5, "float32"))
    assert list(iterator) == []


@pytest.mark.parametrize("name", ["a container", "an iterator's attribute", "a weak reference"])
def test_writing_through_another_view_does_not_change_the_item(loopback, name):
    reached = []

    def items():
        if name == "a container":
            item = {"x": [made()]}
            reached.append(lambda: item["x"][0])
            yield item
        elif name == "an iterator's attribute":
            reached.append(made())
            yield {"x": [reached[0]]}
            reached[0] = lambda array=reached[0]: array
        else:
            item = {"x": [made()]}
            reached.append(weakref.ref(item["x"][0]))
            inner = item["x"]
            del item
            yield {"x": inner}
        array = reached[0]()
        if array is not None:
            array[:] = 77
        yield "written"

    received, _ = loopback.send(items())
    np.testing.assert_array_equal(received["x"][0], np.full(SHAPE, 5, "float32"))


def test_a_producer_may_fill_and_yield_one_array_again_and_again(loopback):
    def items():
        array = made()
        for number in range(5):
            array[:] = number
            yield array

    kept = []
    for received in loopback.send(items()):
        received += 100  # Writing to the loaned array must change only the consumer's array.
        kept.append(received)
    assert [float(array[0, 0]) for array in kept] == [100, 101, 102, 103, 104]


def test_an_array_that_is_sent_twice_in_an_item_is_one_object_on_arrival(loopback):
    def make(_):
        array = made()
        return [array, array]

    ((first, second),) = loopback.send(map(make, [0]))
    assert first is second
    assert first.flags.writeable
    np.testing.assert_array_equal(first, np.full(SHAPE, 5, "float32"))


def test_memory_of_arrays_that_were_handed_over_is_freed(loopback):
    for received in loopback.send(map(made, range(100))):
        assert received[0, 0] == received[-1, -1]
    del received
    gc.collect()
    assert peak(loopback) < 30 * np.empty(SHAPE, "float32").nbytes


class TestTensors:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    DTYPES = ("float32", "float64", "bfloat16", "float16", "uint8", "int64", "bool", "complex64")

    def made(self, value=1, dtype="float32", shape=SHAPE):
        torch = self.torch
        tensor = torchdata.empty(shape, getattr(torch, dtype))
        assert (tensor.dtype, tuple(tensor.shape)) == (getattr(torch, dtype), shape)
        assert tensor.is_contiguous()
        return tensor.fill_(value)

    @staticmethod
    def most_blocks(loopback, item):
        return peak(loopback) // item.nbytes

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_tensor_that_only_the_item_refers_to_is_sent_without_a_copy(self, loopback, dtype):
        (received,) = loopback.send(self.made(dtype=dtype) for _ in range(1))
        assert self.torch.equal(received, self.torch.ones(SHAPE, dtype=getattr(self.torch, dtype)))
        assert self.most_blocks(loopback, received) == 1
        assert received.data_ptr() % 4096 == 0

    def test_items_in_containers_and_in_sequence_reuse_blocks(self, loopback):
        for number in range(30):
            (item,) = loopback.send({"x": [self.made(number), number]} for _ in range(1))
            assert item["x"][1] == number
            assert bool((item["x"][0] == number).all())
            assert self.most_blocks(loopback, item["x"][0]) <= 2  # the previous item may still be in use

    # Pairs of functions: the first returns an object that shares a tensor's memory, and the second changes the tensor.
    KEPT: ClassVar = {
        "the tensor": (lambda t: t, lambda t: t.fill_(9)),
        "a view": (lambda t: t[3:4], lambda t: t.fill_(9)),
        "detached": (lambda t: t.detach(), lambda t: t.fill_(9)),
        "another shape": (lambda t: t.view(-1), lambda t: t.fill_(9)),
        "an array": (lambda t: t.numpy(), lambda a: a.fill(9)),
        "a storage": (lambda t: t.untyped_storage(), lambda s: s.fill_(9)),
        "a capsule": (lambda t: t.__dlpack__(), lambda c: TestTensors.torch.from_dlpack(c).fill_(9)),
    }

    @pytest.mark.parametrize("name", KEPT)
    def test_other_views_of_the_memory_cannot_change_the_item(self, loopback, name):
        keep, write = self.KEPT[name]
        kept = []

        def make(_):
            tensor = self.made()
            kept.append(keep(tensor))
            return tensor

        items = loopback.send(map(make, range(2)))
        first, second = items
        for one in kept:
            write(one)
        for item in first, second:
            assert bool((item == 1).all())

    def test_a_weak_reference_leads_to_no_item_of_the_receiver(self, loopback):
        kept = []

        def make(_):
            tensor = self.made()
            kept.append(weakref.ref(tensor))
            return tensor

        (received,) = loopback.send(map(make, [0]))
        assert bool((received == 1).all())
        assert self.most_blocks(loopback, received) == 2

    @pytest.mark.parametrize("part", [lambda t: t[:50], lambda t: t.T, lambda t: t[:, ::2]])
    def test_an_array_over_a_part_of_a_buffer_or_with_other_strides_arrives_unchanged(self, loopback, part):
        numbers = self.torch.arange(20_000.0).view(SHAPE)
        (received,) = loopback.send(part(self.made().copy_(numbers)) for _ in range(1))
        assert self.torch.equal(received, part(numbers))

    def test_without_a_sender_or_room_the_result_is_a_plain_tensor(self, loopback):
        for shape in [(), 3, (0, 5), (2, 2)]:
            tensor = torchdata.empty(shape, self.torch.int32)
            assert tuple(tensor.shape) == (shape if isinstance(shape, tuple) else (shape,))
        large = torchdata.empty(100 << 20, self.torch.uint8)  # the tensor does not fit into the link's memory
        assert large.numel() == 100 << 20
        with pytest.raises(RuntimeError, match="negative"):
            torchdata.empty((-1, 2), self.torch.float32)
