"""Statistics that display themselves as a text table, as a picture, and in notebooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchdata._observe.stats.model import LoaderStats

if TYPE_CHECKING:
    from torchdata._drawing.graph import DrawnGraph
    from torchdata._drawing.picture import Picture


@dataclass(frozen=True)
class ShownStats(LoaderStats):
    """`LoaderStats` that can be displayed."""

    def __str__(self) -> str:
        from torchdata._observe.show.table import as_table

        return as_table(self)

    def picture(self) -> Picture:
        """Draws the pipes of each process. The colors show the time of each pipe, and the arrows show rates.

        A notebook displays the result. `.svg()` returns the picture as SVG, and `.save(path)` writes it to a file.
        """
        from torchdata._drawing.picture import Picture

        return Picture(self._torchdata_graph())

    def _torchdata_graph(self) -> DrawnGraph:
        from torchdata._observe.show.graph import graph_of_stats

        return graph_of_stats(self)

    def _repr_html_(self) -> str:
        from torchdata._observe.show.html import html_of_stats

        return html_of_stats(self)
