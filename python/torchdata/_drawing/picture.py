"""Computes the layout of a graph's picture, and draws the picture as SVG without external programs. The picture of a
graph without branches fits on a phone's screen."""

from __future__ import annotations

import os
import unicodedata
from collections import defaultdict
from dataclasses import dataclass
from html import escape

from torchdata._drawing.graph import Arrow, DrawnGraph, DrawnGroup, Node

_CHAR, _LINE, _PAD = 6.7, 15, 8
_GAP_X, _GAP_Y, _GROUP_GAP, _MARGIN = 26, 40, 44, 10
_LONGEST = 44
_HOT, _HOTTEST = "#ef6548", 0.8
_TINTS = {"source": ("#4a90d9", 0.25), "end": ("#6aa84f", 0.25), "waits": ("#888888", 0.2), "": ("#888888", 0.0)}
#: A standalone picture has a background and follows the reader's color mode. A picture that is embedded in a page uses
#: the colors of the page.
_STYLE = (
    "<style>svg:root{color:#222}svg:root>.ground{fill:#fff}"
    "@media(prefers-color-scheme:dark){svg:root{color:#ddd}svg:root>.ground{fill:#1a1c1e}}</style>"
)


def _tint_of(node: Node) -> tuple[str, float]:
    """Returns a color for the pipe's share of the time, or for the kind of the pipe if the share is unknown."""
    if node.heat is None:
        return _TINTS[node.kind]
    return _HOT, _HOTTEST * min(1.0, max(0.0, node.heat))


def color_of(node: Node) -> str:
    color, strength = _tint_of(node)
    parts = (int(color[index : index + 2], 16) for index in (1, 3, 5))
    return "#" + "".join(f"{round(255 - strength * (255 - part)):02x}" for part in parts)


def _cells(text: str) -> int:
    return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text)


def _shortened(text: str) -> str:
    """Removes the middle of a text that is too long for the screen of a phone."""
    if _cells(text) <= _LONGEST:
        return text
    kept = _LONGEST // 2 if _cells(text) > len(text) else _LONGEST
    return f"{text[: kept * 2 // 3]}…{text[1 - kept // 3 :]}"


@dataclass
class _Box:
    x: float
    y: float
    width: float
    height: float
    lines: list[str]
    tint: tuple[str, float]
    dashed: bool = False

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


@dataclass
class _Curve:
    points: tuple[tuple[float, float], ...]
    label: str
    label_at: tuple[float, float]
    dashed: bool
    sideways: bool


def _rightmost(curve: _Curve) -> float:
    """Returns an x-coordinate that no point of a curve exceeds. A cubic Bézier curve covers at most three quarters of
    the distance from its ends to its control points."""
    ends, middles = (max(point[0] for point in curve.points[index::step]) for index, step in ((0, 3), (1, 1)))
    return ends + 0.75 * max(0.0, middles - ends)


def _wide(lines: list[str]) -> float:
    return max(map(_cells, lines)) * _CHAR


