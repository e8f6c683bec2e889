"""The documentation site builds without warnings, its links have targets, and its search works offline."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pipe_groups
import pipe_pictures
import pytest

import torchdata
from torchdata.datapipes import iter as iter_pipes
from torchdata.datapipes import map as map_pipes

ROOT = Path(__file__).resolve().parents[3]
GUIDES = sorted(path.stem for path in (ROOT / "docs/guides").glob("*.md"))

#: Attributes that make a browser request a file while it displays the page.
FETCHING = {"src", "srcset", "data", "poster", "background"}
#: Values of the attribute `rel` of `link` elements that only refer to another page.
NAVIGATION = {"author", "canonical", "help", "index", "next", "prev", "search", "top"}

SEARCHED = {
    "recipes/data": "imagefold jsonl csv parquet webdataset s3",
    "recipes/training": "ddp torchrun lightn acceler hug face jax slurm preemption",
    "recipes/trouble": "segfault segment sigsegv oom memori kill shm",
    "guides/ranks-changed": "rank gpus resum world",
    "guides/pack-tokens": "pack token pad",
    "guides/mixing": "mix dataset weight sample_multiplex multinodeweightedsampl",
    "guides/stateful": "statefuldataload",
    "guides/from-grain": "grain mapdataset mp_prefetch",
    "guides/from-huggingface": "hug face interleave_dataset",
    "guides/from-tf-data": "tensorflow tfrecorddataset",
    "guides/old-clients": "dgl graphbolt returnn torchtitan",
}


class Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.styles: list[str] = []
        self._in_style = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        self.styles.append(values.get("style", ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in ("link", "use", "image") and "href" in values:
            where = self.links if set(values.get("rel", "").split()) & NAVIGATION else self.fetched
            where.append(values["href"])
        self.fetched += [values[name] for name in FETCHING & values.keys()]

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.styles.append(data)


def style_references(text: str) -> Iterator[str]:
    for found in re.finditer(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""", text):
        yield found[1] or found[2]


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    found = {path: Page(path) for path in site.rglob("*.html")}
    assert len(found) > 40
    return found


def test_every_link_inside_the_site_leads_to_an_existing_page_and_anchor(pages: dict[Path, Page]) -> None:
    broken, followed = [], 0
    for path, page in pages.items():
        for link in [*page.links, *page.fetched]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            followed += 1
            known = pages[target].ids if target in pages else set()
            if not target.is_file() or (target in pages and parts.fragment and unquote(parts.fragment) not in known):
                broken.append((path.name, link))
    assert followed > 1000
    assert not broken


def test_the_pages_load_nothing_from_other_hosts(site: Path, pages: dict[Path, Page]) -> None:
    references = [
        (path, link)
        for path, page in pages.items()
        for link in [*page.fetched, *(one for style in page.styles for one in style_references(style))]
    ]
    sheets = site.rglob("*.css")
    references += [(path, link) for path in sheets for link in style_references(path.read_text(encoding="utf-8"))]
    loaded = {Path(urlsplit(link).path).name for _, link in references}
    assert {"site.css", "clipboard.min.js", "copybutton.js"} <= loaded
    foreign = [(path.name, link) for path, link in references if urlsplit(link).scheme not in ("", "data")]
    foreign += [(path.name, link) for path, link in references if urlsplit(link).netloc]
    assert not foreign


def test_the_search_has_an_index_of_all_guides_and_pipes_that_needs_no_server(
    site: Path, pages: dict[Path, Page]
) -> None:
    scripts = {link.partition("?")[0] for link in pages[site / "search.html"].fetched}
    assert {"searchindex.js", "_static/searchtools.js", "_static/language_data.js"} <= scripts
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    assert text.startswith("Search.setIndex(")
    index = json.loads(text.removeprefix("Search.setIndex(").rstrip().removesuffix(")"))
    names = index["docnames"]
    assert {f"guides/{guide}" for guide in GUIDES} | {"index", "tutorial", "pipes", "architecture"} <= set(names)

    def pages_with(word: str) -> set[str]:
        entries = [index[terms].get(word, []) for terms in ("terms", "titleterms")]
        return {names[number] for found in entries for number in ([found] if isinstance(found, int) else found)}

    searched = "Resume training after a crash", "Skip broken samples", "Global shuffle", "Read Parquet", "Pack tokens"
    assert not [title for title in searched if title not in " / ".join(index["alltitles"])]
    assert "guides/workers" in pages_with("dispatch")
    assert "guides/errors" in pages_with("hang")
    for page, words in SEARCHED.items():
        assert not [word for word in words.split() if page not in pages_with(word)], page
    objects = {f"{prefix}.{entry[4]}" for prefix, entries in index["objects"].items() for entry in entries}
    assert {"torchdata.datapipes.iter.Batcher", "torchdata.dataloader2.DataLoader2"} <= objects


