"""Packing sequences of tokens into rows, in one process: by this project, plain Python and transformers' collator.

The sequences are drawn once, with lengths as those of chats and documents are: many short ones and a long tail.
transformers' collator joins the sequences of a row, and says where each begins; which ones a row has is left to its
caller, for whom plain Python stands here.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

LENGTH = 2048
"""Tokens of a row."""

COUNT = 4000
"""How many sequences there are."""


def sequences(kind: str) -> list[Any]:
    """The sequences, as lists or arrays."""
    import numpy

    dice = random.Random(1)
    lengths = [min(LENGTH, 1 + int(dice.lognormvariate(5.5, 1.0))) for _ in range(COUNT)]
    arrays = [numpy.arange(length) for length in lengths]
    return arrays if kind == "arrays" else [array.tolist() for array in arrays]


def _ours(source: list[Any], options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from torchdata.datapipes.iter import IterableWrapper

    yield from IterableWrapper(source, deepcopy=False).pack(LENGTH, method=options["method"])


def _in_order(source: Iterable[Any]) -> Iterator[list[Any]]:
    row: list[Any] = []
    tokens = 0
    for sequence in source:
        if tokens + len(sequence) > LENGTH:
            yield row
            row, tokens = [], 0
        row.append(sequence)
        tokens += len(sequence)
    yield row


def _plain(source: list[Any], options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    import numpy

    for row in _in_order(source):
        ends = [0]
        for sequence in row:
            ends.append(ends[-1] + len(sequence))
        if isinstance(row[0], list):
            tokens: Any = [token for sequence in row for token in sequence]
            places: Any = [place for sequence in row for place in range(len(sequence))]
        else:
            tokens = numpy.concatenate(row)
            places = numpy.concatenate([numpy.arange(len(sequence)) for sequence in row])
        yield {"input_ids": tokens, "position_ids": places, "cu_seqlens": ends}


def _transformers(source: list[Any], options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from transformers import DataCollatorWithFlattening

    collator = DataCollatorWithFlattening(return_tensors="np", return_flash_attn_kwargs=True)
    for row in _in_order(source):
        yield collator([{"input_ids": sequence} for sequence in row])


PACKERS: dict[str, Callable[[list[Any], dict[str, Any]], Iterator[dict[str, Any]]]] = {
    "ours": _ours,
    "plain": _plain,
    "transformers": _transformers,
}


def measured(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    """Sequences a second, over whole readings; or with the option `padding` the share of padding in rows filled up."""
    options = order["options"]
    packer, source = PACKERS[options["packer"]], sequences(order["item"])
    if options.get("padding"):
        rows = [len(row["input_ids"]) for row in packer(source, options)]
        return {"value": 1 - sum(rows) / (LENGTH * len(rows))}, None
    done, begin = -1, 0.0
    while done < 1 or time.perf_counter() - begin < order["seconds"]:
        for _ in packer(source, options):
            pass
        done += 1
        if done == 0:  # the first one imports modules
            begin = time.perf_counter()
    return {"value": done * COUNT / (time.perf_counter() - begin)}, None
