"""`on_error("skip")` after any pipe skips the errors of this pipe and of its source."""

import gzip
import io
from typing import Any

import pyarrow
import pytest

import torchdata.datapipes.iter as pipes
from archive_bytes import tar_of
from pipes_table import ROWS, Row, seed
from torchdata.datapipes.iter import ArrowReader, IterableWrapper
from torchdata.datapipes.map import ArrowParts, SequenceWrapper
from torchdata.datapipes.state import load_state, save_state

pytestmark = pytest.mark.filterwarnings("ignore:on_error has skipped:RuntimeWarning")

BAD = {3, 4, 11}


def whole(item: Any) -> Any:
    if item in BAD:
        raise ValueError(f"item {item}")
    return item


async def awaited(item: int) -> int:
    return whole(item)


def many(item: int) -> Any:
    yield item
    whole(item)
    yield item + 100


def at_once(item: int) -> list[int]:
    return [whole(item)]


def good(*items: int) -> list[int]:
    return [item for item in items if item not in BAD]


def numbers(count: int = 15) -> Any:
    return IterableWrapper(range(count))


GOOD = good(*range(15))


def samples(*names: str) -> Any:
    return IterableWrapper([(name, 0) for name in names])


def archives(*contents: bytes) -> Any:
    return IterableWrapper([(str(n), io.BytesIO(content)) for n, content in enumerate(contents)], deepcopy=False)


def parquet() -> bytes:
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"a": [1, 2, 3]}), file)
    return file.getvalue()


def both(one: Any, other: Any) -> Any:
    return one.concat(other)


def pieces(*columns: list[Any]) -> Any:
    return pyarrow.concat_tables([pyarrow.table({"a": pyarrow.array(one, "int64")}) for one in columns])


def tokens(item: Any) -> Any:
    return item["a"].tolist() if hasattr(item["a"], "tolist") else item["a"]


