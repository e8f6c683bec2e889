"""Pipes that need a server yield the same items as a model in plain Python. All tests share one server of each kind."""

from __future__ import annotations

import itertools
import json
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ais_server import ais_server
from http_server import running
from process_checks import loader
from s3_server import ENVIRONMENT, fill, s3_server
from stream_checks import open_files, read
from torchdata.datapipes.iter import (
    AISFileLister,
    AISFileLoader,
    GDriveReader,
    HttpReader,
    HuggingFaceHubReader,
    IterableWrapper,
    IterDataPipe,
    OnlineReader,
    S3FileLister,
    S3FileLoader,
)
from torchdata.datapipes.state import load_state, save_state
from waiting import wait_for

CONTENT = {f"{letter}{number}": (letter * number).encode() for letter in "ab" for number in range(4)}
ROOTS = ("", "a", "b2", "none")
ROWS = {name: [{"file": name, "row": row} for row in range(len(text))] for name, text in CONTENT.items() if text}


@dataclass
class Places:
    web: str
    cluster: str
    rows: Path


@dataclass(frozen=True)
class Served:
    """A row of the table of pipes, for one pipe.

    The source consists of short names, which `build` converts to the input of the pipe.
    """

    name: str
    build: Callable[[Any, Places], Any]
    model: Callable[[list[str], Places], list[Any]]
    #: The short names from which a test chooses the items of its sources.
    sources: tuple[str, ...] = field(default=tuple(CONTENT))


def listed(root: str, sources: list[str]) -> list[str]:
    return [root + name for source in sources for name in sorted(CONTENT) if name.startswith(source)]


def drive_link(name: str, places: Places) -> str:
    return f"{places.web}/uc?export=download&id={name}"


TABLE = [
    Served(
        "http",
        lambda source, at: HttpReader(source.map(lambda name: f"{at.web}/{name}")),
        lambda names, at: [(f"{at.web}/{name}", CONTENT[name]) for name in names],
    ),
    Served(
        "online",
        lambda source, at: OnlineReader(source.map(lambda name: f"{at.web}/{name}")),
        lambda names, at: [(f"{at.web}/{name}", CONTENT[name]) for name in names],
    ),
    Served(
        "gdrive",
        lambda source, at: GDriveReader(source.map(lambda name: drive_link(name, at))),
        lambda names, at: [(f"{name}.txt", CONTENT[name]) for name in names],
    ),
    Served(
        "list_by_ais",
        lambda source, at: AISFileLister(source.map(lambda root: f"ais://table/{root}"), at.cluster),
        lambda roots, at: listed("ais://table/", roots),
        ROOTS,
    ),
    Served(
        "load_by_ais",
        lambda source, at: AISFileLoader(source.map(lambda name: f"ais://table/{name}"), at.cluster),
        lambda names, at: [(f"ais://table/{name}", CONTENT[name]) for name in names],
    ),
    Served(
        "list_by_s3",
        lambda source, at: S3FileLister(source.map(lambda root: f"s3://table/{root}")),
        lambda roots, at: listed("s3://table/", roots),
        ROOTS,
    ),
    Served(
        "load_by_s3",
        lambda source, at: S3FileLoader(source.map(lambda name: f"s3://table/{name}")),
        lambda names, at: [(f"s3://table/{name}", CONTENT[name]) for name in names],
    ),
]

each_pipe = pytest.mark.parametrize("served", TABLE, ids=lambda served: served.name)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
            patch.delenv(name)
        web = stack.enter_context(running(tmp_path_factory.mktemp("served")))
        for name, content in CONTENT.items():
            web.url(name, content)
        cluster = stack.enter_context(ais_server({"ais://table": CONTENT}))
        endpoint = stack.enter_context(s3_server())
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint, "NO_PROXY": "127.0.0.1"}.items():
            patch.setenv(name, value)
        fill(endpoint, {"table": CONTENT}).close()
        yield Places(web.root, cluster, tmp_path_factory.mktemp("rows"))


