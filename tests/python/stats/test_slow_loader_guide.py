"""The pictures of the guide for slow loaders exist, are displayed, and match the guide's examples."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "slow-loader.md"
TEXT = PAGE.read_text(encoding="utf-8")
SHOWN = re.findall(r"^!\[(.{20,})\]\((slow-loader/\w+\.svg)\)$", TEXT, re.M)


def test_each_case_has_a_verdict_and_a_picture_that_its_example_saves() -> None:
    cases = re.split(r"^## \d\. ", TEXT.partition("## See")[0], flags=re.M)[1:]
    assert len(cases) == 5
    for case in cases:
        [picture] = re.findall(r"\(slow-loader/(\w+\.svg)\)", case)
        assert f'"{picture}"' in case, f"{picture} is not what the example draws"
        assert re.search(r"^(Loading|A skewed|The dispatching|The first|The memory)", case, re.M)
    assert {Path(path).name for _, path in SHOWN} == {path.name for path in PAGE.with_suffix("").iterdir()}


@pytest.mark.parametrize("path", [path for _, path in SHOWN])
def test_a_picture_shows_pipes_of_the_page_in_their_processes(path: str) -> None:
    root = ElementTree.parse(PAGE.parent / path).getroot()
    texts = list(root.iter("{http://www.w3.org/2000/svg}text"))
    titles = [element.text or "" for element in texts if element.get("font-weight") == "bold"]
    functions = {found for title in titles for found in re.findall(r"\((\w+)\)", title)}
    assert functions
    assert all(f"def {function}(" in TEXT for function in functions)
    words = [element.text or "" for element in texts]
    assert {"main", "2 workers"} <= {*words} or {"main", "worker process 1"} <= {*words}
