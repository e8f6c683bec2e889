"""Pipes that are read by iterating."""

from typing import TYPE_CHECKING

from torchdata.datapipes._pipe.checks import wrap_data_by
from torchdata.datapipes.datapipe import IterDataPipe as IterDataPipe

if TYPE_CHECKING:
    from torchdata.datapipes.iter.archives.compression import *
    from torchdata.datapipes.iter.archives.rar import *
    from torchdata.datapipes.iter.archives.tar import *
    from torchdata.datapipes.iter.archives.zip import *
    from torchdata.datapipes.iter.branching.combining import *
    from torchdata.datapipes.iter.branching.key_zipping import *
    from torchdata.datapipes.iter.branching.random_splitting import *
    from torchdata.datapipes.iter.branching.splitting import *
    from torchdata.datapipes.iter.disk_cache.pipes import *
    from torchdata.datapipes.iter.mapping.batch_mapping import *
    from torchdata.datapipes.iter.mapping.callable import *
    from torchdata.datapipes.iter.mapping.columns import *
    from torchdata.datapipes.iter.mapping.converting import *
    from torchdata.datapipes.iter.mapping.images import *
    from torchdata.datapipes.iter.mapping.rows import *
    from torchdata.datapipes.iter.mapping.selecting import *
    from torchdata.datapipes.iter.mapping.skipping import *
    from torchdata.datapipes.iter.mapping.wrapping import *
    from torchdata.datapipes.iter.ordering.bucketing import *
    from torchdata.datapipes.iter.ordering.caching import *
    from torchdata.datapipes.iter.ordering.combinatorics import *
    from torchdata.datapipes.iter.ordering.flat_shuffling import *
    from torchdata.datapipes.iter.ordering.grouping import *
    from torchdata.datapipes.iter.ordering.packing import *
    from torchdata.datapipes.iter.ordering.repeating import *
    from torchdata.datapipes.iter.ordering.sharding import *
    from torchdata.datapipes.iter.stores.aistore import *
    from torchdata.datapipes.iter.stores.fsspec import *
    from torchdata.datapipes.iter.stores.huggingface import *
    from torchdata.datapipes.iter.stores.iopath import *
    from torchdata.datapipes.iter.stores.s3 import *
    from torchdata.datapipes.iter.streams.arrow import *
    from torchdata.datapipes.iter.streams.decoding import *
    from torchdata.datapipes.iter.streams.files import *
    from torchdata.datapipes.iter.streams.frames import *
    from torchdata.datapipes.iter.streams.json import *
    from torchdata.datapipes.iter.streams.paragraphs import *
    from torchdata.datapipes.iter.streams.saving import *
    from torchdata.datapipes.iter.streams.shards import *
    from torchdata.datapipes.iter.streams.text import *
    from torchdata.datapipes.iter.streams.tfrecords import *
    from torchdata.datapipes.iter.streams.webdataset import *
    from torchdata.datapipes.iter.threads.pinning import *
    from torchdata.datapipes.iter.threads.prefetching import *
    from torchdata.datapipes.iter.threads.synchronizing import *
    from torchdata.datapipes.iter.threads.threadpool import *
    from torchdata.datapipes.iter.web.online import *

