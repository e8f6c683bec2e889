"""If the buffer of `shuffle` is large when the source ends, the remaining items are yielded, and states are exact."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from torchdata.datapipes._pipe.state.chunked_list import CHUNK_SIZE, ChunkedList
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.state import load_state, save_state

ITEMS = 2 * CHUNK_SIZE + 5


def _shuffled(seed: int) -> list[int]:
    generator, buffer = random.Random(seed), list(range(ITEMS))
    return [buffer.pop(generator.randint(0, len(buffer) - 1)) for _ in range(ITEMS)]


def test_a_buffer_as_large_as_the_dataset_yields_the_order_of_a_list() -> None:
    pipe = IterableWrapper(range(ITEMS)).shuffle(buffer_size=ITEMS)
    for seed in (3, 4):
        assert list(pipe.set_seed(seed)) == _shuffled(seed)


@pytest.mark.parametrize("position", [1, CHUNK_SIZE, ITEMS - CHUNK_SIZE, ITEMS - 1])
def test_a_large_buffer_resumes_while_it_empties(position: int) -> None:
    first, second = (IterableWrapper(range(ITEMS)).shuffle(buffer_size=ITEMS).set_seed(3) for _ in range(2))
    begun = iter(first)
    list(islice(begun, position))
    saved = save_state(first)
    next(begun)  # the saved state must not change when the pipe continues
    load_state(second, saved)
    assert list(second) == _shuffled(3)[position:]


def test_chunks_remove_what_a_list_removes() -> None:
    chunks, items, generator = ChunkedList(list(range(ITEMS))), list(range(ITEMS)), random.Random(0)
    for left in range(ITEMS, 0, -1):
        index = generator.choice((0, left - 1, generator.randrange(left)))
        assert chunks.pop(index) == items.pop(index)
        if left % CHUNK_SIZE < 2:
            assert (len(chunks), list(chunks)) == (len(items), items)
    with pytest.raises(IndexError):
        chunks.pop(0)
