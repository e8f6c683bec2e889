"""Pipes that are read by iterating."""

from torchdata.datapipes._torch import pair_with_torch
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter.aistore import AISFileLister, AISFileLoader
from torchdata.datapipes.iter.archives import TarArchiveLoader, ZipArchiveLoader
from torchdata.datapipes.iter.batch_mapping import BatchAsyncMapper, BatchMapper
from torchdata.datapipes.iter.bucketing import BucketBatcher, MaxTokenBucketizer
from torchdata.datapipes.iter.caching import InMemoryCacheHolder
from torchdata.datapipes.iter.callable import Collator, FlatMapper, Mapper
from torchdata.datapipes.iter.columns import Dropper, Flattener, Slicer
from torchdata.datapipes.iter.combinatorics import InBatchShuffler, Sampler, Shuffler
from torchdata.datapipes.iter.combining import (
    Concater,
    Multiplexer,
    MultiplexerLongest,
    SampleMultiplexer,
    Zipper,
    ZipperLongest,
)
from torchdata.datapipes.iter.compression import Bz2FileLoader, Decompressor, Extractor, XzFileLoader
from torchdata.datapipes.iter.concurrent import ThreadPoolMapper
from torchdata.datapipes.iter.converting import MapToIterConverter
from torchdata.datapipes.iter.decoding import RoutedDecoder
from torchdata.datapipes.iter.disk_caching import EndOnDiskCacheHolder, OnDiskCacheHolder
from torchdata.datapipes.iter.files import FileLister, FileOpener, StreamReader
from torchdata.datapipes.iter.flat_shuffling import ShuffledFlatMapper
from torchdata.datapipes.iter.frames import DataFrameMaker, ParquetDataFrameLoader
from torchdata.datapipes.iter.fsspec import FSSpecFileLister, FSSpecFileOpener, FSSpecSaver
from torchdata.datapipes.iter.grouping import Batcher, Grouper, UnBatcher
from torchdata.datapipes.iter.huggingface import HuggingFaceHubReader
from torchdata.datapipes.iter.iopath import IoPathFileLister, IoPathFileOpener, IoPathSaver
from torchdata.datapipes.iter.json import JsonParser
from torchdata.datapipes.iter.key_zipping import IterKeyZipper, MapKeyZipper
from torchdata.datapipes.iter.online import GDriveReader, HttpReader, OnlineReader
from torchdata.datapipes.iter.paragraphs import ParagraphAggregator
from torchdata.datapipes.iter.pinning import PinMemory
from torchdata.datapipes.iter.prefetching import Prefetcher
from torchdata.datapipes.iter.random_splitting import RandomSplitter
from torchdata.datapipes.iter.rar import RarArchiveLoader
from torchdata.datapipes.iter.repeating import Cycler, Enumerator, Repeater
from torchdata.datapipes.iter.rows import IndexAdder, Rows2Columnar
from torchdata.datapipes.iter.s3 import S3FileLister, S3FileLoader
from torchdata.datapipes.iter.saving import HashChecker, Saver
from torchdata.datapipes.iter.selecting import Filter, Header
from torchdata.datapipes.iter.sharding import (
    SHARDING_PRIORITIES,
    ShardingFilter,
    ShardingRoundRobinDispatcher,
)
from torchdata.datapipes.iter.shards import ShardExpander
from torchdata.datapipes.iter.splitting import Demultiplexer, Forker, RoundRobinDemultiplexer, UnZipper
from torchdata.datapipes.iter.synchronizing import FullSync
from torchdata.datapipes.iter.text import CSVDictParser, CSVParser, LineReader
from torchdata.datapipes.iter.tfrecords import TFRecordExample as TFRecordExample
from torchdata.datapipes.iter.tfrecords import TFRecordExampleSpec as TFRecordExampleSpec
from torchdata.datapipes.iter.tfrecords import TFRecordLoader
from torchdata.datapipes.iter.webdataset import WebDataset
from torchdata.datapipes.iter.wrapping import IterableWrapper, LengthSetter

__all__ = [
    "SHARDING_PRIORITIES",
    "AISFileLister",
    "AISFileLoader",
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
    "LengthSetter",
    "LineReader",
    "MapKeyZipper",
    "MapToIterConverter",
    "Mapper",
    "MaxTokenBucketizer",
    "Multiplexer",
    "MultiplexerLongest",
    "OnDiskCacheHolder",
    "OnlineReader",
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

pair_with_torch("torch.utils.data.datapipes.iter", globals())
