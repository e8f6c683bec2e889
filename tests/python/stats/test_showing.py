"""Pipes, loaders and statistics can be displayed as text, as images and in notebooks."""

import html
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from torchdata._drawing.graph import Arrow, DrawnGraph, DrawnGroup, Node
from torchdata._drawing.picture import Picture, color_of
from torchdata._observe.show import table
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService, SequentialReadingService
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.map import SequenceWrapper
from torchdata.datapipes.utils import to_graph

pytestmark = pytest.mark.alone


def slow(item: int) -> int:
    return sum(range(30_000)) and item


class Remote(IterDataPipe[int]):
    def __init__(self, source_datapipe: Any, auth_token: str, storage_options: dict[str, str], data: Any) -> None:
        self.source_datapipe = source_datapipe
        self.auth_token = auth_token
        self.storage_options = storage_options
        self.data = data


class Loud:
    def __repr__(self) -> str:
        raise AssertionError("this object must not be printed")


@pytest.fixture(scope="module")
def loader() -> Any:
    pipe = IterableWrapper(range(200)).shuffle(buffer_size=10).sharding_round_robin_dispatch()
    pipe = pipe.map(slow).map(abs).batch(4)
    service = MultiProcessingReadingService(2, "fork")
    with DataLoader2(pipe.prefetch(2), reading_service=service, stats="full") as loader:
        assert len(list(loader)) == 50
        yield loader


def test_str_of_a_pipe_is_the_chain_with_parameters_and_repr_its_class() -> None:
    pipe = IterableWrapper(range(3)).map(slow).zip(IterableWrapper("ab")).batch(2, drop_last=True)
    assert str(pipe) == (
        "1 IterableWrapper(iterable=range(0, 3))\n"
        "2 Mapper(fn=slow)\n"
        "3 IterableWrapper(iterable='ab')\n"
        "4 Zipper() of 2, 3\n"
        "5 Batcher(batch_size=2, drop_last=True)"
    )
    assert repr(pipe) == "Batcher", "repr() names the pipe as messages do"
    assert str(SequenceWrapper([1]).map(str)).splitlines()[1] == "2 Mapper(fn=str)"
    printed: list[str] = []
    printer = type("Printer", (), {"text": staticmethod(printed.append)})
    for is_in_a_cycle in (False, True):
        pipe._repr_pretty_(printer, is_in_a_cycle)
    assert printed == [str(pipe), "Batcher"], "IPython shows the chain"


def test_secrets_and_data_are_not_printed() -> None:
    numpy = pytest.importorskip("numpy")
    pipe = Remote(IterableWrapper(list(range(100_000))), "s3cret", {"key": "s3cret"}, Loud())
    shown = str(pipe) + pipe._repr_html_()
    assert "s3cret" not in shown
    assert "Remote(auth_token=…, storage_options=…, data=<Loud>)" in shown
    assert len(shown) < 4000
    assert "iterable=<ndarray of (5, 2)>" in str(IterableWrapper(numpy.zeros((5, 2))))


def test_repr_of_a_loader_contains_the_service_and_its_state() -> None:
    service = SequentialReadingService(MultiProcessingReadingService(1, "fork", in_order=False))
    loader = DataLoader2(IterableWrapper(range(3)).sharding_filter(), reading_service=service)
    named = (
        "<DataLoader2 of ShardingFilter, read by "
        "SequentialReadingService(MultiProcessingReadingService(num_workers=1, multiprocessing_context='fork', "
        "in_order=False)), "
    ).replace("ShardingFilter", type(loader.datapipe).__qualname__)
    states = [repr(loader)]
    iterator = iter(loader)
    next(iterator)
    states.append(repr(loader))
    list(iterator)
    states.append(repr(loader))
    loader.shutdown()
    states.append(repr(loader))
    ends = ["not begun>", "in epoch 1>", "between epochs, after 1>", "shut down>"]
    assert states == [named + end for end in ends]
    assert repr(DataLoader2(IterableWrapper([]))).endswith("read by this process, not begun>")
    assert repr(DataLoader2.__new__(DataLoader2)) == "<DataLoader2, not made>"


