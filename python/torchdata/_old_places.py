"""The deep import paths of torchdata 0.9, from one table: modules that no longer exist and what their names mean now.

Role: code that imported from inside torchdata (`from torchdata.datapipes.iter.util.cacheholder import
InMemoryCacheHolderIterDataPipe`) goes on working. A finder at the end of `sys.meta_path`, asked only where no file was
found, makes a module of the table on its first import; its names are looked up where they live now when they are used.
Private names of those modules are not kept. Runs in any process that imports the package.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["OLD_PLACES", "install"]

_ITER, _MAP, _UTILS = "torchdata.datapipes.iter", "torchdata.datapipes.map", "torchdata.datapipes.utils"

#: By old module: the module where its names live now, and the names. `XIterDataPipe`, `XMapDataPipe` and `XDataPipe`
#: are called `X` there; others keep their names, unless an equals sign tells the new one.
OLD_PLACES: dict[str, tuple[str, str]] = {
    "torchdata.version": ("torchdata", "__version__"),
    # Functions that users put in place of process_init_fn import it, and need none of its names here.
    "torchdata.dataloader2.communication": ("torchdata._engine", ""),
    f"{_ITER}.load": (_ITER, ""),
    f"{_ITER}.load.aisio": (_ITER, "AISFileListerIterDataPipe AISFileLoaderIterDataPipe"),
    f"{_ITER}.load.fsspec": (
        _ITER,
        "FSSpecFileListerIterDataPipe FSSpecFileOpenerIterDataPipe FSSpecSaverIterDataPipe",
    ),
    f"{_ITER}.load.huggingface": (_ITER, "HuggingFaceHubReaderIterDataPipe"),
    f"{_ITER}.load.iopath": (
        _ITER,
        "IoPathFileListerIterDataPipe IoPathFileOpenerIterDataPipe IoPathSaverIterDataPipe",
    ),
    f"{_ITER}.load.online": (
        _ITER,
        "GDriveReaderDataPipe HTTPReaderIterDataPipe=HttpReader OnlineReaderIterDataPipe",
    ),
    f"{_ITER}.load.s3io": (_ITER, "S3FileListerIterDataPipe S3FileLoaderIterDataPipe"),
    f"{_ITER}.transform": (_ITER, ""),
    f"{_ITER}.transform.bucketbatcher": (
        _ITER,
        "BucketBatcherIterDataPipe InBatchShufflerIterDataPipe MaxTokenBucketizerIterDataPipe",
    ),
    f"{_ITER}.transform.callable": (
        _ITER,
        "BatchAsyncMapperIterDataPipe BatchMapperIterDataPipe DropperIterDataPipe FlatMapperIterDataPipe "
        "FlattenIterDataPipe=Flattener ShuffledFlatMapperIterDataPipe SliceIterDataPipe=Slicer "
        "ThreadPoolMapperIterDataPipe",
    ),
    f"{_ITER}.util": (_ITER, ""),
    f"{_ITER}.util.bz2fileloader": (_ITER, "Bz2FileLoaderIterDataPipe"),
    f"{_ITER}.util.cacheholder": (
        _ITER,
        "EndOnDiskCacheHolderIterDataPipe InMemoryCacheHolderIterDataPipe OnDiskCacheHolderIterDataPipe",
    ),
    f"{_ITER}.util.combining": (
        _ITER,
        "IterKeyZipperIterDataPipe MapKeyZipperIterDataPipe RoundRobinDemultiplexerIterDataPipe "
        "UnZipperIterDataPipe",
    ),
    f"{_ITER}.util.converter": (_MAP, "IterToMapConverterMapDataPipe"),
    f"{_ITER}.util.cycler": (_ITER, "CyclerIterDataPipe RepeaterIterDataPipe"),
    f"{_ITER}.util.dataframemaker": (
        _ITER,
        "DataFrameMakerIterDataPipe ParquetDFLoaderIterDataPipe=ParquetDataFrameLoader",
    ),
    f"{_ITER}.util.decompressor": (
        f"{_ITER}.compression",
        "CompressionType DecompressorIterDataPipe ExtractorIterDataPipe",
    ),
    f"{_ITER}.util.distributed": (f"{_ITER}.synchronizing", "FullSyncIterDataPipe PrefetchTimeoutError"),
    f"{_ITER}.util.hashchecker": (_ITER, "HashCheckerIterDataPipe"),
    f"{_ITER}.util.header": (_ITER, "HeaderIterDataPipe LengthSetterIterDataPipe"),
    f"{_ITER}.util.indexadder": (_ITER, "EnumeratorIterDataPipe IndexAdderIterDataPipe"),
    f"{_ITER}.util.jsonparser": (_ITER, "JsonParserIterDataPipe"),
    f"{_ITER}.util.mux_longest": (_ITER, "MultiplexerLongestIterDataPipe"),
    f"{_ITER}.util.paragraphaggregator": (_ITER, "ParagraphAggregatorIterDataPipe"),
    f"{_ITER}.util.plain_text_reader": (
        _ITER,
        "CSVDictParserIterDataPipe CSVParserIterDataPipe LineReaderIterDataPipe",
    ),
    f"{_ITER}.util.prefetcher": (_ITER, "PinMemoryIterDataPipe PrefetcherIterDataPipe"),
    f"{_ITER}.util.randomsplitter": (_ITER, "RandomSplitterIterDataPipe"),
    f"{_ITER}.util.rararchiveloader": (_ITER, "RarArchiveLoaderIterDataPipe"),
    f"{_ITER}.util.rows2columnar": (_ITER, "Rows2ColumnarIterDataPipe"),
    f"{_ITER}.util.samplemultiplexer": (_ITER, "SampleMultiplexerDataPipe"),
    f"{_ITER}.util.saver": (_ITER, "SaverIterDataPipe"),
    f"{_ITER}.util.shardexpander": (_ITER, "ShardExpanderIterDataPipe"),
    f"{_ITER}.util.sharding": (_ITER, "ShardingRoundRobinDispatcherIterDataPipe SHARDING_PRIORITIES"),
    f"{_ITER}.util.tararchiveloader": (_ITER, "TarArchiveLoaderIterDataPipe"),
    f"{_ITER}.util.tfrecordloader": (_ITER, "TFRecordLoaderIterDataPipe"),
    f"{_ITER}.util.webdataset": (_ITER, "WebDatasetIterDataPipe"),
    f"{_ITER}.util.xzfileloader": (_ITER, "XzFileLoaderIterDataPipe"),
    f"{_ITER}.util.zip_longest": (_ITER, "ZipperLongestIterDataPipe"),
    f"{_ITER}.util.ziparchiveloader": (_ITER, "ZipArchiveLoaderIterDataPipe"),
    f"{_MAP}.load": (_MAP, ""),
    f"{_MAP}.transform": (_MAP, ""),
    f"{_MAP}.util": (_MAP, ""),
    f"{_MAP}.util.cacheholder": (_MAP, "InMemoryCacheHolderMapDataPipe"),
    f"{_MAP}.util.converter": (_ITER, "MapToIterConverterIterDataPipe"),
    f"{_MAP}.util.unzipper": (_MAP, "UnZipperMapDataPipe"),
    f"{_UTILS}._visualization": (_UTILS, "to_graph"),
    f"{_UTILS}.common": (_UTILS, "StreamWrapper"),
    f"{_UTILS}.janitor": (f"{_UTILS}._streams", "janitor"),
    f"{_UTILS}.pin_memory": (_UTILS, "pin_memory_fn"),
}

_SUFFIXES = ("IterDataPipe", "MapDataPipe", "DataPipe")


def names_of(old: str) -> dict[str, str]:
    """The public names of an old module, each with its name of today."""
    names = {}
    for entry in OLD_PLACES[old][1].split():
        name, _, now = entry.partition("=")
        suffix = next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), "")
        names[name] = now or name.removesuffix(suffix)
    return names


class _NamedLikeItsFunction(ModuleType):
    """A module that takes the place of a function of its name in the package, and so is to be called as that one."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)


class _Places:
    """Finds and makes the modules of the table."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in OLD_PLACES:
            return None
        loader: Any = self
        package = any(name.startswith(f"{fullname}.") for name in OLD_PLACES)
        return ModuleSpec(fullname, loader, is_package=package, origin=OLD_PLACES[fullname][0])

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        named_alike = spec.name.rpartition(".")[2] in names_of(spec.name)
        return _NamedLikeItsFunction(spec.name) if named_alike else None

    def exec_module(self, module: ModuleType) -> None:
        home, names = OLD_PLACES[module.__name__][0], names_of(module.__name__)

        def __getattr__(name: str) -> Any:
            if name not in names:
                raise AttributeError(
                    f"module {module.__name__!r} has no attribute {name!r}; what it held is in {home}"
                )
            return getattr(importlib.import_module(home), names[name])

        module.__doc__ = f"Where torchdata 0.9 kept what is in `{home}` now."
        vars(module).update(__getattr__=__getattr__, __all__=list(names), __dir__=lambda: sorted(names))


def install() -> None:
    """Makes the old modules importable."""
    if not any(isinstance(finder, _Places) for finder in sys.meta_path):
        sys.meta_path.append(_Places())
