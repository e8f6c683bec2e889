"""Draws the input items and output items of a pipe as SVG.

This module evaluates the samples of `pipe_groups.py` in a temporary folder with sample files. An output item has the
color of the input item that it was computed from. Fills are translucent, and text has the text color of the page, so
that a picture is readable on light and on dark backgrounds.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import tempfile
from collections.abc import Iterator, Sequence
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pipe_groups
from pipe_groups import Group, Sample

from torchdata.datapipes import iter as iter_pipes
from torchdata.datapipes import map as map_pipes

#: Hues for the items of an input. People with red-green color blindness can also distinguish these hues.
HUES = (212, 35, 165, 280, 345, 95)

_CHARACTER = 7.3  # the width of a character at 12 px in the usual monospaced fonts, plus a margin
_HEIGHT, _GAP, _PAD = 20, 5, 6
#: The width in pixels of a row of items. If not all items fit into a row, an ellipsis replaces the last items.
_WIDTH = 344


def outputs(sample: Sample, group: Group) -> list[list[Any]]:
    """Evaluates a sample. Returns one row of items, or several rows if the sample splits the pipe.

    The sample is evaluated in the folder that contains its files.
    """
    if sample.shown is not None:
        return [list(row) for row in sample.shown]
    wrap = map_pipes.SequenceWrapper if group.module is map_pipes else iter_pipes.IterableWrapper
    names = {
        **{name: getattr(iter_pipes, name) for name in iter_pipes.__all__},
        **{name: getattr(map_pipes, name) for name in map_pipes.__all__},
        **{name: getattr(group.module, name) for name in group.module.__all__},
        **pipe_groups.NAMES,
        "iter_pipes": iter_pipes,
        **{name: wrap(items) for name, items in zip(sample.names, sample.inputs, strict=False)},
    }
    random.seed(0)  # the pipes draw their seeds from this generator
    made = eval(sample.run or sample.code, names)
    rows = made if isinstance(made, (list, tuple)) else [made]
    return [_items(row) for row in rows]


def _items(pipe: Any) -> list[Any]:
    if isinstance(pipe, map_pipes.MapDataPipe):
        return [pipe[index] for index in range(len(pipe))]
    return list(pipe)


@contextlib.contextmanager
def sample_files() -> Iterator[None]:
    """Within this context, the current folder contains the samples' files."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        pipe_groups.prepare(Path(folder))
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode().strip()
    if isinstance(value, str):
        return value.strip().removeprefix("./") or "''"
    return str(value)


def labels(item: Any) -> list[str]:
    if isinstance(item, dict):
        return [label for value in item.values() for label in labels(value)]
    if isinstance(item, (list, tuple)):
        return [label for member in item for label in labels(member)]
    return [] if _is_stream(item) else [_text(item)]


def _height(value: Any) -> float:
    """Returns the height of an item. A list is drawn as a box that is higher than the items in it."""
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, (list, tuple)):
        return max(map(_height, value), default=_HEIGHT) + 6
    return _HEIGHT


def _is_stream(value: Any) -> bool:
    return hasattr(value, "read")