def built(served: Served, places: Places, sources: list[str]) -> Any:
    return served.build(IterableWrapper(sources), places)


@each_pipe
@settings(max_examples=15)
@given(data=st.data())
def test_items_equal_the_model_s_from_any_position_on(served: Served, places: Places, data: st.DataObject) -> None:
    sources = data.draw(st.lists(st.sampled_from(served.sources), max_size=6))
    expected = served.model(sources, places)
    pipe = built(served, places, sources)
    assert [read(item) for item in pipe] == expected
    position = data.draw(st.integers(0, len(expected)), label="position")
    items = iter(pipe)
    head = [read(next(items)) for _ in range(position)]
    state = pickle.loads(pickle.dumps(save_state(pipe)))
    for _ in range(2):  # a state may be loaded twice
        other = built(served, places, sources)
        load_state(other, state)
        assert head + [read(item) for item in other] == expected


@each_pipe
def test_an_abandoned_iteration_starts_again_and_leaves_no_file_open(served: Served, places: Places) -> None:
    sources = list(served.sources)
    expected = served.model(sources, places)
    pipe = built(served, places, sources)
    list(map(read, pipe))  # the first epoch opens connections and files that stay open
    before = open_files()
    for stop in (1, len(expected) // 2, len(expected)):
        assert [read(item) for item in itertools.islice(pipe, stop)] == expected[:stop]
    assert [read(item) for item in pipe] == expected
    wait_for(lambda: open_files() <= before)  # clients close connections in their threads


@each_pipe
def test_two_workers_each_read_their_share(served: Served, places: Places) -> None:
    sources = list(served.sources)
    pipe = served.build(IterableWrapper(sources).sharding_filter(), places).map(read)
    shares = [served.model(sources[worker::2], places) for worker in range(2)]
    turns = itertools.zip_longest(*shares, fillvalue=None)
    expected = [item for turn in turns for item in turn if item is not None]
    dl = loader(pipe)
    try:
        assert [list(dl), list(dl)] == [expected] * 2
    finally:
        dl.shutdown()


class BreaksHalfWay(IterDataPipe[str]):
    def __init__(self, sources: list[str]) -> None:
        self.sources, self.broken = sources, True

    def __iter__(self) -> Iterator[str]:
        yield from self.sources[:2]
        if self.broken:
            raise ValueError("the source broke")
        yield from self.sources[2:]


@each_pipe
def test_an_error_of_a_source_is_raised_unchanged_and_the_pipe_can_continue(served: Served, places: Places) -> None:
    sources = list(served.sources)
    source = BreaksHalfWay(sources)
    pipe = served.build(source, places)
    before = served.model(sources[:2], places)
    items = iter(pipe)
    assert [read(next(items)) for _ in before] == before
    with pytest.raises(ValueError, match="the source broke"):
        next(items)
    source.broken = False
    assert [read(item) for item in pipe] == served.model(sources, places)


@settings(max_examples=8)
@given(names=st.lists(st.sampled_from(sorted(ROWS)), min_size=1, max_size=4, unique=True), data=st.data())
def test_rows_of_the_hub_equal_those_of_the_files_from_any_position(
    places: Places, names: list[str], data: st.DataObject
) -> None:
    datasets = pytest.importorskip("datasets", reason="HuggingFaceHubReader needs datasets")
    datasets.disable_progress_bars()
    files = []
    for name in names:
        files.append(str(places.rows / f"{name}.jsonl"))
        Path(files[-1]).write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]), encoding="utf-8")
    expected = [row for name in names for row in ROWS[name]]

    def build() -> Any:
        return HuggingFaceHubReader("json", data_files=files, split="train")

    assert list(build()) == expected
    position = data.draw(st.integers(0, len(expected)), label="position")
    pipe = build()
    items = iter(pipe)
    head = [next(items) for _ in range(position)]
    state = pickle.loads(pickle.dumps(save_state(pipe)))
    other = build()
    load_state(other, state)
    assert head + list(other) == expected == list(other)
