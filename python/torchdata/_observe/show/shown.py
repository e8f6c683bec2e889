"""Statistics that show themselves: as a table of text, as a picture, in notebooks.

Role: what `DataLoader2.stats` returns. It is made by `reading`; what it shows is made by `table`, `graph` and `html`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchdata._observe.stats.model import LoaderStats

if TYPE_CHECKING:
    from torchdata._drawing.graph import Graph
    from torchdata._drawing.picture import Picture

__all__ = ["ShownStats"]


@dataclass(frozen=True)
class ShownStats(LoaderStats):
    """See `LoaderStats`, whose fields these are."""

    def __str__(self) -> str:
        from torchdata._observe.show.table import as_table

        return as_table(self)

    def picture(self) -> Picture:
        """Draws the pipes of each process, colored by own time, with rates on the arrows.

        A notebook shows it; `.svg()` returns it, and `.save(path)` writes it.
        """
        from torchdata._drawing.picture import Picture

        return Picture(self._torchdata_graph())

    def _torchdata_graph(self) -> Graph:
        from torchdata._observe.show.graph import graph_of_stats

        return graph_of_stats(self)

    def _repr_html_(self) -> str:
        from torchdata._observe.show.html import html_of_stats

        return html_of_stats(self)
