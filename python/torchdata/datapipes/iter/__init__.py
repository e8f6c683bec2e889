"""Pipes that are read by iterating."""

from functools import partial
from typing import TYPE_CHECKING

from torchdata._publishing import publish_late
from torchdata.datapipes._pipe.checks import wrap_data_by
from torchdata.datapipes._pipe.graph.torch import pair_with_torch
from torchdata.datapipes.datapipe import IterDataPipe

if TYPE_CHECKING:
    from torchdata.datapipes._pipe.columns import chosen as chosen
    from torchdata.datapipes._pipe.division import Division as Division
    from torchdata.datapipes._pipe.division import Given as Given
    from torchdata.datapipes._pipe.frames import FrameFormat as FrameFormat
    from torchdata.datapipes.iter.archives.compression import Bz2FileLoader, Decompressor, Extractor, XzFileLoader
    from torchdata.datapipes.iter.archives.compression import CompressionType as CompressionType
    from torchdata.datapipes.iter.archives.rar import RarArchiveLoader
    from torchdata.datapipes.iter.archives.tar import TarArchiveLoader
    from torchdata.datapipes.iter.archives.zip import ZipArchiveLoader
    from torchdata.datapipes.iter.branching.children import Child as Child
    from torchdata.datapipes.iter.branching.combining import (
        Concater,
        Multiplexer,
        MultiplexerLongest,
        SampleMultiplexer,
        Zipper,
        ZipperLongest,
    )
    from torchdata.datapipes.iter.branching.key_zipping import IterKeyZipper, MapKeyZipper
    from torchdata.datapipes.iter.branching.random_splitting import RandomSplitter
    from torchdata.datapipes.iter.branching.random_splitting import _Split as _Split
    from torchdata.datapipes.iter.branching.random_splitting import _SplitMain as _SplitMain
    from torchdata.datapipes.iter.branching.splitting import Demultiplexer, Forker, RoundRobinDemultiplexer, UnZipper
    from torchdata.datapipes.iter.branching.splitting import _DemuxMain as _DemuxMain
    from torchdata.datapipes.iter.branching.splitting import _ForkMain as _ForkMain
    from torchdata.datapipes.iter.branching.splitting import _RoundRobinMain as _RoundRobinMain
    from torchdata.datapipes.iter.branching.splitting import _UnzipMain as _UnzipMain
    from torchdata.datapipes.iter.disk_cache.pipes import EndOnDiskCacheHolder, OnDiskCacheHolder
    from torchdata.datapipes.iter.mapping.batch_mapping import BatchAsyncMapper, BatchMapper
    from torchdata.datapipes.iter.mapping.batch_mapping import _itself as _itself
    from torchdata.datapipes.iter.mapping.callable import Collator, FlatMapper, Mapper
    from torchdata.datapipes.iter.mapping.columns import Dropper, Flattener, Slicer
    from torchdata.datapipes.iter.mapping.converting import MapToIterConverter
    from torchdata.datapipes.iter.mapping.images import ImageDecoder
    from torchdata.datapipes.iter.mapping.rows import IndexAdder, Rows2Columnar
    from torchdata.datapipes.iter.mapping.selecting import Filter, Header
    from torchdata.datapipes.iter.mapping.skipping import OnError
    from torchdata.datapipes.iter.mapping.wrapping import IterableWrapper, LengthSetter
    from torchdata.datapipes.iter.ordering.bucketing import BucketBatcher, MaxTokenBucketizer
    from torchdata.datapipes.iter.ordering.bucketing import _Measured as _Measured
    from torchdata.datapipes.iter.ordering.bucketing import _sorted_bucket as _sorted_bucket
    from torchdata.datapipes.iter.ordering.caching import InMemoryCacheHolder
    from torchdata.datapipes.iter.ordering.combinatorics import InBatchShuffler, Sampler, Shuffler
    from torchdata.datapipes.iter.ordering.combinatorics import SequentialSampler as SequentialSampler
    from torchdata.datapipes.iter.ordering.flat_shuffling import ShuffledFlatMapper
    from torchdata.datapipes.iter.ordering.grouping import Batcher, Grouper, UnBatcher
    from torchdata.datapipes.iter.ordering.packing import Packer
    from torchdata.datapipes.iter.ordering.repeating import Cycler, Enumerator, Repeater
    from torchdata.datapipes.iter.ordering.sharding import (
        SHARDING_PRIORITIES,
        ShardingFilter,
        ShardingRoundRobinDispatcher,
    )
    from torchdata.datapipes.iter.stores.aistore import AISFileLister, AISFileLoader
    from torchdata.datapipes.iter.stores.fsspec import FSSpecFileLister, FSSpecFileOpener, FSSpecSaver
    from torchdata.datapipes.iter.stores.huggingface import HuggingFaceHubReader
    from torchdata.datapipes.iter.stores.iopath import IoPathFileLister, IoPathFileOpener, IoPathSaver
    from torchdata.datapipes.iter.stores.s3 import S3FileLister, S3FileLoader
    from torchdata.datapipes.iter.streams.arrow import ArrowReader, LanceReader
    from torchdata.datapipes.iter.streams.decoding import RoutedDecoder
    from torchdata.datapipes.iter.streams.files import FileLister, FileOpener, StreamReader
    from torchdata.datapipes.iter.streams.frames import DataFrameMaker, ParquetDataFrameLoader
    from torchdata.datapipes.iter.streams.json import JsonParser
    from torchdata.datapipes.iter.streams.paragraphs import ParagraphAggregator
    from torchdata.datapipes.iter.streams.paragraphs import _default_line_join as _default_line_join
    from torchdata.datapipes.iter.streams.saving import HashChecker, Saver
    from torchdata.datapipes.iter.streams.shards import ShardExpander
    from torchdata.datapipes.iter.streams.text import CSVDictParser, CSVParser, LineReader
    from torchdata.datapipes.iter.streams.tfrecords import TFRecordExample as TFRecordExample
    from torchdata.datapipes.iter.streams.tfrecords import TFRecordExampleSpec as TFRecordExampleSpec
    from torchdata.datapipes.iter.streams.tfrecords import TFRecordLoader
    from torchdata.datapipes.iter.streams.webdataset import WebDataset
    from torchdata.datapipes.iter.threads.pinning import PinMemory
    from torchdata.datapipes.iter.threads.prefetching import Prefetcher
    from torchdata.datapipes.iter.threads.synchronizing import FullSync
    from torchdata.datapipes.iter.threads.threadpool import ThreadPoolMapper
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

