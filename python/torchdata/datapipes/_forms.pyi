"""The functional forms of all pipes as typed methods. Written by `make stubs`: do not edit.

Only type checkers and editors read this file. At run time, the functional forms of pipes come from registries.
Functional forms that users register are not included in this file: see `functional_datapipe`.
"""

import os
import random
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from numpy import bool_
from typing import Any, Generic, Literal, TypeVar, overload

import torchdata.datapipes.iter
import torchdata.datapipes.map
from torchdata._ranks.group import RankGroup, TorchRanks
from torchdata.datapipes._pipe.registry import FunctionalForms
from torchdata.datapipes.datapipe import DataChunk, IterDataPipe, MapDataPipe
from torchdata.datapipes.iter import CompressionType
from torchdata.datapipes.iter.streams.tfrecords import TFRecordExampleSpec
from torchdata.datapipes.utils import StreamWrapper
from torchdata.nodes import BaseNode

T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")

class IterForms(FunctionalForms, Generic[T_co]):
    def add_index(self, index_name: Hashable = "index") -> IterDataPipe[dict[Any, Any]]:
        """Stores the number of each item, starting with 0, in the item itself, which must be a dict."""

    def async_map_batches(
        self, async_fn: Callable[..., Awaitable[Any]], batch_size: int, input_col: Any = None, output_col: Any = None,
        max_concurrency: int = 32, flatten: bool = True,
    ) -> IterDataPipe[Any]:
        """Applies a coroutine function concurrently to the items of a batch, and yields the results in the
        items' order.
        """

    @overload
    def batch(self, batch_size: int, drop_last: bool = False) -> IterDataPipe[DataChunk[T_co]]:
        """Groups consecutive items into batches."""

    @overload
    def batch(
        self, batch_size: int, drop_last: bool = False, wrapper_class: Callable[[list[T_co]], R] = ...,
    ) -> IterDataPipe[R]:
        """Groups consecutive items into batches."""

    def bucketbatch(
        self, batch_size: int, drop_last: bool = False, batch_num: int = 100, bucket_num: int = 1,
        sort_key: Callable[[list[T_co]], Sequence[T_co]] | None = None, use_in_batch_shuffle: bool = True,
    ) -> IterDataPipe[DataChunk[T_co]]:
        """Makes batches of similar items by sorting one bucket of items at a time, and yields the batches
        in random order.
        """

    def check_hash(
        self, hash_dict: Mapping[str, str], hash_type: str = "sha256", rewind: bool = True,
    ) -> IterDataPipe[tuple[str, Any]]:
        """Verifies the hashes of files: yields each file with the expected hash, and raises an error for
        any other file.
        """

    def collate(
        self, conversion: Any = ..., collate_fn: Callable[..., Any] | None = None, *,
        to: Literal["numpy", "torch"] | None = None,
    ) -> IterDataPipe[Any]:
        """Converts each batch to arrays, or to tensors if PyTorch is imported, with the items along the
        first dimension.
        """

    def concat(self, *datapipes: Any) -> IterDataPipe[Any]:
        """Yields the items of its inputs, one input after another. `a + b` is the same as `a.concat(b)`."""

    def cycle(self, count: int | None = None) -> IterDataPipe[T_co]:
        """Reads its source several times."""

    def dataframe(
        self, dataframe_size: int = 1000, dtype: Any = None, dtype_generator: Callable[[], Any] | None = None,
        columns: list[str] | None = None, device: str = "", library: str = "pandas",
    ) -> IterDataPipe[Any]:
        """Creates data frames from consecutive rows."""

    def decode_image(
        self, size: int | tuple[int, int] | None = None, *, crop: Literal["random", "center"] | Callable[[random.Random,
         int, int], Sequence[int]] | Sequence[int] | None = None, flip: float = 0.0, mode: str = "RGB",
        layout: Literal["HWC", "CHW"] = "HWC", scale: Literal["exact", "fast"] = "exact", resample: str = "bilinear",
        exif: bool = False, truncated: Literal["error", "keep"] = "error", as_tensor: bool = False,
        input_col: Any = None, output_col: Any = None,
    ) -> torchdata.datapipes.iter.ImageDecoder:
        """Decodes images: converts bytes, paths or open files to arrays or tensors, cropped and resized by
        `torchdata.images.decode`.
        """

    def decompress(
        self, file_type: str | CompressionType | None = None, *, max_ratio: float | None = 100.0,
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Decompresses streams: yields pairs of path and decompressed stream. Paths stay unchanged."""

    def demux(
        self, num_instances: int, classifier_fn: Callable[[T_co], int | None], drop_none: bool = False,
        buffer_size: int = 1000,
    ) -> list[IterDataPipe[T_co]]:
        """Splits a pipe by a function: returns a list of child pipes, each with the items of one class."""

    def drop(self, indices: Hashable | list[Hashable]) -> IterDataPipe[Any]:
        """Removes columns from every item."""

    def end_caching(
        self, mode: str = "wb", filepath_fn: Callable[..., Any] | None = None, *, same_filepath_fn: bool = False,
        skip_read: bool = False, timeout: float = 300,
    ) -> torchdata.datapipes.iter.EndOnDiskCacheHolder:
        """Ends the section that `on_disk_cache` began: writes files and yields the paths of all files."""

    def enumerate(self, starting_index: int = 0) -> IterDataPipe[tuple[int, T_co]]:
        """Numbers the items: yields `(number, item)`."""

    def extract(
        self, file_type: str | CompressionType | None = None, *, max_ratio: float | None = 100.0,
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """The old name of `Decompressor`. The constructor returns a `Decompressor`."""

    @overload
    def filter(self, filter_fn: Callable[[T_co], bool | bool_], input_col: None = None) -> IterDataPipe[T_co]:
        """Yields an item if a function returns True for it. The filter closes the streams in items that it
        does not yield.
        """

    @overload
    def filter(self, filter_fn: Callable[..., bool | bool_], input_col: Any) -> IterDataPipe[T_co]:
        """Yields an item if a function returns True for it. The filter closes the streams in items that it
        does not yield.
        """

    @overload
    def flatmap(self, fn: Callable[[T_co], Iterable[R]], input_col: None = None) -> IterDataPipe[R]:
        """Applies a function to every item and yields the members of its results one after another."""

    @overload
    def flatmap(self, fn: None = None, input_col: Any = None) -> IterDataPipe[Any]:
        """Applies a function to every item and yields the members of its results one after another."""

    @overload
    def flatmap(self, fn: Callable[..., Any], input_col: Any) -> IterDataPipe[Any]:
        """Applies a function to every item and yields the members of its results one after another."""

    def flatten(self, indices: Hashable | list[Hashable] | None = None) -> IterDataPipe[Any]:
        """Replaces each nested tuple, list or dict in an item with its members, one level deep."""

    def fork(
        self, num_instances: int, buffer_size: int = 1000, copy: Literal["shallow", "deep"] | None = None,
    ) -> list[IterDataPipe[T_co]]:
        """Lets several pipes read one pipe: returns a list of child pipes that each yield all items."""

    def fullsync(
        self, timeout: float = 1800, process_group: RankGroup | TorchRanks | None = None,
    ) -> IterDataPipe[T_co]:
        """Ends the iteration on all ranks as soon as one rank runs out of items, so that all ranks yield
        equally many items.
        """

    def groupby(
        self, group_key_fn: Callable[[T_co], Any], *, keep_key: bool = False, buffer_size: int | None = 10000,
        group_size: int | None = None, guaranteed_group_size: int | None = None, drop_remaining: bool = False,
    ) -> IterDataPipe[Any]:
        """Collects items with equal keys into groups and yields each group when it is full."""

    def header(self, limit: int | None = 10) -> IterDataPipe[T_co]:
        """Yields only the first items."""

    def in_batch_shuffle(self) -> torchdata.datapipes.iter.InBatchShuffler:
        """Shuffles the members of each batch and keeps the order of the batches."""

    def in_memory_cache(self, size: float | None = None) -> torchdata.datapipes.iter.InMemoryCacheHolder[T_co]:
        """Stores its items in memory, so that all earlier pipes run only in the first epoch."""

    def lines_to_paragraphs(self, joiner: Callable[[list[Any]], Any] = ...) -> IterDataPipe[tuple[str, Any]]:
        """Joins consecutive lines of one file into paragraphs. An empty line, or a line of another file,
        ends a paragraph.
        """

    def list_files(
        self, masks: str | list[str] = "", *, recursive: bool = False, abspath: bool = False,
        non_deterministic: bool = False, length: int = -1,
    ) -> IterDataPipe[str]:
        """Yields the paths of the files in one or several directories."""

    def list_files_by_ais(self, url: str, length: int = -1, *, timeout: float = 20.0) -> IterDataPipe[str]:
        """Lists objects in an AIStore cluster: yields the URLs that begin with given prefixes."""

    def list_files_by_fsspec(self, masks: str | list[str] = "", **kwargs: Any) -> IterDataPipe[str]:
        """Yields the URLs of the files and directories in one or several directories of any file system of
        fsspec.
        """

    def list_files_by_iopath(
        self, masks: str | list[str] = "", *, pathmgr: Any = None, handler: Any = None,
    ) -> torchdata.datapipes.iter.IoPathFileLister:
        """Lists one or several directories with iopath: yields the paths of files and subdirectories."""

    def list_files_by_s3(
        self, length: int = -1, request_timeout_ms: int = -1, region: str = "", masks: str | list[str] = "", *,
        endpoint_url: str = "", config: Mapping[str, Any] | None = None, max_retries: int = 3,
    ) -> IterDataPipe[str]:
        """Yields URLs in S3, Google Cloud Storage (`gs://`) or Azure (`az://`) that begin with a prefix."""

    def load_files_by_ais(
        self, url: str, length: int = -1, *, timeout: float = 20.0,
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Opens objects of an AIStore cluster: yields pairs of URL and stream."""

    def load_files_by_s3(
        self, request_timeout_ms: int = -1, region: str = "", buffer_size: int | None = None,
        multi_part_download: bool | None = None, *, endpoint_url: str = "", config: Mapping[str, Any] | None = None,
        max_retries: int = 3,
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Opens objects of S3, Google Cloud Storage and Azure: yields pairs of URL and stream."""

    def load_from_bz2(
        self, length: int = -1, *, max_ratio: float | None = 100.0,
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Decompresses bzip2 streams: yields pairs of path, without the suffix `.bz2`, and stream."""

    def load_from_rar(
        self, *, length: int = -1, max_ratio: float | None = 100.0,
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Reads RAR archives: yields pairs of path and stream, one per file. This pipe needs the extra
        `rar`.
        """

    def load_from_tar(
        self, mode: str = "r:*", length: int = -1, *, max_ratio: float | None = 100.0,
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Reads tar archives, plain or compressed: yields pairs of path and stream, one per regular file."""

    def load_from_tfrecord(
        self, spec: TFRecordExampleSpec | None = None, length: int = -1, verify_checksums: bool = True, *,
        max_length: int | None = 134217728,
    ) -> IterDataPipe[dict[str, Any]]:
        """Reads TFRecord files of `tf.train.Example` and `tf.train.SequenceExample`: yields a dict per
        record.
        """

    def load_from_xz(
        self, length: int = -1, *, max_ratio: float | None = 100.0,
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Decompresses xz and lzma streams: yields pairs of path, without the suffix `.xz`, and stream."""

    def load_from_zip(
        self, length: int = -1, *, max_ratio: float | None = 100.0,
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Reads zip archives: yields pairs of path and stream, one per file."""

    def load_parquet_as_df(
        self, dtype: Any = None, columns: list[str] | None = None, device: str = "", use_threads: bool = False,
        library: str = "pandas", *, dataframe_size: int | None = None,
    ) -> IterDataPipe[Any]:
        """Reads Parquet files: yields one data frame per row group, or frames of a given number of rows."""

    @overload
    def map(self, fn: Callable[[T_co], R], input_col: None = None, output_col: None = None) -> IterDataPipe[R]:
        """Applies a function to every item, or to columns of it."""

    @overload
    def map(self, fn: Callable[..., Any], input_col: Any, output_col: Any = None) -> IterDataPipe[Any]:
        """Applies a function to every item, or to columns of it."""

    def map_batches(self, fn: Callable[[list[Any]], Any], batch_size: int, input_col: Any = None) -> IterDataPipe[Any]:
        """Applies a function to batches of items and yields the members of its results one after another."""

    def max_token_bucketize(
        self, max_token_count: float, len_fn: Callable[[Any], Any] = ..., min_len: float = 0,
        max_len: float | None = None, buffer_size: int = 1000, include_padding: bool = False,
    ) -> IterDataPipe[DataChunk[Any]]:
        """Makes batches of items of similar length with a limited total length."""

    def mux(self, *datapipes: Any) -> IterDataPipe[Any]:
        """Yields one item of each input in turn, until the shortest input ends. If an input ends within a
        round, the items of the incomplete round are not yielded.
        """

    def mux_longest(self, *datapipes: Any) -> IterDataPipe[Any]:
        """Yields one item of each input in turn, and skips inputs that have ended, until all inputs have
        ended.
        """

    def on_disk_cache(
        self, filepath_fn: Callable[..., Any] | None = None, hash_dict: dict[str, str] | None = None,
        hash_type: str = "sha256", extra_check_fn: Callable[[str], bool] | None = None, *,
        folder: str | os.PathLike[str] | None = None,
    ) -> IterDataPipe[Any]:
        """Begins a section of the pipeline that stores its results in files; `end_caching` ends the
        section.
        """

    def on_error(
        self, how: Literal["skip"] = "skip", limit: int | float | None = None,
        log: str | os.PathLike[str] | None = None,
    ) -> IterDataPipe[T_co]:
        """Skips items that make an earlier pipe raise an exception."""

    def open_files(
        self, mode: str = "r", encoding: str | None = None, length: int = -1,
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Opens files: yields pairs of path and stream."""

    def open_files_by_fsspec(
        self, mode: str = "r", *, kwargs_for_open: Mapping[str, Any] | None = None, max_retries: int = 3, **kwargs: Any,
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Opens files by fsspec: yields pairs of URL and stream."""

    def open_files_by_iopath(
        self, mode: str = "r", pathmgr: Any = None, handler: Any = None,
    ) -> torchdata.datapipes.iter.IoPathFileOpener:
        """Opens files by iopath: yields pairs of path and stream."""

    def pack(
        self, max_tokens: int, *, method: Literal["first_fit", "in_order", "cut"] = "first_fit",
        long: Literal["split", "truncate", "drop", "error"] = "split", buffer_size: int = 16,
        pad_value: float | Mapping[str, float] | None = None, first_value: Mapping[str, float] | None = None,
        columns: Collection[str] | None = None, add: Collection[str] = ..., drop_last: bool = False,
    ) -> IterDataPipe[dict[str, Any]]:
        """Packs sequences of tokens into rows of at most `max_tokens`, and marks where each sequence
        begins.
        """

    def parse_csv(
        self, *, skip_lines: int = 0, decode: bool = True, encoding: str = "utf-8", errors: str | None = None,
        return_path: bool = False, as_tuple: bool = False, **fmtparams: Any,
    ) -> IterDataPipe[Any]:
        """Yields the rows of CSV files, as lists of str."""

    def parse_csv_as_dict(
        self, *, skip_lines: int = 0, decode: bool = True, encoding: str = "utf-8", errors: str | None = None,
        return_path: bool = False, **fmtparams: Any,
    ) -> IterDataPipe[Any]:
        """Yields the rows of CSV files as dicts, with the fields of each file's first row as keys."""

    def parse_json_files(self, **kwargs: Any) -> IterDataPipe[tuple[str, Any]]:
        """Parses JSON files, each as a whole: yields pairs of path and value."""

    def pin_memory(self, device: Any = None, pin_memory_fn: Callable[[Any, Any], Any] = ...) -> IterDataPipe[T_co]:
        """Copies items to pinned memory in a thread, one item ahead of the consumer. With worker
        processes, this pipe runs in the main process.
        """

    def prefetch(self, buffer_size: int = 10) -> IterDataPipe[T_co]:
        """Reads its source ahead in a thread, so that waiting for files or a network overlaps with the
        work of later pipes.
        """

    def random_split(
        self, weights: dict[Any, float], seed: Any, total_length: int | None = None, target: Hashable | None = None,
    ) -> Any:
        """Divides the items at random into groups of given sizes: returns one child pipe for each group."""

    def read_arrow(
        self, columns: list[str] | None = None, *, parts: MapDataPipe[int] | None = None, rows: bool = True,
        frame_size: int | None = None, library: Literal["numpy", "pandas", "polars", "pyarrow"] = "numpy",
        dtype: Any = None, writable: bool = False, use_threads: bool = False,
    ) -> IterDataPipe[Any]:
        """Reads a table part by part, in the order of the source: yields rows, or frames of many rows."""

    def read_from_gdrive(
        self, timeout: float | tuple[float | None, float | None] | None = None, skip_on_error: bool = False, *,
        max_retries: int = 3, **kwargs: Any,
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Opens files of Google Drive by their links: yields pairs of file name and binary stream."""

    def read_from_http(
        self, timeout: float | tuple[float | None, float | None] | None = None, skip_on_error: bool = False, *,
        max_retries: int = 3, **kwargs: Any,
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Opens files at HTTP URLs: yields pairs of URL and binary stream."""

    def read_from_remote(
        self, timeout: float | tuple[float | None, float | None] | None = None, skip_on_error: bool = False, *,
        max_retries: int = 3, **kwargs: Any,
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Opens files at URLs: URLs at drive.google.com and docs.google.com as `GDriveReader`, others as
        `HttpReader`.
        """

    def read_from_stream(self, chunk: int | None = None) -> IterDataPipe[tuple[str, Any]]:
        """Reads streams: yields pairs of path and content, whole or in chunks. Empty streams yield
        nothing.
        """

    def read_lance(
        self, dataset: Any, columns: list[str] | None = None, *, rows: bool = True, frame_size: int | None = None,
        library: Literal["numpy", "pandas", "polars", "pyarrow"] = "numpy", dtype: Any = None, writable: bool = False,
    ) -> IterDataPipe[Any]:
        """Reads rows of a Lance dataset by their indices, and yields single rows, or frames that contain
        several rows.
        """

    def readlines(
        self, *, skip_lines: int = 0, strip_newline: bool = True, decode: bool = False, encoding: str = "utf-8",
        errors: str | None = None, return_path: bool = True,
    ) -> IterDataPipe[Any]:
        """Yields the lines of streams, as pairs of path and line."""

    def repeat(self, times: int) -> IterDataPipe[T_co]:
        """Yields every item several times before the next item. The item is not copied."""

    def round_robin_demux(self, num_instances: int, buffer_size: int = 1000) -> list[IterDataPipe[T_co]]:
        """Distributes the items to `n` child pipes in turn, and returns a list of these pipes. Child `i`
        yields the items `i`, `i + n`, `i + 2n` and so on.
        """

    def routed_decode(
        self, *handlers: Callable[[str, Any], Any], key_fn: Callable[[str], str] = ...,
        allow_pickle: bool | None = None,
    ) -> torchdata.datapipes.iter.RoutedDecoder:
        """Decodes files: yields pairs of path and the result of the first handler that can decode the
        content.
        """

    def rows2columnar(self, column_names: Collection[Hashable] | None = None) -> IterDataPipe[dict[Any, list[Any]]]:
        """Converts batches of rows to dicts of columns."""

    def sample_multiplex(
        self, pipes_to_weights_dict: dict[Any, float], seed: int | None = None, weight: float = 1.0,
    ) -> torchdata.datapipes.iter.SampleMultiplexer:
        """Yields items of pipes that are chosen at random by their weights, until all pipes have ended."""

    def save_by_fsspec(
        self, mode: str = "w", filepath_fn: Callable[[Any], str] | None = None, *,
        kwargs_for_open: Mapping[str, Any] | None = None, **kwargs: Any,
    ) -> IterDataPipe[str]:
        """Writes each pair of metadata and data to a file with fsspec, and yields the URL of the written
        file.
        """

    def save_by_iopath(
        self, mode: str = "w", filepath_fn: Callable[[Any], str] | None = None, *, pathmgr: Any = None,
        handler: Any = None,
    ) -> torchdata.datapipes.iter.IoPathSaver:
        """Writes each pair of metadata and data to a file with iopath, and yields the path of the written
        file.
        """

    def save_to_disk(self, mode: str = "w", filepath_fn: Callable[[Any], Any] | None = None) -> IterDataPipe[str]:
        """Writes files: yields the path of each file when it is complete."""

    def set_length(self, length: int) -> IterDataPipe[T_co]:
        """Gives a pipeline a length without changing its items."""

    def shard_expand(self) -> IterDataPipe[str]:
        """Expands names such as `imagenet-{000..123}.tar` to the names of all shards."""

    def sharding_filter(self, sharding_group_filter: Any = None) -> IterDataPipe[T_co]:
        """Yields this process's share of the items: after `apply_sharding(n, i)`, every n-th item,
        starting with item i.
        """

    def sharding_round_robin_dispatch(self, sharding_group_filter: Any = None) -> IterDataPipe[T_co]:
        """Makes all earlier pipes run only once, in a dispatching process."""

    @overload
    def shuffle(
        self, *, buffer_size: int = 10000, unbatch_level: Literal[0] = 0,
    ) -> torchdata.datapipes.iter.Shuffler[T_co]:
        """Shuffles with a buffer: once the buffer is full, a random item is yielded and replaced by the
        next item.
        """

    @overload
    def shuffle(self, *, buffer_size: int = 10000, unbatch_level: int) -> torchdata.datapipes.iter.Shuffler[Any]:
        """Shuffles with a buffer: once the buffer is full, a random item is yielded and replaced by the
        next item.
        """

    def shuffled_flatmap(
        self, fn: Callable[..., Any] | None = None, input_col: Any = None, buffer_size: int = 100,
    ) -> torchdata.datapipes.iter.ShuffledFlatMapper[Any]:
        """Applies a function that returns lists to every item, and yields the members of several lists in
        random order.
        """

    def slice(self, index: Any, stop: int | None = None, step: int | None = None) -> IterDataPipe[Any]:
        """Keeps some columns of every item."""

    @overload
    def threadpool_map(
        self, fn: Callable[[T_co], R], input_col: None = None, output_col: None = None, scheduled_tasks: int = 128,
        max_workers: int | None = None, **threadpool_kwargs: Any,
    ) -> IterDataPipe[R]:
        """Applies a function to every item, or to columns of it, in several threads. Results keep the
        source's order.
        """

    @overload
    def threadpool_map(
        self, fn: Callable[..., Any], input_col: Any, output_col: Any = None, scheduled_tasks: int = 128,
        max_workers: int | None = None, **threadpool_kwargs: Any,
    ) -> IterDataPipe[Any]:
        """Applies a function to every item, or to columns of it, in several threads. Results keep the
        source's order.
        """

    def to_map_datapipe(self, key_value_fn: Callable[[Any], tuple[Any, Any]] | None = None) -> MapDataPipe[Any]:
        """Reads an iterable pipe into a dict when the first item is requested, and provides its items by
        their keys.
        """

    def to_node(self, seed: int | None = None) -> BaseNode[T_co]:
        """Converts the pipe to a node of `torchdata.nodes`, as `torchdata.nodes.from_pipe` does. This
        function needs PyTorch.
        """

    def unbatch(self, unbatch_level: int = 1) -> IterDataPipe[Any]:
        """Yields the members of batches, which are lists."""

    def unzip(
        self, sequence_length: int, buffer_size: int = 1000, columns_to_skip: Sequence[int] | None = None,
    ) -> list[IterDataPipe[Any]]:
        """Returns one child pipe per column of the items, which are sequences of equal length."""

    def webdataset(self, *, strict: bool = True) -> IterDataPipe[dict[str, Any]]:
        """Groups consecutive files into one dict if their names differ only in the extension."""

    @overload
    def zip(self) -> IterDataPipe[tuple[T_co]]:
        """Yields tuples of one item of each input, until the shortest input ends."""

    @overload
    def zip(self, other: Iterable[R], /) -> IterDataPipe[tuple[T_co, R]]:
        """Yields tuples of one item of each input, until the shortest input ends."""

    @overload
    def zip(self, *datapipes: Any) -> IterDataPipe[tuple[Any, ...]]:
        """Yields tuples of one item of each input, until the shortest input ends."""

    def zip_longest(self, *datapipes: Any, fill_value: Any = None) -> IterDataPipe[tuple[Any, ...]]:
        """Yields tuples of one item of each input, until the longest input ends."""

    def zip_with_iter(
        self, ref_datapipe: IterDataPipe[Any], key_fn: Callable[[Any], Any],
        ref_key_fn: Callable[[Any], Any] | None = None, keep_key: bool = False, buffer_size: int | None = 10000,
        merge_fn: Callable[[Any, Any], Any] | None = None,
    ) -> IterDataPipe[Any]:
        """Joins each item of a pipe with the item of a second pipe that has the same key."""

    def zip_with_map(
        self, map_datapipe: MapDataPipe[Any], key_fn: Callable[[Any], Any],
        merge_fn: Callable[[Any, Any], Any] | None = None, keep_key: bool = False,
    ) -> IterDataPipe[Any]:
        """Joins each item with the value that a map pipe contains for the item's key."""

class MapForms(FunctionalForms, Generic[T_co]):
    def batch(
        self, batch_size: int, drop_last: bool = False, wrapper_class: type[DataChunk[Any]] = ...,
    ) -> MapDataPipe[DataChunk[T_co]]:
        """Groups items with consecutive indices: batch `i` contains the items from `i * batch_size` on."""

    def concat(self, *datapipes: MapDataPipe[Any]) -> MapDataPipe[Any]:
        """Joins pipes: the second pipe's indices follow the first pipe's indices, and so on."""

    def in_memory_cache(self) -> torchdata.datapipes.map.InMemoryCacheHolder[T_co]:
        """Stores every requested item in memory, so that all earlier pipes run only once for each item."""

    @overload
    def map(self) -> MapDataPipe[T_co]:
        """Applies a function to each item when the item is requested."""

    @overload
    def map(self, fn: Callable[[T_co], R]) -> MapDataPipe[R]:
        """Applies a function to each item when the item is requested."""

    def sample_by(self, sampler: Iterable[Any]) -> torchdata.datapipes.map.IndexSampler[T_co]:
        """Yields the items of a map pipe at the indices that a sampler yields. The sampler is iterated
        again in each epoch.
        """

    def shuffle(self, *, indices: Iterable[Any] | None = None) -> torchdata.datapipes.map.Shuffler[T_co]:
        """Yields the items of a map pipe in random order."""

    def to_iter_datapipe(self, indices: Sequence[Any] | None = None) -> IterDataPipe[T_co]:
        """Yields the items of a MapDataPipe, in the order of its indices or of given indices."""

    def unzip(self, sequence_length: int, columns_to_skip: Sequence[int] | None = None) -> list[MapDataPipe[Any]]:
        """Splits a pipe of sequences: returns a list of pipes, one for each column."""

    @overload
    def zip(self) -> MapDataPipe[tuple[T_co]]:
        """Combines pipes: the item at an index is a tuple of the items that the pipes have at this index."""

    @overload
    def zip(self, other: MapDataPipe[R], /) -> MapDataPipe[tuple[T_co, R]]:
        """Combines pipes: the item at an index is a tuple of the items that the pipes have at this index."""

    @overload
    def zip(self, *datapipes: Any) -> MapDataPipe[tuple[Any, ...]]:
        """Combines pipes: the item at an index is a tuple of the items that the pipes have at this index."""
