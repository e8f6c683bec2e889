"""Draws docs/imports.svg: the folders of the package, and which folders they import.

A test checks that the imports in the code follow the layers, and that the picture matches the code.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from html import escape
from pathlib import Path

import grimp

__all__ = ["EXEMPT", "LAYERS", "circles", "folder_of", "folders", "picture", "upward"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "imports.svg"

#: The folders and top-level modules of the package, from the highest layer to the lowest. Folders on the same line do
#: not import each other.
LAYERS = (
    "metrics __main__",
    "nodes stateful_dataloader",
    "dataloader2",
    "dataloader2.utils dataloader2.reading_service",
    "dataloader2.services",
    "dataloader2.state",
    "dataloader2.linter",
    "dataloader2.graph dataloader2.error",
    "dataloader2.random",
    "_engine.remote",
    "_engine.workers",
    "_engine",
    "_engine.items",
    "_engine.processes",
    "_observe",
    "datapipes",
    "datapipes.iter datapipes.map",
    "datapipes.iter.archives datapipes.iter.stores datapipes.iter.disk_cache datapipes.iter.web datapipes.iter.threads "
    "datapipes.iter.branching datapipes.iter.mapping datapipes.iter.ordering",
    "datapipes.iter.streams",
    "datapipes.state datapipes.utils",
    "datapipes.datapipe",
    "datapipes._pipe",
    "datapipes._pipe.state",
    "datapipes._pipe.graph _users_code",
    "images _ranks _read_ahead _reporting _publishing _drawing _plain_pickles",
    "_by_value _machine _optional _old_modules _redacting _stateful _threads _version",
    "_bounded_pickles _handlers _importing _signatures",
)

#: Allowed imports from a lower layer to a higher layer, with the reason why each import is allowed.
EXEMPT = {
    (
        "datapipes._pipe",
        "datapipes.datapipe",
    ): "modules such as checks import the two base modules, which import some of the folder, without a cycle"
}

_WIDTH, _ROW, _BOX, _GAP = 1120, 62, 30, 12


def folders() -> list[str]:
    return " ".join(LAYERS).split()


def folder_of(module: str) -> str:
    """Returns the folder of a module; an empty text for the package itself."""
    name = module.removeprefix("torchdata").removeprefix(".")
    while name and name not in folders():
        name = name.rpartition(".")[0]
    return name


def imports() -> dict[tuple[str, str], set[tuple[str, str]]]:
    """Returns, for each pair of folders, the pairs of an importing and an imported module."""
    graph = _graph()
    found: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            pair = folder_of(module), folder_of(imported)
            if "" not in pair and pair[0] != pair[1]:
                found.setdefault(pair, set()).add((module, imported))
    return found


def upward() -> dict[tuple[str, str], set[tuple[str, str]]]:
    layer = {folder: number for number, line in enumerate(LAYERS) for folder in line.split()}
    return {
        pair: modules for pair, modules in imports().items() if layer[pair[0]] >= layer[pair[1]] and pair not in EXEMPT
    }


def circles() -> list[list[str]]:
    """Returns the groups of modules, and the groups of top-level folders, that import each other in a circle.

    Imports inside functions and for type checkers count like any other import. A package's `__init__.py` is not part of
    a circle, because it only repeats the names of its modules.
    """
    graph = _graph()
    facades = {module for module in graph.modules if graph.find_children(module)}
    modules: dict[str, set[str]] = {}
    folders: dict[str, set[str]] = {}
    for module in graph.modules - {"torchdata"}:
        below = graph.find_modules_directly_imported_by(module) - {"torchdata"}
        folder = module.split(".")[1]
        folders.setdefault(folder, set()).update({other.split(".")[1] for other in below} - {folder})
        if module not in facades:
            modules[module] = below - facades
    return [*_circles(modules), *_circles(folders)]


def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("torchdata", cache_dir=None)


def _circles(below: dict[str, set[str]]) -> list[list[str]]:
    reached = {one: _reach(one, below) for one in below}
    together = {
        tuple(sorted(other for other in reached[one] if one in reached[other])) for one in below if one in reached[one]
    }
    return sorted(map(list, together))


def _reach(start: str, below: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(below[start])
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += below[module]
    return found


def _needed(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns the arrows to draw. An arrow is omitted if a chain of other arrows connects the same two folders."""
    pairs = {pair for pair in pairs if pair not in EXEMPT}
    below: dict[str, set[str]] = {folder: set() for folder in folders()}
    for first, second in pairs:
        below[first].add(second)
    return sorted(
        (first, second)
        for first, second in pairs
        if not any(second in _reach(other, below) for other in below[first] - {second, first})
    )


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Draws an arrow that bends around the folders between its ends."""
    (x, y), (to_x, to_y) = (start[0], start[1] + _BOX), (end[0], end[1] - 4)
    layers = round((to_y - y) / _ROW)
    aside = 0 if layers < 1 else min(60 + 34 * layers, 380)
    if to_x < x or (to_x == x and layers % 2):
        aside = -aside
    bend = f"{x + aside:.0f} {y + 24:.0f} {to_x + aside:.0f} {to_y - 24:.0f}"
    return f'<path d="M{x:.0f} {y:.0f} C{bend} {to_x:.0f} {to_y:.0f}"/>'


def picture() -> str:
    at: dict[str, tuple[float, float]] = {}  # for each folder, the middle of its top edge
    drawn: list[str] = []
    for number, line in enumerate(LAYERS):
        names = line.split()
        widths = [7.3 * len(name.rpartition(".")[2] if len(names) > 4 else name) + 20 for name in names]
        left = (_WIDTH - sum(widths) - _GAP * (len(names) - 1)) / 2
        top = 10 + number * _ROW
        for name, width in zip(names, widths, strict=True):
            shown = name.rpartition(".")[2] if len(names) > 4 else name
            drawn.append(
                f'<rect x="{left:.0f}" y="{top}" width="{width:.0f}" height="{_BOX}" rx="6"/>'
                f'<text x="{left + width / 2:.0f}" y="{top + 20}">{escape(shown)}</text>'
            )
            at[name] = left + width / 2, top
            left += width + _GAP
    arrows = [_arrow(at[first], at[second]) for first, second in _needed(imports()) if at[first][1] < at[second][1]]
    height = 10 + len(LAYERS) * _ROW
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
            "<title>The folders of the package and their imports</title>",
            "<style>rect{fill:#dfe9fc;stroke:#5b8def}text{font:12px "
            "monospace;text-anchor:middle;fill:#223}path{stroke:#8888;fill:none;marker-end:url(#tip)}</style>",
            '<marker id="tip" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
            '<path d="M0 0L6 3L0 6z" style="fill:#888;stroke:none;marker-end:none"/></marker>',
            *arrows,
            *drawn,
            "</svg>",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if the picture is out of date")
    if not parser.parse_args().check:
        PAGE.write_text(picture(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != picture():
        sys.exit("docs/imports.svg is out of date: run `make picture`")


if __name__ == "__main__":
    main()
