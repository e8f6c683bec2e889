"""The guide "More than one machine" says what happens: its programs that need a Ray cluster are run in one."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import doc_blocks
from ray_cluster import cluster, needs_ray, of_ray

pytest.importorskip("pandas", reason="Ray Data needs pandas, of the parquet extra")
pytest.importorskip("pyarrow", reason="Ray Data needs pyarrow, of the parquet extra")

pytestmark = [pytest.mark.alone, needs_ray, *of_ray]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "more-machines.md"


@pytest.fixture(autouse=True, scope="module")
def ray() -> Iterator[Any]:
    with cluster() as found:
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False
        yield found


def programs() -> list[tuple[str, str]]:
    """The blocks that name this file, each with what the page says that it prints."""
    found = doc_blocks.blocks(PAGE)
    return [
        (one.code, shown.code)
        for one, shown in itertools.pairwise(found)
        if one.reason and Path(__file__).name in one.reason and shown.language == "text"
    ]


def test_what_the_guide_s_programs_print_is_what_it_shows() -> None:
    pytest.importorskip("torch", reason="Ray Train's part of the guide trains with torch")
    pytest.importorskip("tensorboardX", reason="Ray Train needs tensorboardX, of ray[train]")
    # As a program's own module: what that defines is pickled by value.
    names: dict[str, Any] = {"__name__": "__main__"}
    pages = programs()
    assert len(pages) == 2
    for code, shown in pages:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(PAGE), "exec"), names)
        assert shown in printed.getvalue()
