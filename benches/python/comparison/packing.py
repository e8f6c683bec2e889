"""Measures how fast this project, plain Python and Hugging Face's libraries pack token sequences in one process.

The sequences' lengths resemble chats and documents: many short sequences, and a few very long ones. The collator of
transformers joins sequences into a row, and marks where each sequence begins. Because the collator does not choose the
sequences of a row, plain Python chooses them. TRL's packer packs a whole Arrow dataset before the first row is read.
TRL's packer returns the lengths of the sequences in a row, but no position IDs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

LENGTH = 2048
"""The number of tokens in a row."""

COUNT = 4000
"""The number of sequences."""

OPEN = 16
"""The number of rows that first fit keeps open at the same time, which is the default of `pack`."""


def sequences(kind: str) -> list[Any]:
    import numpy

    rng = random.Random(1)
    lengths = [min(LENGTH, 1 + int(rng.lognormvariate(5.5, 1.0))) for _ in range(COUNT)]
    arrays = [numpy.arange(length) for length in lengths]
    return arrays if kind == "arrays" else [array.tolist() for array in arrays]


def _ours(source: list[Any], options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from torchdata.datapipes.iter import IterableWrapper

    yield from IterableWrapper(source, deepcopy=False).pack(LENGTH, method=options["method"])


def _first_fit(source: Iterable[Any]) -> Iterator[list[Any]]:
    rows: list[tuple[list[Any], int]] = []
    for sequence in source:
        size = len(sequence)
        for index, (row, room) in enumerate(rows):
            if room >= size:
                row.append(sequence)
                rows[index] = row, room - size
                break
        else:
            rows.append(([sequence], LENGTH - size))
            if len(rows) > OPEN:
                fullest = min(range(OPEN), key=lambda index: rows[index][1])
                yield rows.pop(fullest)[0]
    for row, _ in rows:
        yield row


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

    chosen = _first_fit if options["method"] == "first_fit" else _in_order
    for row in chosen(source):
        ends = [0]
        for sequence in row:
            ends.append(ends[-1] + len(sequence))
        if isinstance(row[0], list):
            tokens: Any = [token for sequence in row for token in sequence]
            positions: Any = [index for sequence in row for index in range(len(sequence))]
        else:
            tokens = numpy.concatenate(row)
            positions = numpy.concatenate([numpy.arange(len(sequence)) for sequence in row])
        yield {"input_ids": tokens, "position_ids": positions, "cu_seqlens": ends}


def _transformers(source: list[Any], options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from transformers import DataCollatorWithFlattening

    collator = DataCollatorWithFlattening(return_tensors="np", return_flash_attn_kwargs=True)
    for row in _in_order(source):
        yield collator([{"input_ids": sequence} for sequence in row])


def _trl(source: list[Any], options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from trl.data_utils import pack_dataset

    yield from pack_dataset(_data_set(source), LENGTH, strategy="bfd")


def _data_set(source: list[Any]) -> Any:
    """Returns an Arrow dataset, which is created only once, because users of the packer already have such a dataset."""
    import datasets

    if id(source) not in _data_sets:
        datasets.disable_caching()
        datasets.disable_progress_bars()
        made = datasets.Dataset.from_dict({"input_ids": source})
        _data_sets[id(source)] = made if isinstance(source[0], list) else made.with_format("numpy")
    return _data_sets[id(source)]


_data_sets: dict[int, Any] = {}
PACKERS: dict[str, Callable[[list[Any], dict[str, Any]], Iterator[dict[str, Any]]]] = {
    "ours": _ours,
    "plain": _plain,
    "transformers": _transformers,
    "trl": _trl,
}


def measured(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    """Returns the sequences per second, or with `padding` the fraction of padding in the rows."""
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
        if done == 0:  # the first pass, which imports modules, does not count
            begin = time.perf_counter()
    return {"value": done * COUNT / (time.perf_counter() - begin)}, None