class Picture:
    """A drawn graph, which a notebook displays."""

    def __init__(self, graph: DrawnGraph) -> None:
        self._boxes: dict[int, _Box] = {}
        self._frames: list[_Box] = []
        self._row_of: dict[int, int] = {}
        self._top_of: dict[int, float] = {}
        groups = sorted(graph.groups, key=lambda group: group.column)
        bottom = float(_MARGIN)
        for number, group in enumerate(groups):
            top = bottom + _GROUP_GAP * (number > 0)
            self._row_of.update((node.key, number) for node in group.nodes)
            self._top_of.update((node.key, top) for node in group.nodes)
            bottom = self._arrange(group, graph.arrows, top)
        self._right = self._centre()
        self._curves_around = 0
        self._curves = [self._curve(arrow) for arrow in graph.arrows]
        ends = [curve.label_at[0] + _cells(curve.label) * _CHAR for curve in self._curves if curve.label]
        right = max([self._right, *ends, *(_rightmost(curve) for curve in self._curves)])
        self.width, self.height = max(40, round(right + _MARGIN)), round(bottom + _MARGIN)

    def _arrange(self, group: DrawnGroup, arrows: list[Arrow], top: float) -> float:
        """Places the nodes of a group in centered rows, each node above the nodes that read from it. Returns the
        y-coordinate of the group's lower edge."""
        keys = {node.key for node in group.nodes}
        within = [(arrow.tail, arrow.head) for arrow in arrows if {arrow.tail, arrow.head} <= keys]
        rank = dict.fromkeys(keys, 0)
        for _ in keys:  # a path has at most as many steps as there are nodes
            for tail, head in within:
                rank[tail] = min(rank[tail], rank[head] - 1)
        rows: dict[int, list[_Box]] = defaultdict(list)
        for node in group.nodes:
            lines = [_shortened(line) for line in (node.title, *node.lines)]
            size = (_wide(lines) + 2 * _PAD, len(lines) * _LINE + _PAD)
            box = _Box(0, 0, *size, lines, _tint_of(node), node.kind == "waits")
            self._boxes[node.key] = box
            rows[rank[node.key]].append(box)
        title = [_shortened(line) for line in group.title.split(": ", 1)] if group.title else []
        frame = 10 if title else 0
        total = max(sum(box.width + _GAP_X for box in row) - _GAP_X for row in rows.values())
        total = max(total, _wide(title) if title else 0)
        y = top + frame + _LINE * len(title)
        for _, row in sorted(rows.items()):
            left = (_GAP_X - sum(box.width + _GAP_X for box in row)) / 2
            for box in row:
                box.x, box.y = left, y
                left += box.width + _GAP_X
            y += max(box.height for box in row) + _GAP_Y
        bottom = y - _GAP_Y + frame
        if title:
            half = total / 2 + frame
            self._frames.append(_Box(-half, top, 2 * half, bottom - top, title, ("#888888", 0.06)))
        return bottom

    def _centre(self) -> float:
        """Shifts the graph horizontally so that it begins at the left margin. Returns the largest x-coordinate."""
        shapes = [*self._boxes.values(), *self._frames]
        shift = _MARGIN - min((box.x for box in shapes), default=0.0)
        for box in shapes:
            box.x += shift
        return max((box.x + box.width for box in shapes), default=0.0)

    def _curve(self, arrow: Arrow) -> _Curve:
        tail, head = self._boxes[arrow.tail], self._boxes[arrow.head]
        if self._row_of[arrow.head] - self._row_of[arrow.tail] > 1:
            return self._curve_around(arrow, tail, head)
        # An arrow between two processes ends above the title of the receiving process.
        start = (tail.middle, tail.y + tail.height)
        end = (head.middle, self._top_of[arrow.head] if arrow.crosses else head.y)
        bend = (end[1] - start[1]) / 2
        points = (start, (start[0], start[1] + bend), (end[0], end[1] - bend), end)
        label_at = ((start[0] + end[0]) / 2 + 6, (start[1] + end[1]) / 2 + (9 if arrow.crosses else 4))
        return _Curve(points, arrow.label, label_at, arrow.crosses, sideways=False)

    def _curve_around(self, arrow: Arrow, tail: _Box, head: _Box) -> _Curve:
        self._curves_around += 1
        aside = self._right + 12 * self._curves_around - 4
        start, end = (tail.x + tail.width, tail.y + tail.height / 2), (head.x + head.width, head.y + head.height / 2)
        # The control points lie to the right of all boxes, so that the curve avoids the boxes between its two ends.
        points = (start, *((x + (aside - x) / 0.5, y) for x, y in (start, end)), end)
        label_at = (tail.x, tail.y + tail.height + 10 + 16)
        return _Curve(points, arrow.label, label_at, arrow.crosses, sideways=True)

    def svg(self) -> str:
        """Returns the picture as an SVG document."""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
            f'viewBox="0 0 {self.width} {self.height}" font-family="monospace" font-size="11">',
            f'{_STYLE}<rect class="ground" width="{self.width}" height="{self.height}" fill="none"/>',
        ]
        parts += [_svg_box(frame, 0.35) for frame in self._frames]
        parts += map(_svg_curve, self._curves)
        parts += [_svg_box(box, 0.8) for box in self._boxes.values()]
        return "\n".join([*parts, "</svg>"])

    def _repr_svg_(self) -> str:
        return self.svg()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture to a file with a name that ends in `.svg`.

        Browsers and programs such as `rsvg-convert` convert the SVG file to other formats; `to_graph` draws the graph
        with graphviz instead.

        Raises:
            ValueError: the path does not end in `.svg`.
        """
        if os.path.splitext(os.fspath(path))[1].lower() != ".svg":
            raise ValueError(f"a picture can only be saved as an .svg file, but got {os.fspath(path)!r}")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.svg())


def _svg_box(box: _Box, line: float) -> str:
    """Draws a box with a bold first line. `line` is the opacity of the border."""
    dash = ' stroke-dasharray="4 3"' if box.dashed else ""
    color, strength = box.tint
    parts = [
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="4" '
        f'fill="{color}" fill-opacity="{strength:.2f}" stroke="currentColor" stroke-opacity="{line}"{dash}/>'
    ]
    for number, text in enumerate(box.lines):
        weight = ' font-weight="bold"' if number == 0 else ""
        parts.append(
            f'<text x="{box.x + _PAD:.1f}" y="{box.y + 13 + _LINE * number:.1f}" fill="currentColor"{weight}'
            f"{_text_length(text)}>{escape(text)}</text>"
        )
    return "".join(parts)


def _text_length(text: str) -> str:
    """Returns SVG attributes that stretch a text to the width that the layout has reserved, in any font."""
    return f' textLength="{_cells(text) * _CHAR:.1f}" lengthAdjust="spacingAndGlyphs"' if text else ""


def _svg_curve(curve: _Curve) -> str:
    (a, b), *rest = curve.points
    path = f"M{a:.1f} {b:.1f} C" + " ".join(f"{x:.1f} {y:.1f}" for x, y in rest)
    dash = ' stroke-dasharray="5 3"' if curve.dashed else ""
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in _head(curve))
    x, y = curve.label_at
    label = (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="currentColor" fill-opacity="0.85"{_text_length(curve.label)}>'
        f"{escape(curve.label)}</text>"
    )
    return (
        f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity="0.7"{dash}/>'
        f'<polygon points="{corners}" fill="currentColor" fill-opacity="0.7"/>{label if curve.label else ""}'
    )


def _head(curve: _Curve) -> list[tuple[float, float]]:
    x, y = curve.points[3]
    return [(x, y), (x + 8, y - 4), (x + 8, y + 4)] if curve.sideways else [(x, y), (x - 4, y - 8), (x + 4, y - 8)]