#: For each pipe class: pipelines that raise an error for certain items (often 3, 4 and 11), and the remaining items.
OWN: dict[str, list[tuple[Any, list[Any]]]] = {
    "Mapper": [(lambda: numbers().map(whole), GOOD)],
    "Filter": [(lambda: numbers().filter(lambda item: whole(item) % 2 == 0), [n for n in GOOD if n % 2 == 0])],
    "FlatMapper": [
        (lambda: numbers().flatmap(at_once), GOOD),
        (lambda: numbers(5).flatmap(many), [0, 100, 1, 101, 2, 102, 3, 4]),
    ],
    "ShuffledFlatMapper": [
        (lambda: numbers().shuffled_flatmap(at_once).set_shuffle(False), GOOD),
        (lambda: numbers(5).shuffled_flatmap(many).set_shuffle(False), [0, 100, 1, 101, 2, 102, 3, 4]),
    ],
    "BatchMapper": [
        (lambda: numbers(6).map_batches(lambda batch: list(map(whole, batch)), 2), [0, 1]),
        (lambda: numbers(6).map_batches(lambda batch: list(map(whole, batch)), 1), good(*range(6))),
    ],
    "BatchAsyncMapper": [
        (lambda: numbers().async_map_batches(awaited, 1), GOOD),
        (lambda: numbers(6).async_map_batches(awaited, 2), [0, 1]),
        (lambda: numbers(6).async_map_batches(awaited, 2, flatten=False), [[0, 1]]),
    ],
    "ThreadPoolMapper": [(lambda: numbers().threadpool_map(whole, max_workers=3), GOOD)],
    "Grouper": [(lambda: numbers(6).groupby(lambda n: whole(n) % 2, group_size=2), [[0, 2], [1, 5]])],
    "MaxTokenBucketizer": [
        (lambda: numbers(6).max_token_bucketize(8, len_fn=whole, include_padding=False), [[0, 1, 2, 5]])
    ],
    "IterKeyZipper": [
        (lambda: numbers(6).zip_with_iter(numbers(6), whole, lambda n: n), [(n, n) for n in good(*range(6))]),
        (
            lambda: numbers(6).zip_with_iter(numbers(6), int, merge_fn=lambda one, other: whole(one) + other),
            [2 * n for n in good(*range(6))],
        ),
    ],
    "Packer": [(lambda: IterableWrapper([[1], 7, [2, 3], [[4]]]).pack(3), [[1, 2, 3], [[4]]])],
    "UnBatcher": [(lambda: IterableWrapper([[1], 2, [3]]).unbatch(), [1, 3])],
    "WebDataset": [
        (lambda: samples("a.x", "a.x", "b.x").webdataset(), [{"__key__": "a", ".x": 0}, {"__key__": "b", ".x": 0}])
    ],
    "scattered": [
        (lambda: samples("a.x", "b.x", "a.y", "c.x", "a.y").webdataset(), [{"__key__": key, ".x": 0} for key in "abc"])
    ],
    "ParagraphAggregator": [
        (
            lambda: IterableWrapper([("f", "a"), ("f", ""), 5, ("f", "b"), ("f", "")]).lines_to_paragraphs(),
            [("f", "a"), ("f", "b")],
        )
    ],
    "TarArchiveLoader": [
        (
            lambda: (
                IterableWrapper(
                    [
                        ("a.tar", io.BytesIO(tar_of([("1", b"x")]))),
                        ("b.tar", io.BytesIO(b"?" * 600)),
                        ("c.tar", io.BytesIO(tar_of([("2", b"x")]))),
                    ],
                    deepcopy=False,
                )
                .load_from_tar()
                .map(lambda pair: pair[0])
            ),
            ["a.tar/1", "c.tar/2"],
        )
    ],
    "Demultiplexer": [(lambda: both(*numbers(6).demux(2, lambda n: whole(n) % 2)), [0, 2, 1, 5])],
    "RoundRobinDemultiplexer": [(lambda: both(*numbers(6).map(whole).round_robin_demux(2)), [0, 2, 1, 5])],
    "BucketBatcher": [
        (
            lambda: numbers(6).bucketbatch(2, bucket_num=1, batch_num=1, sort_key=lambda bucket: [*map(whole, bucket)]),
            [[0, 1]],
        )
    ],
    "Rows2Columnar": [
        (lambda: IterableWrapper([[{"a": 1}], 5, [{"a": 2}]]).rows2columnar(["a"]).map(dict), [{"a": [1]}, {"a": [2]}])
    ],
    "ShardExpander": [(lambda: IterableWrapper(["a{0..1}", 5, "b"]).shard_expand(), ["a0", "a1", "b"])],
    "Decompressor": [
        (
            lambda: (
                archives(gzip.compress(b"x"), b"?", gzip.compress(b"y"))
                .decompress(file_type="gzip")
                .map(lambda pair: pair[1].read())
            ),
            [b"x", b"y"],
        )
    ],
    "ParquetDataFrameLoader": [
        (
            lambda: (
                archives(parquet(), b"?", parquet()).load_parquet_as_df(library="numpy").map(lambda f: f["a"].tolist())
            ),
            [[1, 2, 3], [1, 2, 3]],
        )
    ],
    "DataFrameMaker": [
        (
            lambda: (
                IterableWrapper([(1,), (2,), 5, (3,), (4,), (6,)])
                .dataframe(dataframe_size=2, columns=["a"], library="pyarrow")
                .map(lambda frame: frame["a"].to_pylist())
            ),
            [[1, 2], [4, 6]],
        )
    ],
    "MapToIterConverter": [(lambda: SequenceWrapper(range(15)).map(whole).to_iter_datapipe(), GOOD)],
    "map.Shuffler": [(lambda: SequenceWrapper(range(15)).map(whole).shuffle().set_shuffle(False), GOOD)],
    "map.IndexSampler": [(lambda: SequenceWrapper(range(15)).map(whole).sample_by(range(15)), GOOD)],
    "IndexAdder": [
        (lambda: IterableWrapper([{"a": 1}, 5, {"a": 2}]).add_index(), [{"a": 1, "index": 0}, {"a": 2, "index": 2}])
    ],
    "FileLister": [(lambda: IterableWrapper([5, __file__]).list_files(), [__file__])],
    "LineReader": [
        (
            lambda: IterableWrapper(
                [("a", io.BytesIO(b"1\n2\n")), ("b", io.BytesIO(b"\xff\n")), ("c", io.BytesIO(b"3\n"))], deepcopy=False
            ).readlines(decode=True, errors="strict"),
            [("a", "1"), ("a", "2"), ("c", "3")],
        )
    ],
    "ArrowReader": [
        (lambda: ArrowReader(pieces([1, 2], [None], [3]), rows=False).map(tokens), [[1, 2], [3]]),
        (
            lambda: IterableWrapper([2, 7, "x", 0]).read_arrow(parts=ArrowParts(pieces([1, 2], [5], [3]))).map(tokens),
            [3, 1, 2],
        ),
    ],
}
NOT_AGAIN = {"Decompressor", "LineReader", "ParquetDataFrameLoader", "TarArchiveLoader", "scattered"}
#: Classes of pipes that only pass on or store the items of their sources, and therefore raise no errors themselves.
RAISE_NOTHING = {
    "Batcher", "Concater", "Cycler", "Enumerator", "Forker", "Header", "InBatchShuffler", "InMemoryCacheHolder",
    "IterableWrapper", "LengthSetter", "Multiplexer", "MultiplexerLongest", "OnError", "Prefetcher", "RandomSplitter",
    "Repeater", "SampleMultiplexer", "Sampler", "ShardingFilter", "ShardingRoundRobinDispatcher", "Shuffler",
    "UnZipper", "Zipper", "ZipperLongest",
}  # fmt: skip
#: For each class that inherits `__iter__` from a tested class: the name of the tested class.
AS_OTHERS = {
    "AISFileLoader": "Mapper", "Bz2FileLoader": "Decompressor", "CSVDictParser": "LineReader",
    "CSVParser": "LineReader", "Collator": "Mapper", "Dropper": "Mapper", "Extractor": "Decompressor",
    "FSSpecFileOpener": "Mapper",
    "FSSpecSaver": "Mapper", "FileOpener": "Mapper", "Flattener": "Mapper", "GDriveReader": "Mapper",
    "HashChecker": "Mapper", "HttpReader": "Mapper", "ImageDecoder": "Mapper", "IoPathFileOpener": "Mapper",
    "IoPathSaver": "Mapper", "JsonParser": "Mapper", "LanceReader": "ArrowReader", "MapKeyZipper": "Mapper",
    "OnlineReader": "Mapper", "PinMemory": "Mapper", "RarArchiveLoader": "TarArchiveLoader", "RoutedDecoder": "Mapper",
    "S3FileLoader": "Mapper", "Saver": "Mapper", "Slicer": "Mapper", "StreamReader": "LineReader",
    "TFRecordLoader": "TarArchiveLoader", "XzFileLoader": "Decompressor", "ZipArchiveLoader": "TarArchiveLoader",
}  # fmt: skip
#: Classes of pipes that this file does not test, for example because their source is not a pipe.
END = {
    "AISFileLister", "EndOnDiskCacheHolder", "FSSpecFileLister", "FullSync", "HuggingFaceHubReader",
    "IoPathFileLister", "OnDiskCacheHolder", "S3FileLister",
}  # fmt: skip
CASES = [(name, build, expected) for name, cases in OWN.items() for build, expected in cases]


