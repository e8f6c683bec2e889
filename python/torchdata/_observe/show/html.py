"""Displays of loaders and statistics in notebooks: tables, the diagnosis and a picture."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from torchdata._drawing.html import page, picture_in, table
from torchdata._observe.show.graph import graph_of_stats
from torchdata._observe.show.table import as_table, pipe_rows, process_rows
from torchdata.datapipes._pipe.showing import html_of_pipe

if TYPE_CHECKING:
    from torchdata._observe.stats.model import LoaderStats


def html_of_stats(stats: LoaderStats) -> str:
    summary = "<br>".join(escape(line) for line in as_table(stats).split("\n\n")[0].splitlines())
    parts = [f'<p style="font-size:12px">{summary}</p>', table(process_rows(stats.processes), left=3)]
    if stats.pipes:
        parts += ["<br>", table(pipe_rows(stats.pipes), left=2)]
    return page("stats", *parts, picture_in(graph_of_stats(stats)))


def html_of_loader(loader: Any) -> str:
    """Shows the statistics of a loader, or its pipeline before the first epoch."""
    head = f"<p><code>{escape(repr(loader))}</code></p>"
    stats = loader.stats()
    if not stats.processes:
        pipe = loader.datapipe
        return page("loader", head, html_of_pipe(pipe) if pipe is not None else "")
    verdict = f'<p style="font-weight:bold">{escape(str(loader.diagnose()))}</p>'
    return page("loader", head, verdict, html_of_stats(stats))