def texts(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_the_picture_of_a_loader_shows_processes_rates_and_own_times(loader: Any) -> None:
    svg = loader.picture().svg()
    words = texts(svg)
    titled = [words[index - 1] for index, word in enumerate(words) if word.startswith("busy ")]
    assert titled == ["the dispatching process", "2 workers", "main"]
    assert any(re.fullmatch(r"own [\d.]+ (ms|µs) an item", word) for word in words)
    assert sum(bool(re.fullmatch(r"[\d.]+( k)?/s", word)) for word in words) == 6, "within processes"
    assert sum(bool(re.fullmatch(r"[\d.]+( k)?/s, .*B/s", word)) for word in words) == 2, "between them"
    assert words.count("Mapper(slow)") == 1, "workers that run the same are drawn once"


def test_the_hottest_pipe_is_the_one_that_works_most(loader: Any) -> None:
    graph = loader.stats()._torchdata_graph()
    workers = graph.groups[1].nodes
    hottest = max(workers, key=lambda node: node.heat or 0.0)
    assert hottest.title == "Mapper(slow)"
    busy = sum(worker.busy for worker in loader.stats().workers) / 2
    assert hottest.heat is not None
    assert 0.8 * busy < hottest.heat <= busy
    assert sum(node.heat or 0.0 for node in workers) == pytest.approx(busy)
    assert {color_of(node) for node in workers if node.kind == "waits"} == {"#e7e7e7"}
    colors = [color_of(Node("", [], heat)) for heat in (0.0, 0.25, 0.5, 0.75, 1.0)]
    greens = [int(color[3:5], 16) for color in colors]
    assert greens == sorted(greens, reverse=True), "slower pipes are redder"
    assert (colors[0], colors[-1]) == ("#ffffff", "#f2846d")


def test_workers_that_have_very_different_work_are_drawn_one_by_one() -> None:
    pipe = IterableWrapper(range(2)).sharding_filter().flatmap(lambda item: range(90 if item else 10))
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, "fork")) as loader:
        list(loader)
        graph = loader.stats()._torchdata_graph()
    assert [(group.title.partition(":")[0], group.column) for group in graph.groups] == [
        ("worker process 0", 1),
        ("worker process 1", 1),
        ("main", 2),
    ]
    assert sum(arrow.crosses for arrow in graph.arrows) == 2


def test_boxes_do_not_overlap_and_are_within_the_picture(loader: Any) -> None:
    for picture in (loader.picture(), Picture(loader.stats()._torchdata_graph())):
        boxes = list(picture._boxes.values())
        for number, one in enumerate(boxes):
            assert one.x >= 0
            assert one.y >= 0
            assert one.x + one.width <= picture.width
            assert one.y + one.height <= picture.height
            for other in boxes[:number]:
                is_beside = one.x + one.width <= other.x or other.x + other.width <= one.x
                above = one.y + one.height <= other.y or other.y + other.height <= one.y
                assert is_beside or above


def test_pictures_are_saved_as_svg(loader: Any, tmp_path: Path) -> None:
    nodes = loader.stats()._torchdata_graph().groups[1].nodes
    picture = loader.picture()
    picture.save(tmp_path / "loader.svg")
    root = ElementTree.parse(tmp_path / "loader.svg").getroot()
    assert (root.get("width"), root.get("height")) == (str(picture.width), str(picture.height))
    boxes = list(root.iter("{http://www.w3.org/2000/svg}rect"))
    hot = [float(box.get("fill-opacity", "")) for box in boxes if box.get("fill") == "#ef6548"]
    assert max(hot) == pytest.approx(0.8 * max(node.heat or 0.0 for node in nodes), abs=0.01)
    with pytest.raises(ValueError, match=r"saved as an \.svg file, but got"):
        picture.save(tmp_path / "loader.png")


