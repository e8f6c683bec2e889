"""Pipes that are read by iterating."""

from functools import partial
from typing import TYPE_CHECKING

from torchdata._publishing import publish, publish_late
from torchdata.datapipes._pipe.columns import chosen
from torchdata.datapipes._pipe.division import Division, Given
from torchdata.datapipes._pipe.frames import FrameFormat
from torchdata.datapipes._pipe.graph.torch import pair_with_torch
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter.branching.children import Child
from torchdata.datapipes.iter.branching.combining import (
    Concater,
    Multiplexer,
    MultiplexerLongest,
    SampleMultiplexer,
    Zipper,
    ZipperLongest,
)
from torchdata.datapipes.iter.branching.key_zipping import IterKeyZipper, MapKeyZipper
from torchdata.datapipes.iter.branching.random_splitting import RandomSplitter, _Split, _SplitMain
from torchdata.datapipes.iter.branching.splitting import (
    Demultiplexer,
    Forker,
    RoundRobinDemultiplexer,
    UnZipper,
    _DemuxMain,
    _ForkMain,
    _RoundRobinMain,
    _UnzipMain,
)
from torchdata.datapipes.iter.mapping.batch_mapping import BatchAsyncMapper, BatchMapper, _itself
from torchdata.datapipes.iter.mapping.callable import Collator, FlatMapper, Mapper
from torchdata.datapipes.iter.mapping.columns import Dropper, Flattener, Slicer
from torchdata.datapipes.iter.mapping.converting import MapToIterConverter
from torchdata.datapipes.iter.mapping.rows import IndexAdder, Rows2Columnar
from torchdata.datapipes.iter.mapping.selecting import Filter, Header
from torchdata.datapipes.iter.mapping.skipping import OnError
from torchdata.datapipes.iter.mapping.wrapping import IterableWrapper, LengthSetter
from torchdata.datapipes.iter.ordering.bucketing import (
    BucketBatcher,
    MaxTokenBucketizer,
    _Measured,
    _sorted_bucket,
)
from torchdata.datapipes.iter.ordering.caching import InMemoryCacheHolder
from torchdata.datapipes.iter.ordering.combinatorics import (
    InBatchShuffler,
    Sampler,
    SequentialSampler,
    Shuffler,
)
from torchdata.datapipes.iter.ordering.flat_shuffling import ShuffledFlatMapper
from torchdata.datapipes.iter.ordering.grouping import Batcher, Grouper, UnBatcher
from torchdata.datapipes.iter.ordering.repeating import Cycler, Enumerator, Repeater
from torchdata.datapipes.iter.ordering.sharding import (
    SHARDING_PRIORITIES,
    ShardingFilter,
    ShardingRoundRobinDispatcher,
)
from torchdata.datapipes.iter.streams.decoding import RoutedDecoder
from torchdata.datapipes.iter.streams.files import FileLister, FileOpener, StreamReader
from torchdata.datapipes.iter.streams.json import JsonParser
from torchdata.datapipes.iter.streams.paragraphs import ParagraphAggregator, _default_line_join
from torchdata.datapipes.iter.streams.shards import ShardExpander
from torchdata.datapipes.iter.streams.text import CSVDictParser, CSVParser, LineReader
from torchdata.datapipes.iter.threads.pinning import PinMemory
from torchdata.datapipes.iter.threads.prefetching import Prefetcher
from torchdata.datapipes.iter.threads.synchronizing import FullSync
from torchdata.datapipes.iter.threads.threadpool import ThreadPoolMapper

if TYPE_CHECKING:
    from torchdata.datapipes.iter.archives.compression import (
        Bz2FileLoader,
        Decompressor,
        Extractor,
        XzFileLoader,
    )
    from torchdata.datapipes.iter.archives.compression import CompressionType as CompressionType
    from torchdata.datapipes.iter.archives.rar import RarArchiveLoader
    from torchdata.datapipes.iter.archives.tar import TarArchiveLoader
    from torchdata.datapipes.iter.archives.zip import ZipArchiveLoader
    from torchdata.datapipes.iter.disk_cache.pipes import EndOnDiskCacheHolder, OnDiskCacheHolder
    from torchdata.datapipes.iter.mapping.images import ImageDecoder
    from torchdata.datapipes.iter.ordering.packing import Packer
    from torchdata.datapipes.iter.stores.aistore import AISFileLister, AISFileLoader
    from torchdata.datapipes.iter.stores.fsspec import FSSpecFileLister, FSSpecFileOpener, FSSpecSaver
    from torchdata.datapipes.iter.stores.huggingface import HuggingFaceHubReader
    from torchdata.datapipes.iter.stores.iopath import IoPathFileLister, IoPathFileOpener, IoPathSaver
    from torchdata.datapipes.iter.stores.s3 import S3FileLister, S3FileLoader
    from torchdata.datapipes.iter.streams.arrow import ArrowReader, LanceReader
    from torchdata.datapipes.iter.streams.frames import DataFrameMaker, ParquetDataFrameLoader
    from torchdata.datapipes.iter.streams.saving import HashChecker, Saver
    from torchdata.datapipes.iter.streams.tfrecords import TFRecordExample as TFRecordExample
    from torchdata.datapipes.iter.streams.tfrecords import TFRecordExampleSpec as TFRecordExampleSpec
    from torchdata.datapipes.iter.streams.tfrecords import TFRecordLoader
    from torchdata.datapipes.iter.streams.webdataset import WebDataset
    from torchdata.datapipes.iter.web.online import GDriveReader, HttpReader, OnlineReader

