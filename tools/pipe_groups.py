"""The pipes, grouped by purpose, each with a sample, for the site and its reference.

A sample is an expression over the pipes `a` and `b` and their items. The picture of a sample shows the expression, its
inputs and its computed result, so the picture cannot contradict the code. For pipes that need a server, or a library
that is not installed everywhere, the sample itself contains the result (`shown`).
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torchdata.datapipes import iter as iter_pipes
from torchdata.datapipes import map as map_pipes
from torchdata.datapipes.utils.decoder import basichandlers


class Stream:
    def read(self) -> bytes:
        """Is never called. The drawing code recognizes streams by the method `read`."""
        raise NotImplementedError


STREAM = Stream()
WORKERS, RANKS = ("worker 0", "worker 1"), ("rank 0", "rank 1")
A, B = ("a.txt", STREAM), ("b.txt", STREAM)


@dataclass(frozen=True)
class Sample:
    """One pipe and an example of its use.

    Args:
        code: the expression that the picture shows.
        inputs: the items of the pipes in `names`.
        run: the expression to evaluate instead of `code`, with details that the picture need not show, such as a seed.
        shown: the rows of output items, if they must not be computed from the expression.
        labels: the label of each output row.
        names: the names of the input pipes.
    """

    name: str
    code: str
    inputs: Sequence[Sequence[Any]] = ()
    run: str | None = None
    shown: Sequence[Sequence[Any]] | None = None
    labels: Sequence[str] = ()
    names: Sequence[str] = ("a", "b")


@dataclass(frozen=True)
class Group:
    """Pipes that do similar things.

    Args:
        key: the group's name in the addresses of pages.
        text: a sentence or two that help users to choose among the pipes.
        samples: one sample per pipe.
        module: the module that exports the classes.
    """

    key: str
    title: str
    text: str
    samples: tuple[Sample, ...]
    module: ModuleType = iter_pipes


def prepare(folder: Path) -> None:
    (folder / "a.txt").write_text("one\ntwo\n")
    (folder / "b.txt").write_text("six\n")
    (folder / "t.csv").write_text("x,y\n1,2\n3,4\n")
    (folder / "n.json").write_text(json.dumps({"n": 1}))
    for name in ("7.jpg", "7.cls"):
        (folder / name).write_text("3")
    for suffix, module in (("gz", gzip), ("bz2", bz2), ("xz", lzma)):
        (folder / f"a.txt.{suffix}").write_bytes(module.compress(b"one"))
    with tarfile.open(folder / "ab.tar", "w") as tar, zipfile.ZipFile(folder / "ab.zip", "w") as archive:
        for name in ("a.txt", "b.txt"):
            tar.add(folder / name, name)
            archive.write(folder / name, name)


def _opened(*names: str) -> Any:
    return iter_pipes.IterableWrapper(names).open_files("b")


def _shard(source: Any, count: int, number: int) -> list[Any]:
    pipe = source.sharding_filter()
    pipe.apply_sharding(count, number)
    return list(pipe)


def _coroutine(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def call(item: Any) -> Any:
        return function(item)

    return call


#: Names that the expressions use in addition to the pipes.
NAMES: dict[str, Any] = {
    "upper": str.upper,
    "fetch": _coroutine(str.upper),
    "twice": lambda item: [f"{item}1", f"{item}2"],
    "is_big": lambda number: number > 4,
    "is_odd": lambda number: number % 2 == 1,
    "first": lambda text: text[0],
    "head": lambda pair: pair[0],
    "whole": lambda batch: list(map(str.upper, batch)),
    "to_bytes": lambda path: (path, b"..."),
    "dump": lambda item: (f"{item}.txt", item.encode()),
    "path": lambda item: f"{item}.txt",
    "opened": _opened,
    "shard": _shard,
    "hashes": {name: hashlib.md5(text).hexdigest() for name, text in (("a.txt", b"one\ntwo\n"), ("b.txt", b"six\n"))},
    "basichandlers": basichandlers,
}


GROUPS = (
    Group(
        "sources",
        "Begin a pipeline",
        "A pipeline begins with data that you hold, with a list of files, or with the answer of a server.",
        (
            Sample("IterableWrapper", "IterableWrapper('abcd')"),
            Sample("FileLister", "FileLister('.', '*.txt')"),
            Sample("ShardExpander", "a.shard_expand()", [["s-{0..2}.tar"]]),
            Sample(
                "MapToIterConverter", "m.to_iter_datapipe()", ["abc"], run="SequenceWrapper('abc').to_iter_datapipe()"
            ),
            Sample(
                "HuggingFaceHubReader",
                "HuggingFaceHubReader('imdb')",
                shown=[[{"text": "…", "label": 0}, {"text": "…", "label": 1}]],
            ),
        ),
    ),
    Group(
        "changing",
        "Change every item",
        "Functions of your own run here. With worker processes they run in the workers.",
        (
            Sample("Mapper", "a.map(upper)", ["abcd"]),
            Sample("FlatMapper", "a.flatmap(twice)", ["abc"]),
            Sample(
                "ShuffledFlatMapper", "a.shuffled_flatmap(twice)", ["abc"], run="a.shuffled_flatmap(twice).set_seed(1)"
            ),
            Sample("ThreadPoolMapper", "a.threadpool_map(upper)", ["abcd"]),
            Sample(
                "ImageDecoder",
                "a.decode_image(224)",
                [["7.jpg", "8.jpg"]],
                shown=[["7 as 224 x 224", "8 as 224 x 224"]],
            ),
            Sample("BatchMapper", "a.map_batches(whole, 2)", ["abcd"]),
            Sample("BatchAsyncMapper", "a.async_map_batches(fetch, 2)", ["abcd"]),
            Sample("Collator", "a.collate(tuple)", [[["a", "b"], ["c"]]]),
        ),
    ),
    Group(
        "selecting",
        "Select items",
        "Some items pass, the others do not.",
        (
            Sample("Filter", "a.filter(is_odd)", [[1, 2, 3, 4, 5]]),
            Sample("Header", "a.header(2)", ["abcde"]),
            Sample("Sampler", "Sampler(a)", ["abcd"]),
            Sample("OnError", 'a.map(int).on_error("skip")', [["1", "x", "3"]], shown=[[1, 3]]),
        ),
    ),
    Group(
        "batching",
        "Make batches and groups",
        "Several items become one, or one becomes several.",
        (
            Sample("Batcher", "a.batch(2)", ["abcde"]),
            Sample("UnBatcher", "a.unbatch()", [[["a", "b"], ["c"]]]),
            Sample("Grouper", "a.groupby(first)", [["a1", "b1", "a2", "b2"]]),
            Sample(
                "BucketBatcher",
                "a.bucketbatch(2, sort_key=sorted)",
                [[3, 1, 4, 2]],
                run="a.bucketbatch(2, batch_num=2, use_in_batch_shuffle=False, sort_key=sorted)",
            ),
            Sample(
                "MaxTokenBucketizer",
                "a.max_token_bucketize(4)",
                [["aaa", "b", "cc", "d"]],
                run="a.max_token_bucketize(4, buffer_size=4, include_padding=False)",
            ),
            Sample("Packer", "a.pack(4)", [[[1, 1, 1], [2, 2], [3]]], run="a.pack(4, add=())"),
            Sample("Rows2Columnar", "a.rows2columnar(['x', 'y'])", [[[[1, 2], [3, 4]]]]),
        ),
    ),
    Group(
        "shuffling",
        "Shuffle and repeat",
        "The same seed gives the same order. [Randomness](guides/randomness.md) tells where seeds come from.",
        (
            Sample("Shuffler", "a.shuffle()", ["abcde"], run="a.shuffle().set_seed(7)"),
            Sample(
                "InBatchShuffler",
                "a.in_batch_shuffle()",
                [[["a", "b"], ["c", "d", "e"]]],
                run="a.in_batch_shuffle().set_seed(3)",
            ),
            Sample("Cycler", "a.cycle(2)", ["abc"]),
            Sample("Repeater", "a.repeat(2)", ["abc"]),
            Sample("Enumerator", "a.enumerate()", ["abc"]),
            Sample("IndexAdder", "a.add_index('i')", [[{"x": "a"}, {"x": "b"}]]),
            Sample("LengthSetter", "a.set_length(3)", ["abc"]),
        ),
    ),
    Group(
        "sharding",
        "Share out among workers and ranks",
        "Without one of these every worker yields every item. "
        "[Workers, sharding and dispatching](guides/workers.md) tells which to take.",
        (
            Sample(
                "ShardingFilter",
                "a.sharding_filter()",
                ["abcdef"],
                run="[shard(a, 2, 0), shard(a, 2, 1)]",
                labels=WORKERS,
            ),
            Sample(
                "ShardingRoundRobinDispatcher",
                "a.sharding_round_robin_dispatch(…)",
                ["abcdef"],
                shown=[["a", "c", "e"], ["b", "d", "f"]],
                labels=WORKERS,
            ),
            Sample(
                "FullSync",
                "a.fullsync()",
                ["abcd", "efg"],
                shown=[["a", "b", "c"], ["e", "f", "g"]],
                labels=RANKS,
                names=RANKS,
            ),
        ),
    ),
    Group(
        "joining",
        "Join pipelines",
        "Several pipelines become one.",
        (
            Sample("Zipper", "a.zip(b)", ["abc", "xyz"]),
            Sample("ZipperLongest", "a.zip_longest(b)", ["abc", "xy"]),
            Sample("Concater", "a.concat(b)", ["abc", "xy"]),
            Sample("Multiplexer", "a.mux(b)", ["abc", "xy"]),
            Sample("MultiplexerLongest", "a.mux_longest(b)", ["abc", "xy"]),
            Sample(
                "SampleMultiplexer",
                "SampleMultiplexer({a: 2, b: 1})",
                ["abcd", "xy"],
                run="SampleMultiplexer({a: 2, b: 1}, seed=1)",
            ),
            Sample("IterKeyZipper", "a.zip_with_iter(b, first)", [["a1", "b1"], ["b2", "a2"]]),
            Sample(
                "MapKeyZipper",
                "a.zip_with_map(m, first)",
                [["a1", "b1"], [{"a": "x", "b": "y"}]],
                run="a.zip_with_map(SequenceWrapper({'a': 'x', 'b': 'y'}), first)",
                names=("a", "m"),
            ),
        ),
    ),
    Group(
        "splitting",
        "Split a pipeline",
        "One pipeline becomes several. Each returns a list of pipes, one for each row below.",
        (
            Sample("Forker", "a.fork(2)", ["abc"]),
            Sample("Demultiplexer", "a.demux(2, is_odd)", [[1, 2, 3, 4, 5]]),
            Sample("RoundRobinDemultiplexer", "a.round_robin_demux(2)", ["abcde"]),
            Sample("UnZipper", "a.unzip(2)", [[("a", "x"), ("b", "y")]]),
            Sample("RandomSplitter", "a.random_split({'t': 4, 'v': 2}, 0)", ["abcdef"]),
        ),
    ),
    Group(
        "columns",
        "Work on columns",
        "For items that are tuples, lists or dicts.",
        (
            Sample("Slicer", "a.slice([0])", [[("a", "x"), ("b", "y")]]),
            Sample("Dropper", "a.drop(0)", [[("a", "x"), ("b", "y")]]),
            Sample("Flattener", "a.flatten(1)", [[("a", ("x", "y")), ("b", ("z",))]]),
        ),
    ),
    Group(
        "streams",
        "Open and read files",
        "Between these pipes travel pairs of path and stream. A stream is read when somebody wants its bytes.",
        (
            Sample("FileOpener", "a.open_files()", [["a.txt", "b.txt"]]),
            Sample("StreamReader", "a.read_from_stream()", [[A, B]], run="opened('a.txt', 'b.txt').read_from_stream()"),
            Sample("LineReader", "a.readlines()", [[A, B]], run="opened('a.txt', 'b.txt').readlines()"),
            Sample("ParagraphAggregator", "a.lines_to_paragraphs()", [[("f", "x"), ("f", "y"), ("f", ""), ("f", "z")]]),
            Sample("CSVParser", "a.parse_csv()", [[("t.csv", STREAM)]], run="opened('t.csv').parse_csv()"),
            Sample(
                "CSVDictParser",
                "a.parse_csv_as_dict()",
                [[("t.csv", STREAM)]],
                run="opened('t.csv').parse_csv_as_dict()",
            ),
            Sample(
                "JsonParser", "a.parse_json_files()", [[("n.json", STREAM)]], run="opened('n.json').parse_json_files()"
            ),
            Sample(
                "RoutedDecoder",
                "a.routed_decode(basichandlers)",
                [[("n.json", STREAM)]],
                run="opened('n.json').routed_decode(basichandlers)",
            ),
            Sample(
                "HashChecker",
                "a.check_hash(hashes)",
                [[A, B]],
                run="opened('a.txt', 'b.txt').check_hash(hashes, 'md5')",
            ),
            Sample("Saver", "a.save_to_disk()", [[("c.txt", "one"), ("d.txt", "six")]]),
        ),
    ),
    Group(
        "archives",
        "Archives and record files",
        "One stream becomes the files or records in it, one after another, without unpacking to disk.",
        (
            Sample(
                "TarArchiveLoader", "a.load_from_tar()", [[("ab.tar", STREAM)]], run="opened('ab.tar').load_from_tar()"
            ),
            Sample(
                "ZipArchiveLoader", "a.load_from_zip()", [[("ab.zip", STREAM)]], run="opened('ab.zip').load_from_zip()"
            ),
            Sample("RarArchiveLoader", "a.load_from_rar()", [[("ab.rar", STREAM)]], shown=[[("ab.rar/a.txt", STREAM)]]),
            Sample(
                "WebDataset",
                "a.webdataset()",
                [[("7.jpg", STREAM), ("7.cls", STREAM)]],
                run="opened('7.jpg', '7.cls').webdataset()",
            ),
            Sample(
                "TFRecordLoader",
                "a.load_from_tfrecord()",
                [[("x.tfrecord", STREAM)]],
                shown=[[{"label": [3]}, {"label": [5]}]],
            ),
            Sample("Decompressor", "a.decompress()", [[("a.txt.gz", STREAM)]], run="opened('a.txt.gz').decompress()"),
            Sample("Extractor", "a.extract()", [[("a.txt.gz", STREAM)]], run="opened('a.txt.gz').extract()"),
            Sample(
                "Bz2FileLoader",
                "a.load_from_bz2()",
                [[("a.txt.bz2", STREAM)]],
                run="opened('a.txt.bz2').load_from_bz2()",
            ),
            Sample(
                "XzFileLoader", "a.load_from_xz()", [[("a.txt.xz", STREAM)]], run="opened('a.txt.xz').load_from_xz()"
            ),
            Sample("DataFrameMaker", "a.dataframe(2)", [[("a", 1), ("b", 2)]], shown=[[[("a", 1), ("b", 2)]]]),
            Sample("ArrowReader", "ArrowReader(table)", shown=[[{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]]),
            Sample("LanceReader", "a.read_lance(dataset)", [[4, 1]], shown=[[{"a": 40}, {"a": 10}]]),
            Sample(
                "ParquetDataFrameLoader",
                "a.load_parquet_as_df()",
                [["t.parquet"]],
                shown=[[[("a", 1), ("b", 2)], [("c", 3)]]],
            ),
        ),
    ),
    Group(
        "stores",
        "Read from servers and stores",
        "Each needs an extra, which its error names. [Files and stores](guides/files.md) tells which.",
        (
            Sample("HttpReader", "a.read_from_http()", [["https://…/a"]], shown=[[("https://…/a", STREAM)]]),
            Sample("GDriveReader", "a.read_from_gdrive()", [["https://drive…"]], shown=[[("a.zip", STREAM)]]),
            Sample("OnlineReader", "a.read_from_remote()", [["https://…/a"]], shown=[[("https://…/a", STREAM)]]),
            Sample("S3FileLister", "a.list_files_by_s3()", [["s3://b/x/"]], shown=[["s3://b/x/1", "s3://b/x/2"]]),
            Sample("S3FileLoader", "a.load_files_by_s3()", [["s3://b/x/1"]], shown=[[("s3://b/x/1", STREAM)]]),
            Sample(
                "FSSpecFileLister", "a.list_files_by_fsspec()", [["gs://b/x"]], shown=[["gs://b/x/1", "gs://b/x/2"]]
            ),
            Sample("FSSpecFileOpener", "a.open_files_by_fsspec()", [["gs://b/x/1"]], shown=[[("gs://b/x/1", STREAM)]]),
            Sample("FSSpecSaver", "a.save_by_fsspec()", [[("gs://b/x/1", "one")]], shown=[["gs://b/x/1"]]),
            Sample("IoPathFileLister", "a.list_files_by_iopath()", [["x/"]], shown=[["x/1", "x/2"]]),
            Sample("IoPathFileOpener", "a.open_files_by_iopath()", [["x/1"]], shown=[[("x/1", STREAM)]]),
            Sample("IoPathSaver", "a.save_by_iopath()", [[("x/1", "one")]], shown=[["x/1"]]),
            Sample("AISFileLister", "a.list_files_by_ais(url)", [["ais://b/x"]], shown=[["ais://b/x1", "ais://b/x2"]]),
            Sample("AISFileLoader", "a.load_files_by_ais(url)", [["ais://b/x1"]], shown=[[("ais://b/x1", STREAM)]]),
        ),
    ),
    Group(
        "caching",
        "Keep and read ahead",
        "The items stay as they are. What changes is when they are made, and how often.",
        (
            Sample("InMemoryCacheHolder", "a.in_memory_cache()", ["abc"]),
            Sample(
                "OnDiskCacheHolder",
                "a.on_disk_cache(path)",
                ["ab"],
                run="a.on_disk_cache(path).map(dump).end_caching('wb')",
            ),
            Sample(
                "EndOnDiskCacheHolder",
                "….end_caching()",
                [[("e.txt", b"one")]],
                run="a.map(head).on_disk_cache().map(to_bytes).end_caching('wb')",
            ),
            Sample("Prefetcher", "a.prefetch(2)", ["abc"]),
            Sample("PinMemory", "a.pin_memory()", ["abc"], shown=["abc"]),
        ),
    ),
    Group(
        "map",
        "Pipes read by index",
        "These have `pipe[i]` and often `len(pipe)`, as a list has. `to_iter_datapipe` makes an iter pipe of one.",
        (
            Sample("SequenceWrapper", "SequenceWrapper('abcd')"),
            Sample("ArrowParts", "ArrowParts(table)", shown=[[0, 1, 2]]),
            Sample("Mapper", "a.map(upper)", ["abcd"]),
            Sample("Batcher", "a.batch(2)", ["abcde"]),
            Sample("Concater", "a.concat(b)", ["abc", "xy"]),
            Sample("Zipper", "a.zip(b)", ["abc", "xyz"]),
            Sample("UnZipper", "a.unzip(2)", [[("a", "x"), ("b", "y")]]),
            Sample("Shuffler", "a.shuffle()", ["abcde"], run="a.shuffle().set_seed(1)"),
            Sample("IndexSampler", "a.sample_by([3, 0, 2])", ["abcd"]),
            Sample("InMemoryCacheHolder", "a.in_memory_cache()", ["abc"]),
            Sample(
                "IterToMapConverter",
                "i.to_map_datapipe()",
                [[(0, "a"), (1, "b")]],
                run="iter_pipes.IterableWrapper([(0, 'a'), (1, 'b')]).to_map_datapipe()",
            ),
        ),
        module=map_pipes,
    ),
)