def test_a_picture_with_long_words_fits_a_phone_and_its_text_is_escaped(loader: Any) -> None:
    graph = DrawnGraph()
    graph.add(DrawnGroup("<b>&", [Node("</text><script>", ['"quoted"'])]))
    assert texts(Picture(graph).svg()) == ["<b>&", "</text><script>", '"quoted"']
    graph = DrawnGraph()
    for column, title in enumerate(("dispatching", "workers", "main")):
        graph.add(DrawnGroup(f"{title}: busy", [Node(f"Mapper({'a_long_name' * 9})", ["日本語" * 20, "x"])], column))
    graph.arrows.append(Arrow(0, 1, "1000 k/s, 1000.1 KiB/s", crosses=True))
    graph.arrows.append(Arrow(1, 2, "1000 k/s, 1000.1 KiB/s", crosses=True))
    drawn = Picture(graph)
    assert max(drawn.width, loader.picture().width) <= 400
    assert all(text.endswith(")") for text in texts(drawn.svg()) if text.startswith("Mapper")), "cut in the middle"
    widest = max(float(length) for length in re.findall(r'textLength="([\d.]+)"', drawn.svg()))
    assert widest < min(box.width for box in drawn._boxes.values())


def test_a_picture_has_the_colors_of_its_page_or_of_the_reader_s_mode(loader: Any) -> None:
    root = ElementTree.fromstring(loader.picture().svg())
    by_tag: dict[str, list[ElementTree.Element]] = {}
    for element in root.iter():
        by_tag.setdefault(element.tag.rpartition("}")[2], []).append(element)
    assert {text.get("fill") for text in by_tag["text"]} == {"currentColor"}
    assert {line.get("stroke") for line in (*by_tag["path"], *by_tag["rect"][1:])} == {"currentColor"}
    ground, *boxes = by_tag["rect"]
    assert ground.get("fill") == "none"
    assert all(float(box.get("fill-opacity", "1")) <= 0.8 for box in boxes), "the page's background is visible"
    style = by_tag["style"][0].text or ""
    assert "@media(prefers-color-scheme:dark)" in style
    selectors = re.findall(r"([\w:>. -]+)\{[^{}]*\}", style)
    assert len(selectors) == 4
    assert all(one.startswith("svg:root") for one in selectors), "in an HTML page, the svg element is not the root"


def test_to_graph_of_a_loader_has_a_cluster_for_each_kind_of_process(loader: Any) -> None:
    pytest.importorskip("graphviz", reason="to_graph needs graphviz")
    for drawn in (to_graph(loader), to_graph(loader.stats())):
        source = drawn.source
        assert source.count("subgraph cluster_") == 3
        assert re.search(r'label="Mapper\(slow\)\\n.*% of the work" fillcolor="#[ef][0-9a-f]+"', source)
        assert len(re.findall(r"\d -> \d+ \[label=\"[\d.]+( k)?/s\"\]", source)) == 6
        assert len(re.findall(r"style=dashed", source)) == 2
    if shutil.which("dot"):
        assert b"<svg" in to_graph(loader).pipe(format="svg")


def words_of(page: str, tag: str) -> list[str]:
    return [html.unescape(words) for words in re.findall(rf"<{tag}\b[^>]*>([^<]*)", page)]


def test_a_loader_in_a_notebook_is_words_tables_and_a_picture(loader: Any) -> None:
    page = loader._repr_html_()
    assert words_of(page, "code") == [repr(loader)]
    assert str(loader.diagnose())[:20] in " ".join(words_of(page, "p"))
    assert {"process", "pipe", "busy", "p99"} <= set(words_of(page, "th"))
    assert "worker process 1" in words_of(page, "td")
    assert "Mapper(slow)" in words_of(page, "text")
    unused = DataLoader2(IterableWrapper(range(3)).map(str))
    assert "Mapper" in words_of(unused._repr_html_(), "td"), "before the first epoch: the pipeline"


def test_numbers_that_round_up_to_the_next_unit_are_shown_in_this_unit() -> None:
    times = {12.34: "12.3 s", 0.9996: "1 s", 0.9994: "999 ms", 999.6e-6: "1 ms", 999.6e-9: "1 µs", 999.4e-9: "999 ns"}
    assert {seconds: table.duration(seconds) for seconds in times} == times
    amounts = {9.5: "9.5", 999.4: "999", 999.6: "1000", 9994: "9994", 9996: "10 k", 999600: "1 M", 999.6e6: "1 G"}
    assert {number: table.amount(number) for number in amounts} == amounts