__all__ = [
    "SHARDING_PRIORITIES",
    "AISFileLister",
    "AISFileLoader",
    "ArrowReader",
    "BatchAsyncMapper",
    "BatchMapper",
    "Batcher",
    "BucketBatcher",
    "Bz2FileLoader",
    "CSVDictParser",
    "CSVParser",
    "Collator",
    "Concater",
    "Cycler",
    "DataFrameMaker",
    "Decompressor",
    "Demultiplexer",
    "Dropper",
    "EndOnDiskCacheHolder",
    "Enumerator",
    "Extractor",
    "FSSpecFileLister",
    "FSSpecFileOpener",
    "FSSpecSaver",
    "FileLister",
    "FileOpener",
    "Filter",
    "FlatMapper",
    "Flattener",
    "Forker",
    "FullSync",
    "GDriveReader",
    "Grouper",
    "HashChecker",
    "Header",
    "HttpReader",
    "HuggingFaceHubReader",
    "ImageDecoder",
    "InBatchShuffler",
    "InMemoryCacheHolder",
    "IndexAdder",
    "IoPathFileLister",
    "IoPathFileOpener",
    "IoPathSaver",
    "IterDataPipe",
    "IterKeyZipper",
    "IterableWrapper",
    "JsonParser",
    "LanceReader",
    "LengthSetter",
    "LineReader",
    "MapKeyZipper",
    "MapToIterConverter",
    "Mapper",
    "MaxTokenBucketizer",
    "Multiplexer",
    "MultiplexerLongest",
    "OnDiskCacheHolder",
    "OnError",
    "OnlineReader",
    "Packer",
    "ParagraphAggregator",
    "ParquetDataFrameLoader",
    "PinMemory",
    "Prefetcher",
    "RandomSplitter",
    "RarArchiveLoader",
    "Repeater",
    "RoundRobinDemultiplexer",
    "RoutedDecoder",
    "Rows2Columnar",
    "S3FileLister",
    "S3FileLoader",
    "SampleMultiplexer",
    "Sampler",
    "Saver",
    "ShardExpander",
    "ShardingFilter",
    "ShardingRoundRobinDispatcher",
    "ShuffledFlatMapper",
    "Shuffler",
    "Slicer",
    "StreamReader",
    "TFRecordLoader",
    "TarArchiveLoader",
    "ThreadPoolMapper",
    "UnBatcher",
    "UnZipper",
    "WebDataset",
    "XzFileLoader",
    "ZipArchiveLoader",
    "Zipper",
    "ZipperLongest",
]

# Pickles hold these as well. They are private for all that.
publish(
    globals(),
    Child,
    Division,
    FrameFormat,
    Given,
    SequentialSampler,
    _DemuxMain,
    _ForkMain,
    _Measured,
    _RoundRobinMain,
    _Split,
    _SplitMain,
    _UnzipMain,
    _default_line_join,
    _itself,
    _sorted_bucket,
    chosen,
)
pair_with_torch("torch.utils.data.datapipes.iter", globals())

#: What few programs need: it is imported when it is first used. By module its names, each with its functional form.
_LATE: dict[str, dict[str, str | None]] = {
    "archives.compression": {
        "Bz2FileLoader": "load_from_bz2",
        "CompressionType": None,
        "Decompressor": "decompress",
        "Extractor": "extract",
        "XzFileLoader": "load_from_xz",
    },
    "archives.rar": {
        "RarArchiveLoader": "load_from_rar",
    },
    "archives.tar": {
        "TarArchiveLoader": "load_from_tar",
    },
    "archives.zip": {
        "ZipArchiveLoader": "load_from_zip",
    },
    "disk_cache.pipes": {
        "EndOnDiskCacheHolder": "end_caching",
        "OnDiskCacheHolder": "on_disk_cache",
    },
    "mapping.images": {
        "ImageDecoder": "decode_image",
    },
    "ordering.packing": {
        "Packer": "pack",
    },
    "stores.aistore": {
        "AISFileLister": "list_files_by_ais",
        "AISFileLoader": "load_files_by_ais",
    },
    "stores.fsspec": {
        "FSSpecFileLister": "list_files_by_fsspec",
        "FSSpecFileOpener": "open_files_by_fsspec",
        "FSSpecSaver": "save_by_fsspec",
    },
    "stores.huggingface": {
        "HuggingFaceHubReader": None,
    },
    "stores.iopath": {
        "IoPathFileLister": "list_files_by_iopath",
        "IoPathFileOpener": "open_files_by_iopath",
        "IoPathSaver": "save_by_iopath",
    },
    "stores.s3": {
        "S3FileLister": "list_files_by_s3",
        "S3FileLoader": "load_files_by_s3",
    },
    "streams.arrow": {
        "ArrowReader": "read_arrow",
        "LanceReader": "read_lance",
    },
    "streams.frames": {
        "DataFrameMaker": "dataframe",
        "ParquetDataFrameLoader": "load_parquet_as_df",
    },
    "streams.saving": {
        "HashChecker": "check_hash",
        "Saver": "save_to_disk",
    },
    "streams.tfrecords": {
        "TFRecordExample": None,
        "TFRecordExampleSpec": None,
        "TFRecordLoader": "load_from_tfrecord",
    },
    "streams.webdataset": {
        "WebDataset": "webdataset",
    },
    "web.online": {
        "GDriveReader": "read_from_gdrive",
        "HttpReader": "read_from_http",
        "OnlineReader": "read_from_remote",
    },
}

publish_late(globals(), _LATE, partial(pair_with_torch, "torch.utils.data.datapipes.iter"))
for _module, _names in _LATE.items():
    for _name, _form in _names.items():
        if _form is not None:
            IterDataPipe.register_late(_form, f"{__name__}.{_module}", _name)
