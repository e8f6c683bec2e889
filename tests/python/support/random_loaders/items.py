"""Items of random loaders, and the functions that their pipes run; imported by main and by every child.

An item stands for an *id*: the low 32 bits are its key, which the model knows; the bits above are the epoch's tag,
which the source drew from the seed of the epoch. So an item of a wrong epoch is seen, even where its key would be
right. Functions decide by the key alone, and keep the tag.
"""

from __future__ import annotations

import math
import os
import random
import sys
import time

import numpy as np

import torchdata
from watchdog import show_stacks_on_demand

show_stacks_on_demand()

KEY = (1 << 32) - 1


class Damaged(AssertionError):
    """The content of an item is not what was sent."""


class Provoked(ValueError):
    """Raised by a pipe's function because the plan says so."""


class Odd(Exception):
    """The same, of a kind that cannot be made anew from its arguments."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


def mix(salt, key):
    """A number of 64 bits that follows from both (the finaliser of SplitMix64)."""
    z = (key * 0x9E3779B97F4A7C15 + salt * 0xD1342543DE82EF95 + 0x632BE59BD9B4E019) & (1 << 64) - 1
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & (1 << 64) - 1
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & (1 << 64) - 1
    return z ^ z >> 31


def fraction(salt, key):
    """A number in [0, 1) that follows from both."""
    return mix(salt, key) / (1 << 64)


def leaf_id(item):
    """The id of an item that is no list, without a look at the rest of it."""
    if isinstance(item, int):
        return item
    if isinstance(item, dict):
        return item["id"]
    if isinstance(item, np.ndarray):
        return int(item.flat[0])
    if isinstance(item, str):
        return int(item.split(":", 1)[0])
    if isinstance(item, bytes):
        return int(item.split(b":", 1)[0])
    raise Damaged(f"an item of type {type(item).__name__}")


def key_of(item):
    """The key of an item, of a batch or of a row of items; works on the keys of the model as well."""
    if isinstance(item, (list, tuple)):
        key = len(item)
        for one in item:
            key = mix(key, key_of(one)) & KEY
        return key
    return leaf_id(item) & KEY


def tag_of(item):
    while isinstance(item, (list, tuple)):
        item = item[0]
    return leaf_id(item) >> 32


def checked_id(item):
    """The id of an item that is no list, once all of its content was found to be what was sent."""
    number = leaf_id(item)
    if isinstance(item, dict):
        array, text = item["array"], item["text"]
        if array.shape != (item["size"],) or text != str(number) * 3:
            raise Damaged(f"item {number:#x}: shape {array.shape} of {item['size']}, text {text!r}")
        if not (array == number % 251).all() or any(not (part == number).all() for part in item["parts"]):
            raise Damaged(f"item {number:#x}: its arrays hold other values than {number % 251} and {number}")
    elif isinstance(item, np.ndarray) and not (item == number).all():
        raise Damaged(f"item {number:#x}: its array holds other values, too")
    elif isinstance(item, (str, bytes)):
        head, _, tail = item.partition(":" if isinstance(item, str) else b":")
        if tail.strip("x" if isinstance(item, str) else b"x") or len(tail) != length(int(head)):
            raise Damaged(f"item {number:#x}: {len(tail)} characters instead of {length(int(head))}")
    return number


def ids(item):
    """The item with an id in the place of each leaf, batches and rows as lists; checks all content."""
    if isinstance(item, (list, tuple)):
        return [ids(one) for one in item]
    return checked_id(item)


def keys(item):
    """The result of `ids`, without the tags."""
    return [keys(one) for one in item] if isinstance(item, list) else item & KEY


def leaves(item):
    """All that is no list in what `ids` or `keys` returned."""
    if isinstance(item, list):
        for one in item:
            yield from leaves(one)
    else:
        yield item


def length(number):
    """Characters of the text of an item."""
    return int(math.exp(10 * fraction(5, number & KEY)))


# -- what pipes run ------------------------------------------------------------------------------------------------


class Function:
    """A function of a pipe; pickles under every start method, and says in a traceback which one it is."""

    def __init__(self, salt):
        self.salt = salt

    def __repr__(self):
        arguments = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({arguments})"


class Work(Function):
    """Takes a random time for each item, and now and then a long one."""

    def __init__(self, salt, short, every, long):
        super().__init__(salt)
        self.short, self.every, self.long = short, every, long

    def seconds(self, key):
        if self.every and mix(self.salt, key) % self.every == 0:
            return self.long
        return self.short * fraction(self.salt + 1, key)

    def __call__(self, item, _device=None):
        seconds = self.seconds(key_of(item))
        if seconds > 20e-6:
            time.sleep(seconds)
        return item


class Inflate(Function):
    """Makes a payload of random size around an id."""

    def __init__(self, salt, form, largest):
        super().__init__(salt)
        self.form, self.largest = form, largest

    def size(self, key):
        """Elements; small ones are as frequent as large ones."""
        return 1 + int(math.exp(math.log(self.largest) * fraction(self.salt, key)))

    def bytes(self, key):
        size = self.size(key)
        if self.form == "many":
            return size + size % 40 * 12_000
        return size * (8 if self.form in ("array", "empty", "strided") else 1)

    def __call__(self, number):
        size = self.size(number & KEY)
        if self.form == "array":
            return np.full(size, number)
        if self.form == "empty":
            array = torchdata.empty((size,), "int64")
            array.fill(number)
            return array
        if self.form == "strided":
            return np.full(2 * size, number)[::-2]
        if self.form in ("dict", "many"):
            array = np.full(size, number % 251, np.uint8)
            parts = [np.full(1500, number) for _ in range(size % 40)] if self.form == "many" else []
            return {"id": number, "size": size, "array": array, "text": str(number) * 3, "parts": parts}
        if self.form == "text":
            return f"{number}:" + "x" * length(number)
        return f"{number}:".encode() + b"x" * length(number)


class Outputs(Function):
    """Makes 0 to many items of one; how many is skewed."""

    def __init__(self, salt, sigma, most):
        super().__init__(salt)
        self.sigma, self.most = sigma, most

    def made(self, key):
        generator = random.Random(mix(self.salt, key))
        count = min(self.most, int(generator.lognormvariate(0.3, self.sigma)))
        return [mix(key, number) & KEY for number in range(count)]

    def __call__(self, item):
        tag = tag_of(item) << 32
        return [tag | key for key in self.made(key_of(item))]


class Keep(Function):
    """Keeps a random share of the items; with `modulus`, keys of one remainder only, so that some worker has none."""

    def __init__(self, salt, share, modulus):
        super().__init__(salt)
        self.share, self.modulus = share, modulus

    def __call__(self, item):
        key = key_of(item)
        if self.modulus:
            return key % self.modulus == self.salt % self.modulus
        return fraction(self.salt, key) < self.share


class Fail(Function):
    """Fails at one key while a file lies at `flag`: main puts it there for the epochs that are to fail."""

    def __init__(self, salt, key, flag, kind):
        super().__init__(salt)
        self.key, self.flag, self.kind = key, flag, kind

    def __call__(self, item, _device=None):
        if key_of(item) == self.key and os.path.exists(self.flag):
            if self.kind == "exit":
                sys.exit(3)
            if self.kind == "odd":
                raise Odd("at key", self.key)
            raise Provoked(f"at key {self.key}")
        return item