@pytest.mark.parametrize(("name", "build", "expected"), CASES, ids=[case[0] for case in CASES])
def test_an_item_at_which_a_pipe_raises_is_skipped_even_after_a_load(name: str, build: Any, expected: Any) -> None:
    for count in range(len(expected) + 1):
        pipe, other = build().on_error("skip"), build().on_error("skip")
        if name == "Packer":
            pipe, other = (one.map(lambda row: row["input_ids"]).on_error("skip") for one in (build(), build()))
        iterator = iter(pipe)
        received = [next(iterator) for _ in range(count)]
        if count == len(expected):
            assert received == expected
            assert list(iterator) == []
            assert list(pipe) == expected or name in NOT_AGAIN, "the next epoch"
        elif name not in NOT_AGAIN:
            load_state(other, save_state(pipe))
            assert received + list(other) == expected, count


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (lambda: numbers(9).fork(2, buffer_size=2)[0], BufferError),
        (lambda: numbers(9).demux(2, lambda n: n // 5, buffer_size=2)[1], BufferError),
        (lambda: numbers(9).random_split(weights={"a": 1, "b": 1}, seed=1, total_length=4)[0], ValueError),
    ],
)
def test_a_limit_of_the_pipeline_is_not_skipped(build: Any, kind: Any) -> None:
    with pytest.raises(kind):
        list(iter(build().on_error("skip")))


def test_no_pipe_is_forgotten() -> None:
    known = [*OWN, *RAISE_NOTHING, *AS_OTHERS, *END, "SHARDING_PRIORITIES", "IterDataPipe"]
    assert sorted(name for name in known if name in pipes.__all__) == sorted(pipes.__all__)


@pytest.mark.parametrize("row", [row for row in ROWS if row.reads_items], ids=lambda row: row.name)
def test_a_pipe_continues_after_an_item_that_its_source_has_skipped(row: Row) -> None:
    items = list(range(14))
    pipe = seed(row.build(lambda: IterableWrapper(items).map(whole), **row.example).on_error("skip"), 1)
    other = seed(row.build(lambda: IterableWrapper(good(*items)), **row.example), 1)
    found, expected = ([repr(item) for item in one] for one in (pipe, other))
    if row.name == "map_pipe_shuffle":  # The order depends on all indices, including the indices of skipped items.
        found.sort(), expected.sort()
    assert found == expected