class _Drawing:
    def __init__(self, inputs: Sequence[Sequence[Any]]) -> None:
        self.shapes: list[str] = []
        self.width = 0.0
        self.hues: dict[str, int] = {}
        for row in inputs:
            for item in row:
                for label in labels(item):
                    self.hues.setdefault(label, HUES[len(self.hues) % len(HUES)])

    def _hue(self, label: str) -> int | None:
        if label in self.hues:
            return self.hues[label]
        folded = label.lower()
        for known, hue in self.hues.items():
            stem = known.lower()
            if stem and (folded.startswith(stem) or (stem.startswith(folded) and len(folded) > 0)):
                return hue
        return None

    def _add(self, shape: str, right: float) -> None:
        self.shapes.append(shape)
        self.width = max(self.width, right)

    def text(self, x: float, y: float, text: str, weight: str = "normal") -> float:
        """Draws a text that begins at x and is vertically centered at y. Returns the x position of its end."""
        end = x + len(text) * _CHARACTER
        style = f' font-weight="{weight}"' if weight != "normal" else ""
        self._add(f'<text x="{x:.1f}" y="{y + 4:.1f}"{style}>{escape(text)}</text>', end)
        return end

    def item(self, value: Any, x: float, y: float) -> float:
        """Draws an item that begins at x and is vertically centered at y. Returns the x position of its end."""
        height = _height(value)
        top = y - height / 2
        if isinstance(value, (dict, list, tuple)):
            index = len(self.shapes)
            self.shapes.append("")
            end = x + _PAD
            members = value.items() if isinstance(value, dict) else ((None, member) for member in value)
            for key, member in members:
                if key is not None:
                    end = self.text(end, y, f"{key}:") + 3
                end = self.item(member, end, y) + 3
            end += _PAD - 3
            corner = 9 if isinstance(value, tuple) else 3
            self.shapes[index] = (
                f'<rect x="{x:.1f}" y="{top:.1f}" width="{end - x:.1f}" height="{height}" rx="{corner}" '
                'fill="currentColor" fill-opacity=".06" stroke="currentColor" stroke-opacity=".55"/>'
            )
            self.width = max(self.width, end)
            return end
        if _is_stream(value):
            end = x + 26
            lines = "".join(
                f'<path d="M{x + 6:.1f} {y + shift:.1f}h14" stroke="currentColor" stroke-opacity=".6"/>'
                for shift in (-4, 0, 4)
            )
            box = (
                f'<rect x="{x:.1f}" y="{top:.1f}" width="26" height="{height}" rx="3" fill="none" '
                f'stroke="currentColor" stroke-opacity=".6" stroke-dasharray="3 2"/>'
            )
            self._add(box + lines, end)
            return end
        label = _text(value)
        hue = self._hue(label)
        colour = f"hsl({hue} 75% 50%)" if hue is not None else "currentColor"
        end = x + len(label) * _CHARACTER + 2 * _PAD
        self._add(
            f'<rect x="{x:.1f}" y="{top:.1f}" width="{end - x:.1f}" height="{height}" rx="4" fill="{colour}" '
            f'fill-opacity="{".24" if hue is not None else ".07"}" stroke="{colour}" stroke-opacity=".8"/>',
            end,
        )
        self.text(x + _PAD, y, label)
        return end

    def row(self, items: Sequence[Any], top: float, name: str = "") -> float:
        """Draws a row of items, with an ellipsis for items that do not fit. Returns the y position of the next row."""
        height = max(map(_height, items), default=_HEIGHT)
        x, y = 1.0, top + height / 2
        if name:
            x = self.text(x, y, name, "bold") + 8
        if not items:
            self.text(x, y, "(nothing)")
        for number, item in enumerate(items):
            left, shapes, width = x, len(self.shapes), self.width
            x = self.item(item, left, y)
            room = _WIDTH if number == len(items) - 1 else _WIDTH - 18
            if x > room and number:
                del self.shapes[shapes:]
                self.width = width
                self.text(left, y, "…")
                break
            x += _GAP
        return top + height + 6

    def arrow(self, y: float, code: str) -> None:
        path = f"M12 {y - 13:.1f}v22m-5 -6l5 6l5 -6"
        self._add(f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity=".7" stroke-width="1.5"/>', 18)
        self.text(28, y, code)


def draw(sample: Sample, made: list[list[Any]]) -> str:
    """Returns the picture of a sample as SVG. `made` contains the sample's output rows."""
    drawing = _Drawing([*sample.inputs] or made)
    several = len(sample.inputs) > 1
    y = 1.0
    for name, row in zip(sample.names, sample.inputs, strict=False):
        y = drawing.row(list(row), y, name if several else "")
    joined = several and sample.names != sample.labels
    drawing.arrow(y + 20, sample.code if joined else re.sub(r"^[aim](?=\.)", "", sample.code))
    y += 40
    for row, label in zip_longest(made, sample.labels):
        y = drawing.row(row, y, label or "")
    height = y - 5
    text = f"{_text_of([*sample.inputs])} {sample.code} gives {_text_of(made)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="pipe-picture" role="img" '
        f'viewBox="0 0 {drawing.width + 2:.0f} {height:.0f}" width="{drawing.width + 2:.0f}" height="{height:.0f}" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="12" '
        f'fill="currentColor" color="currentColor"><title>{escape(text)}</title>{"".join(drawing.shapes)}</svg>'
    )


def _text_of(rows: Sequence[Sequence[Any]]) -> str:
    """Describes the rows in words, for screen readers."""

    def one(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key}: {one(member)}" for key, member in value.items()) + "}"
        if isinstance(value, (list, tuple)):
            return "(" + ", ".join(map(one, value)) + ")"
        return "stream" if _is_stream(value) else _text(value)

    return "; ".join(", ".join(map(one, row)) for row in rows)


if __name__ == "__main__":
    with sample_files():
        for group in pipe_groups.GROUPS:
            for sample in group.samples:
                made = outputs(sample, group)
                print(group.key, sample.name, sample.code, made, sep=" | ")