def test_guides_and_classes_link_to_the_reference(site: Path, pages: dict[Path, Page]) -> None:
    for guide in GUIDES:
        links = pages[site / f"guides/{guide}.html"].links
        assert any(re.match(r"\.\./reference/.+#torchdata\.", link) for link in links), guide
    workers = pages[site / "guides/workers.html"].links
    assert "../reference/pipes-sharding.html#torchdata.datapipes.iter.ShardingFilter" in workers
    assert "#torchdata.datapipes.iter.HttpReader" in pages[site / "reference/pipes-stores.html"].links
    to_nodes = {path.stem for path, page in pages.items() if any("torchdata.nodes.Map" in link for link in page.links)}
    assert to_nodes & {"nodes", "tutorial", "cheat-sheet", "pipes", "randomness", "install"} == {"nodes"}


GROUPS = pipe_groups.GROUPS
SAMPLES = [(group, sample) for group in GROUPS for sample in group.samples]


def test_every_public_pipe_is_in_one_group_of_the_pipes_page() -> None:
    for module, bases in (
        (iter_pipes, (iter_pipes.IterDataPipe,)),
        (map_pipes, (map_pipes.MapDataPipe, iter_pipes.IterDataPipe)),
    ):
        public = sorted(
            name
            for name in module.__all__
            if isinstance(getattr(module, name), type)
            and issubclass(getattr(module, name), bases)
            and getattr(module, name) not in bases
        )
        shown = sorted(sample.name for group, sample in SAMPLES if group.module is module)
        assert shown == public


@pytest.mark.parametrize(("group", "sample"), SAMPLES, ids=[f"{group.key}-{sample.name}" for group, sample in SAMPLES])
def test_the_picture_of_a_pipe_shows_what_the_pipe_does_and_fits_a_phone(
    group: pipe_groups.Group, sample: pipe_groups.Sample
) -> None:
    with pipe_pictures.sample_files():
        made = pipe_pictures.outputs(sample, group)
        picture = pipe_pictures.draw(sample, made)
    assert any(made), "the example yields no items"
    drawing = ElementTree.fromstring(picture)
    assert float(drawing.get("viewBox", "").split()[2]) <= 350
    written = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")]
    missing = [label for row in made for item in row for label in pipe_pictures.labels(item) if label not in written]
    assert not missing
    colours = {element.get(name, "none") for element in drawing.iter() for name in ("fill", "stroke")}
    assert all(re.fullmatch(r"none|currentColor|hsl\(\d+ 75% 50%\)", colour) for colour in colours), (
        "another colour may be unreadable on light or on dark ground"
    )


def test_the_side_bar_shows_the_version_and_leads_from_names_of_the_api_to_guides(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    assert f">torchdata-rs {torchdata.__version__.partition('+rs.')[2]}</span>" in text
    entries = re.findall(r'<a class="reference internal" href="([^"]+)">([^<]+)</a>', text)
    assert ("guides/stateful.html", "StatefulDataLoader") in entries
    assert ("guides/nodes.html", "Nodes") in entries
    assert not [where for where, title in entries if title in ("Nodes", "StatefulDataLoader") and "internals" in where]


#: Users define attributes with these names, so pages may contain the names despite the underscore.
DEFINED = {"_pause", "_resume", "_limit", "_validate", "_get_new_weighted_sampler", "_sampler", "_first", "self._first"}


def test_the_reference_shows_no_private_name(site: Path) -> None:
    shown = {}
    for page in (site / "reference").glob("*.html"):
        article = page.read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]
        words = re.sub(r"<[^>]+>", "", article)
        if found := re.findall(r"(?<![\w`.])(?:\w+\.)*_[a-z]\w+", words):
            shown[page.name] = set(found) - DEFINED
    assert not {page: names for page, names in shown.items() if names}
