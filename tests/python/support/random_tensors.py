"""Sends random items with tensors over a link, and compares the received items with unpickled copies of the items.

An item contains tensors in random containers. Several tensors may be views of the same memory. Received tensors must
share memory with each other wherever unpickled tensors would. Received items that the test keeps must not change, and
the memory of deleted items must be released."""

import hashlib
import io
import random
from collections import namedtuple

import torch

from drivers.frame import Driver
from loopback import Loopback

Pair = namedtuple("Pair", "first second")

NAMES = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex32 complex64 "
    "complex128 float8_e5m2 float8_e4m3fn float8_e8m0fnu"
)
DTYPES = [getattr(torch, name) for name in NAMES.split() if hasattr(torch, name)]


def storage(draw):
    dtype = draw.choice(DTYPES)
    size = draw.choice([1, 7, 60, 960, 12_000, 40_000])
    content = torch.tensor(draw.choices(range(2 if dtype is torch.bool else 256), k=97), dtype=torch.uint8)
    content = content.repeat(1 + size * dtype.itemsize // 97)[: size * dtype.itemsize].clone()
    return content.view(dtype)


def view(draw, tensor):
    for _ in range(draw.randrange(5)):
        tensor = draw.choice([part, shaped, turned, longer, repeated])(draw, tensor)
    return tensor


def part(draw, tensor):
    if tensor.dim() == 0:
        return tensor
    axis = draw.randrange(tensor.dim())
    size = tensor.shape[axis]
    start = draw.randrange(size + 1)
    cut = [slice(None)] * axis + [slice(start, draw.randint(start, size), draw.choice([1, 1, 2, 3]))]
    return tensor[tuple(cut)]


def shaped(draw, tensor):
    width = draw.choice([2, 3, 4, 5])
    if tensor.dim() == 0 or tensor.shape[-1] % width:
        return tensor
    return tensor.unflatten(-1, (-1, width)) if tensor.shape[-1] else tensor


def turned(draw, tensor):
    return tensor.permute(draw.sample(range(tensor.dim()), tensor.dim()))


def longer(draw, tensor):
    return tensor.unsqueeze(draw.randint(0, tensor.dim())) if tensor.dim() < 7 else tensor


def repeated(draw, tensor):
    ones = [axis for axis, size in enumerate(tensor.shape) if size == 1]
    if not ones or draw.random() < 0.5:
        return tensor
    chosen = draw.choice(ones)
    return tensor.expand([3 if axis == chosen else -1 for axis in range(tensor.dim())])


def item(draw):
    storages = [storage(draw) for _ in range(draw.choice([1, 1, 2, 4]))]
    count = draw.choice([1, 1, 2, 3, 6])
    tensors = [view(draw, draw.choice(storages)) for _ in range(count)]
    if count == 1 and draw.random() < 0.5:
        return tensors[0]
    forms = [
        *[lambda tensor: tensor] * 3,
        lambda tensor: Pair(tensor, 1),
        lambda tensor: {"tensor": tensor, "number": 1},
    ]
    wrapped = [draw.choice(forms)(tensor) for tensor in tensors]
    return draw.choice([list, tuple])(wrapped)


def pickled(sent):
    file = io.BytesIO()
    torch.save(sent, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def tensors_in(found):
    if isinstance(found, torch.Tensor):
        return [found]
    if isinstance(found, dict):
        found = list(found.values())
    return [tensor for member in found for tensor in tensors_in(member)] if isinstance(found, (list, tuple)) else []


def content(tensor):
    if tensor.numel() == 0:
        return b""
    return bytes(tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy())


def described(tensor):
    return tensor.dtype, tuple(tensor.shape), tensor.requires_grad, tensor.device.type, content(tensor)


def strides_on_arrival(tensor):
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() == 0 or last < tensor.numel():
        return tensor.stride()
    once = tensor[tuple(slice(None if stride else 1) for stride in tensor.stride())]
    return once.clone().expand(tensor.shape).stride()


def significant(tensor, strides):
    return [stride for size, stride in zip(tensor.shape, strides, strict=True) if size > 1] if tensor.numel() else []


def write_everywhere(draw, tensors):
    seen = []
    for tensor in tensors:
        if tensor.numel():
            index = tuple(draw.randrange(size) for size in tensor.shape)
            tensor[index] = tensor[tuple(draw.randrange(size) for size in tensor.shape)]
            flipped = tensor[index].reshape(1).view(torch.uint8)
            flipped ^= 1
        seen.append([content(each) for each in tensors])
    return seen


def flattened(tensor):
    return tensor.view(-1) if tensor.is_contiguous() else tensor


def holders(draw, tensor):
    return draw.choice([lambda t: t, lambda t: t[...], lambda t: t.detach(), lambda t: t.untyped_storage(), Loaned])(
        tensor
    )


class Loaned:
    def __init__(self, tensor):
        self.capsule = torch.utils.dlpack.to_dlpack(tensor)


def check(draw, link, digest):
    sent = item(draw)
    reference = pickled(sent)
    received = link.one(sent)
    expected, found = tensors_in(reference), tensors_in(received)
    assert [described(tensor) for tensor in found] == [described(tensor) for tensor in expected]
    for tensor in found:
        digest.update(repr((described(tensor), tensor.stride(), tensor.untyped_storage().nbytes())).encode())
    if isinstance(sent, torch.Tensor):
        assert significant(sent, received.stride()) == significant(sent, strides_on_arrival(sent))
        assert received.untyped_storage().nbytes() <= sent.nbytes
    seed = draw.random()
    assert write_everywhere(random.Random(seed), found) == write_everywhere(random.Random(seed), expected)
    return received


def in_use(link):
    link.sender.tidy()
    ((used, _, _),) = link.sender.arena_usage()
    return used


def run(seed, cases):
    draw, digest = random.Random(seed), hashlib.sha256()
    link = Loopback(budget=8 << 20)
    kept = []
    for _ in range(cases):
        for tensor in tensors_in(check(draw, link, digest)):
            kept.append((content(tensor), draw.choice([lambda t: t, torch.Tensor.detach, flattened])(tensor)))
        draw.shuffle(kept)
        del kept[draw.choice([0, 3, 20, 40]) :]
        assert all(content(tensor) == was for was, tensor in kept), "a kept tensor has changed"
    del tensor
    kept.clear()
    assert in_use(link) == 0, "the memory of freed tensors is still in use"
    return digest.hexdigest()


def hold_to_the_end(seed):
    draw = random.Random(seed)
    link = Loopback()
    held = [link.one(torch.arange(50_000))]
    for _ in range(5):
        held.append(holders(draw, held[0]))
    draw.shuffle(held)
    while held:
        assert in_use(link) > 0
        held.pop()
    assert in_use(link) == 0


def check_many(seed):
    run(seed, 50)
    hold_to_the_end(seed)
    return 50


DRIVER = Driver(lambda seed, _: seed, check_many, "cases")