#: All is imported when it is first used: by module its names, each with its functional form. Names that are not in
#: `__all__` are private, but pickles hold them.
_LATE: dict[str, dict[str, str | None]] = {
    "torchdata.datapipes._pipe.columns": {
        "chosen": None,
    },
    "torchdata.datapipes._pipe.division": {
        "Division": None,
        "Given": None,
    },
    "torchdata.datapipes._pipe.frames": {
        "FrameFormat": None,
    },
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
    "branching.children": {
        "Child": None,
    },
    "branching.combining": {
        "Concater": "concat",
        "Multiplexer": "mux",
        "MultiplexerLongest": "mux_longest",
        "SampleMultiplexer": None,
        "Zipper": "zip",
        "ZipperLongest": "zip_longest",
    },
    "branching.key_zipping": {
        "IterKeyZipper": "zip_with_iter",
        "MapKeyZipper": "zip_with_map",
    },
    "branching.random_splitting": {
        "RandomSplitter": "random_split",
        "_Split": None,
        "_SplitMain": None,
    },
    "branching.splitting": {
        "Demultiplexer": "demux",
        "Forker": "fork",
        "RoundRobinDemultiplexer": "round_robin_demux",
        "UnZipper": "unzip",
        "_DemuxMain": None,
        "_ForkMain": None,
        "_RoundRobinMain": None,
        "_UnzipMain": None,
    },
    "disk_cache.pipes": {
        "EndOnDiskCacheHolder": "end_caching",
        "OnDiskCacheHolder": "on_disk_cache",
    },
    "mapping.batch_mapping": {
        "BatchAsyncMapper": "async_map_batches",
        "BatchMapper": "map_batches",
        "_itself": None,
    },
    "mapping.callable": {
        "Collator": "collate",
        "FlatMapper": "flatmap",
        "Mapper": "map",
    },
    "mapping.columns": {
        "Dropper": "drop",
        "Flattener": "flatten",
        "Slicer": "slice",
    },
    "mapping.converting": {
        "MapToIterConverter": None,
    },
    "mapping.images": {
        "ImageDecoder": "decode_image",
    },
    "mapping.rows": {
        "IndexAdder": "add_index",
        "Rows2Columnar": "rows2columnar",
    },
    "mapping.selecting": {
        "Filter": "filter",
        "Header": "header",
    },
    "mapping.skipping": {
        "OnError": "on_error",
    },
    "mapping.wrapping": {
        "IterableWrapper": None,
        "LengthSetter": "set_length",
    },
    "ordering.bucketing": {
        "BucketBatcher": "bucketbatch",
        "MaxTokenBucketizer": "max_token_bucketize",
        "_Measured": None,
        "_sorted_bucket": None,
    },
    "ordering.caching": {
        "InMemoryCacheHolder": "in_memory_cache",
    },
    "ordering.combinatorics": {
        "InBatchShuffler": "in_batch_shuffle",
        "Sampler": None,
        "SequentialSampler": None,
        "Shuffler": "shuffle",
    },
    "ordering.flat_shuffling": {
        "ShuffledFlatMapper": "shuffled_flatmap",
    },
    "ordering.grouping": {
        "Batcher": "batch",
        "Grouper": "groupby",
        "UnBatcher": "unbatch",
    },
    "ordering.packing": {
        "Packer": "pack",
    },
    "ordering.repeating": {
        "Cycler": "cycle",
        "Enumerator": "enumerate",
        "Repeater": "repeat",
    },
    "ordering.sharding": {
        "SHARDING_PRIORITIES": None,
        "ShardingFilter": "sharding_filter",
        "ShardingRoundRobinDispatcher": "sharding_round_robin_dispatch",
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
    "streams.decoding": {
        "RoutedDecoder": "routed_decode",
    },
    "streams.files": {
        "FileLister": "list_files",
        "FileOpener": "open_files",
        "StreamReader": "read_from_stream",
    },
    "streams.frames": {
        "DataFrameMaker": "dataframe",
        "ParquetDataFrameLoader": "load_parquet_as_df",
    },
    "streams.json": {
        "JsonParser": "parse_json_files",
    },
    "streams.paragraphs": {
        "ParagraphAggregator": "lines_to_paragraphs",
        "_default_line_join": None,
    },
    "streams.saving": {
        "HashChecker": "check_hash",
        "Saver": "save_to_disk",
    },
    "streams.shards": {
        "ShardExpander": "shard_expand",
    },
    "streams.text": {
        "CSVDictParser": "parse_csv_as_dict",
        "CSVParser": "parse_csv",
        "LineReader": "readlines",
    },
    "streams.tfrecords": {
        "TFRecordExample": None,
        "TFRecordExampleSpec": None,
        "TFRecordLoader": "load_from_tfrecord",
    },
    "streams.webdataset": {
        "WebDataset": "webdataset",
    },
    "threads.pinning": {
        "PinMemory": "pin_memory",
    },
    "threads.prefetching": {
        "Prefetcher": "prefetch",
    },
    "threads.synchronizing": {
        "FullSync": "fullsync",
    },
    "threads.threadpool": {
        "ThreadPoolMapper": "threadpool_map",
    },
    "web.online": {
        "GDriveReader": "read_from_gdrive",
        "HttpReader": "read_from_http",
        "OnlineReader": "read_from_remote",
    },
}

publish_late(globals(), _LATE, partial(pair_with_torch, "torch.utils.data.datapipes.iter"))
IterDataPipe.register_all_late(__name__, _LATE)
wrap_data_by(IterDataPipe, f"{__name__}.mapping.wrapping", "IterableWrapper")
# Forms that are functions, or make pipes of the other kind.
IterDataPipe.register_late("sample_multiplex", f"{__name__}.branching.combining", "_sample_multiplex")
IterDataPipe.register_late("to_map_datapipe", "torchdata.datapipes.map.wrapping", "IterToMapConverter")
IterDataPipe.register_late("to_node", f"{__name__}.mapping.converting", "to_node")