#: The names of the pipe classes in each module, with their functional forms (`Class=form`). A module is imported when
#: one of its classes is first used.
_PIPES = {
    "archives.compression": "Bz2FileLoader=load_from_bz2 Decompressor=decompress Extractor=extract "
    "XzFileLoader=load_from_xz",
    "archives.rar": "RarArchiveLoader=load_from_rar",
    "archives.tar": "TarArchiveLoader=load_from_tar",
    "archives.zip": "ZipArchiveLoader=load_from_zip",
    "branching.combining": "Concater=concat Multiplexer=mux MultiplexerLongest=mux_longest SampleMultiplexer "
    "Zipper=zip ZipperLongest=zip_longest",
    "branching.key_zipping": "IterKeyZipper=zip_with_iter MapKeyZipper=zip_with_map",
    "branching.random_splitting": "RandomSplitter=random_split",
    "branching.splitting": "Demultiplexer=demux Forker=fork RoundRobinDemultiplexer=round_robin_demux UnZipper=unzip",
    "disk_cache.pipes": "EndOnDiskCacheHolder=end_caching OnDiskCacheHolder=on_disk_cache",
    "mapping.batch_mapping": "BatchAsyncMapper=async_map_batches BatchMapper=map_batches",
    "mapping.callable": "Collator=collate FlatMapper=flatmap Mapper=map",
    "mapping.columns": "Dropper=drop Flattener=flatten Slicer=slice",
    "mapping.converting": "MapToIterConverter",
    "mapping.images": "ImageDecoder=decode_image",
    "mapping.rows": "IndexAdder=add_index Rows2Columnar=rows2columnar",
    "mapping.selecting": "Filter=filter Header=header",
    "mapping.skipping": "OnError=on_error",
    "mapping.wrapping": "IterableWrapper LengthSetter=set_length",
    "ordering.bucketing": "BucketBatcher=bucketbatch MaxTokenBucketizer=max_token_bucketize",
    "ordering.caching": "InMemoryCacheHolder=in_memory_cache",
    "ordering.combinatorics": "InBatchShuffler=in_batch_shuffle Sampler Shuffler=shuffle",
    "ordering.flat_shuffling": "ShuffledFlatMapper=shuffled_flatmap",
    "ordering.grouping": "Batcher=batch Grouper=groupby UnBatcher=unbatch",
    "ordering.packing": "Packer=pack",
    "ordering.repeating": "Cycler=cycle Enumerator=enumerate Repeater=repeat",
    "ordering.sharding": "SHARDING_PRIORITIES ShardingFilter=sharding_filter "
    "ShardingRoundRobinDispatcher=sharding_round_robin_dispatch",
    "stores.aistore": "AISFileLister=list_files_by_ais AISFileLoader=load_files_by_ais",
    "stores.fsspec": "FSSpecFileLister=list_files_by_fsspec FSSpecFileOpener=open_files_by_fsspec "
    "FSSpecSaver=save_by_fsspec",
    "stores.huggingface": "HuggingFaceHubReader",
    "stores.iopath": "IoPathFileLister=list_files_by_iopath IoPathFileOpener=open_files_by_iopath "
    "IoPathSaver=save_by_iopath",
    "stores.s3": "S3FileLister=list_files_by_s3 S3FileLoader=load_files_by_s3",
    "streams.arrow": "ArrowReader=read_arrow LanceReader=read_lance",
    "streams.decoding": "RoutedDecoder=routed_decode",
    "streams.files": "FileLister=list_files FileOpener=open_files StreamReader=read_from_stream",
    "streams.frames": "DataFrameMaker=dataframe ParquetDataFrameLoader=load_parquet_as_df",
    "streams.json": "JsonParser=parse_json_files",
    "streams.paragraphs": "ParagraphAggregator=lines_to_paragraphs",
    "streams.saving": "HashChecker=check_hash Saver=save_to_disk",
    "streams.shards": "ShardExpander=shard_expand",
    "streams.text": "CSVDictParser=parse_csv_as_dict CSVParser=parse_csv LineReader=readlines",
    "streams.tfrecords": "TFRecordLoader=load_from_tfrecord",
    "streams.webdataset": "WebDataset=webdataset",
    "threads.pinning": "PinMemory=pin_memory",
    "threads.prefetching": "Prefetcher=prefetch",
    "threads.synchronizing": "FullSync=fullsync",
    "threads.threadpool": "ThreadPoolMapper=threadpool_map",
    "web.online": "GDriveReader=read_from_gdrive HttpReader=read_from_http OnlineReader=read_from_remote",
}
#: Private classes and functions that pickles refer to by the name of this package.
_HELD = {
    "torchdata.datapipes._pipe.columns": "chosen",
    "torchdata.datapipes._pipe.division": "Division",
    "torchdata.datapipes._pipe.frames": "FrameFormat",
    "archives.compression": "CompressionType",
    "branching.children": "Child",
    "branching.random_splitting": "_Split _SplitMain",
    "branching.splitting": "_DemuxMain _ForkMain _RoundRobinMain _UnzipMain",
    "ordering.bucketing": "_Measured _sorted_bucket",
    "ordering.combinatorics": "SequentialSampler",
    "streams.paragraphs": "_default_line_join",
    "streams.tfrecords": "TFRecordExample TFRecordExampleSpec",
}

__all__ = IterDataPipe.publish_late(globals(), _PIPES, _HELD)
wrap_data_by(IterDataPipe, f"{__name__}.mapping.wrapping", "IterableWrapper")
# The following functional forms are not in `_PIPES`, because they are functions or create map-style pipes.
IterDataPipe.register_late("sample_multiplex", f"{__name__}.branching.combining", "_sample_multiplex")
IterDataPipe.register_late("to_map_datapipe", "torchdata.datapipes.map.wrapping", "IterToMapConverter")
IterDataPipe.register_late("to_node", f"{__name__}.mapping.converting", "to_node")
