"""Pictures of graphs, drawn without any program: where everything lies, and then SVG or PNG of it.

Role: a column for each process, from left to right as items go; in it the pipes from top to bottom. PNG needs Pillow.
"""

from __future__ import annotations

import io
import os
from collections import defaultdict
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from torchdata._drawing.graph import Arrow, Graph, Group, Node
from torchdata._optional import optional_import

__all__ = ["Picture", "color_of"]

_CHAR, _LINE, _PAD = 6.7, 15, 8  # of 11 pixel type
_GAP_X, _GAP_Y, _GROUP_GAP = 26, 40, 150
#: From cold to hot.
_HEAT = ((255, 255, 255), (254, 232, 200), (253, 187, 132), (239, 101, 72))
_FILL = {"source": "#dbe9f6", "end": "#e2f0d9", "waits": "#eeeeee", "": "#ffffff"}


def color_of(node: Node) -> str:
    """The color that a pipe is filled with: by its share of the work, else by its kind."""
    if node.heat is None:
        return _FILL[node.kind]
    place = min(1.0, max(0.0, node.heat)) * (len(_HEAT) - 1)
    low = min(int(place), len(_HEAT) - 2)
    mixed = (round(a + (b - a) * (place - low)) for a, b in zip(_HEAT[low], _HEAT[low + 1], strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


@dataclass
class _Box:
    x: float
    y: float
    width: float
    height: float
    lines: list[str]
    fill: str = "#ffffff"
    dashed: bool = False

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


@dataclass
class _Curve:
    points: tuple[tuple[float, float], ...]  # a cubic Bézier curve
    label: str
    label_at: tuple[float, float]
    dashed: bool


class Picture:
    """A drawn graph. In a notebook it shows itself.

    Args:
        graph: what is drawn.
    """

    def __init__(self, graph: Graph) -> None:
        self._boxes: dict[int, _Box] = {}
        self._frames: list[_Box] = []
        x = height = 10.0
        for column in sorted({group.column for group in graph.groups}):
            top, widest = 10.0, 0.0
            for group in (group for group in graph.groups if group.column == column):
                width, bottom = self._place(group, graph.arrows, x, top)
                top, widest = bottom + _GAP_X, max(widest, width)
                height = max(height, bottom)
            x += widest + _GROUP_GAP
        self._curves = [self._curve(arrow) for arrow in graph.arrows]
        self.width, self.height = max(40, round(x - _GROUP_GAP + 10)), round(height + 10)

    def _place(self, group: Group, arrows: list[Arrow], x: float, top: float) -> tuple[float, float]:
        """Places a group's nodes, each just above those that read it; returns its width and its lower end."""
        keys = {node.key for node in group.nodes}
        within = [(arrow.tail, arrow.head) for arrow in arrows if {arrow.tail, arrow.head} <= keys]
        rank = dict.fromkeys(keys, 0)
        for _ in keys:  # a longest way has no more steps than there are nodes
            for tail, head in within:
                rank[tail] = min(rank[tail], rank[head] - 1)
        rows: dict[int, list[_Box]] = defaultdict(list)
        for node in group.nodes:
            lines = [node.title, *node.lines]
            width = max(len(line) for line in lines) * _CHAR + 2 * _PAD
            box = _Box(0, 0, width, len(lines) * _LINE + _PAD, lines, color_of(node), node.kind == "waits")
            self._boxes[node.key] = box
            rows[rank[node.key]].append(box)
        frame = 10 if group.title else 0
        total = max(sum(box.width + _GAP_X for box in row) - _GAP_X for row in rows.values())
        total = max(total, len(group.title) * _CHAR)
        y = top + frame + (_LINE if group.title else 0)
        for _, row in sorted(rows.items()):
            left = x + frame + (total - sum(box.width + _GAP_X for box in row) + _GAP_X) / 2
            for box in row:
                box.x, box.y = left, y
                left += box.width + _GAP_X
            y += max(box.height for box in row) + _GAP_Y
        bottom = y - _GAP_Y + frame
        if group.title:
            self._frames.append(_Box(x, top, total + 2 * frame, bottom - top, [group.title], "#fafafa"))
        return total + 2 * frame, bottom

    def _curve(self, arrow: Arrow) -> _Curve:
        tail, head = self._boxes[arrow.tail], self._boxes[arrow.head]
        if arrow.crosses:
            start, end = (tail.x + tail.width, tail.y + tail.height / 2), (head.x, head.y + head.height / 2)
            bend = max(40.0, (end[0] - start[0]) / 2)
            points = (start, (start[0] + bend, start[1]), (end[0] - bend, end[1]), end)
            aside = 16 if start[1] >= end[1] else -7  # where the curve does not go
            label_at = (start[0] + 8, start[1] + aside)
        else:
            start, end = (tail.middle, tail.y + tail.height), (head.middle, head.y)
            bend = (end[1] - start[1]) / 2
            points = (start, (start[0], start[1] + bend), (end[0], end[1] - bend), end)
            label_at = ((start[0] + end[0]) / 2 + 6, (start[1] + end[1]) / 2 + 4)
        return _Curve(points, arrow.label, label_at, arrow.crosses)

    # -- SVG ---------------------------------------------------------------------------------------

    def svg(self) -> str:
        """The picture as an SVG document."""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
            f'viewBox="0 0 {self.width} {self.height}" font-family="monospace" font-size="11">',
            f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>',
        ]
        for frame in self._frames:
            parts.append(_svg_box(frame, "#bbbbbb", bold_first=False))
        for curve in self._curves:
            parts.append(_svg_curve(curve))
        for box in self._boxes.values():
            parts.append(_svg_box(box, "#555555", bold_first=True))
        return "\n".join([*parts, "</svg>"])

    def _repr_svg_(self) -> str:
        return self.svg()

    # -- PNG ---------------------------------------------------------------------------------------

    def png(self, scale: int = 2) -> bytes:
        """The picture as PNG, of so many pixels for each of the SVG's.

        Raises:
            ModuleNotFoundError: Pillow is not installed (extra `image`).
        """
        image = optional_import("PIL.Image", extra="image", needed_by="a picture as PNG")
        drawing = optional_import("PIL.ImageDraw", extra="image", needed_by="a picture as PNG")
        fonts = optional_import("PIL.ImageFont", extra="image", needed_by="a picture as PNG")
        canvas = image.new("RGB", (self.width * scale, self.height * scale), "#ffffff")
        pen = _Pen(drawing.Draw(canvas), *_font(fonts, 11 * scale), scale)
        for frame in self._frames:
            pen.box(frame, "#bbbbbb")
        for curve in self._curves:
            pen.curve(curve)
        for box in self._boxes.values():
            pen.box(box, "#555555")
        out = io.BytesIO()
        canvas.save(out, "PNG")
        return out.getvalue()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture to a file whose name ends in `.svg` or `.png`.

        Raises:
            ValueError: it ends otherwise.
        """
        suffix = os.path.splitext(os.fspath(path))[1].lower()
        if suffix not in (".svg", ".png"):
            raise ValueError(f"a picture is saved as .svg or .png, not as {os.fspath(path)!r}")
        data = self.svg().encode() if suffix == ".svg" else self.png()
        with open(path, "wb") as file:
            file.write(data)


def _svg_box(box: _Box, stroke: str, *, bold_first: bool) -> str:
    dash = ' stroke-dasharray="4 3"' if box.dashed else ""
    parts = [
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="4" '
        f'fill="{box.fill}" stroke="{stroke}"{dash}/>'
    ]
    for number, line in enumerate(box.lines):
        weight = ' font-weight="bold"' if bold_first and number == 0 else ""
        parts.append(
            f'<text x="{box.x + _PAD:.1f}" y="{box.y + 13 + _LINE * number:.1f}" fill="#222222"{weight}>'
            f"{escape(line)}</text>"
        )
    return "".join(parts)


def _svg_curve(curve: _Curve) -> str:
    (a, b), *rest = curve.points
    path = f"M{a:.1f} {b:.1f} C" + " ".join(f"{x:.1f} {y:.1f}" for x, y in rest)
    dash = ' stroke-dasharray="5 3"' if curve.dashed else ""
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in _head(curve))
    x, y = curve.label_at
    label = (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="#555555" stroke="#ffffff" stroke-width="3" paint-order="stroke">'
        f"{escape(curve.label)}</text>"
    )
    return (
        f'<path d="{path}" fill="none" stroke="#555555"{dash}/><polygon points="{corners}" fill="#555555"/>'
        f"{label if curve.label else ''}"
    )


def _head(curve: _Curve) -> list[tuple[float, float]]:
    """The corners of the arrow's head."""
    (x, y), sideways = curve.points[3], curve.dashed
    return [(x, y), (x - 8, y - 4), (x - 8, y + 4)] if sideways else [(x, y), (x - 4, y - 8), (x + 4, y - 8)]


def _font(fonts: Any, pixels: int) -> tuple[Any, bool]:
    """A font, and whether it has all letters that are drawn: Pillow's own has not."""
    for name in ("DejaVuSansMono.ttf", "LiberationMono-Regular.ttf", "Menlo.ttc"):
        try:
            return fonts.truetype(name, pixels), True
        except OSError:
            continue
    return fonts.load_default(pixels), False


class _Pen:
    """Draws on a Pillow image."""

    def __init__(self, draw: Any, font: Any, has_all: bool, scale: int) -> None:
        self._draw, self._font, self._has_all, self._scale = draw, font, has_all, scale

    def _text(self, x: float, y: float, text: str, color: str, halo: int = 0) -> None:
        if not self._has_all:
            text = text.replace("µ", "u").replace("…", "...")
        place = self._at(x, y)
        self._draw.text(place, text, color, self._font, stroke_width=halo, stroke_fill="#ffffff")

    def _at(self, *numbers: float) -> list[float]:
        return [number * self._scale for number in numbers]

    def box(self, box: _Box, stroke: str) -> None:
        corners = self._at(box.x, box.y, box.x + box.width, box.y + box.height)
        self._draw.rounded_rectangle(corners, 4 * self._scale, box.fill, stroke, self._scale)
        for number, line in enumerate(box.lines):
            self._text(box.x + _PAD, box.y + 3 + _LINE * number, line, "#222222")

    def curve(self, curve: _Curve) -> None:
        steps = [_bezier(curve.points, step / 24) for step in range(25)]
        for number, (one, other) in enumerate(pairwise(steps)):
            if not curve.dashed or number % 2 == 0:
                self._draw.line(self._at(*one, *other), "#555555", self._scale)
        self._draw.polygon([tuple(self._at(*corner)) for corner in _head(curve)], "#555555")
        self._text(curve.label_at[0], curve.label_at[1] - 10, curve.label, "#555555", 2 * self._scale)


def _bezier(points: tuple[tuple[float, float], ...], t: float) -> tuple[float, float]:
    weights = ((1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t * t, t**3)
    return (
        sum(weight * x for weight, (x, _) in zip(weights, points, strict=True)),
        sum(weight * y for weight, (_, y) in zip(weights, points, strict=True)),
    )
