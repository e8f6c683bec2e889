"""Supports import paths of torchdata 0.9 that no longer exist, such as `torchdata.datapipes.iter.util.cacheholder`.

Role: a finder at the end of `sys.meta_path` creates an old module when it is imported. Python asks this finder only if
the package lacks a module of this name. `OLD_MODULES` also contains private names that public programs import or patch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_ITER, _MAP, _UTILS = "torchdata.datapipes.iter", "torchdata.datapipes.map", "torchdata.datapipes.utils"

#: For each old module: the module that now defines its names, and the names. `XIterDataPipe`, `XMapDataPipe` and
#: `XDataPipe` are now called `X`, and an entry `old=new` renames a name. With `old=module:new`, another module defines
#: the name, and setting the old name also sets this name.
OLD_MODULES: dict[str, tuple[str, str]] = {
    "torchdata._constants": (
        "torchdata._engine.processes.shutdown",
        "default_timeout_in_s=torchdata._ranks.group:DEFAULT_TIMEOUT "
        "default_dl2_worker_join_timeout_in_s=torchdata._engine.processes.shutdown:ASKED",
    ),
    "torchdata.version": ("torchdata", "__version__"),
    # User functions that replace process_init_fn import this module, but use no name of it.
    "torchdata.dataloader2.communication": ("torchdata._engine", ""),
    "torchdata.dataloader2.graph._serialization": (
        "torchdata.dataloader2.graph.serialization",
        "attach_wrapper clone deserialize_datapipe extract_wrapper serialize_datapipe "
        "_DataPipeSerializationWrapper=_DataPipeSerializationWrapper "
        "_IterDataPipeSerializationWrapper=_IterDataPipeSerializationWrapper "
        "_MapDataPipeSerializationWrapper=_MapDataPipeSerializationWrapper",
    ),
    "torchdata.dataloader2.utils.dispatch": (
        "torchdata.dataloader2.graph.cutting",
        "find_lca_round_robin_sharding_dp find_non_dispatching_branches _DummyIterDataPipe=_DummyIterDataPipe",
    ),
    "torchdata.dataloader2.utils.worker": (
        "torchdata.dataloader2.services.program",
        "WorkerInfo process_init_fn process_reset_fn",
    ),
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
        "GDriveReaderDataPipe HTTPReaderIterDataPipe=HttpReader OnlineReaderIterDataPipe "
        f"_get_proxies={_ITER}.web.client:_get_proxies",
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
        "EndOnDiskCacheHolderIterDataPipe InMemoryCacheHolderIterDataPipe OnDiskCacheHolderIterDataPipe "
        f"_hash_check={_ITER}.disk_cache.pipes:_hash_check",
    ),
    f"{_ITER}.util.combining": (
        _ITER,
        "IterKeyZipperIterDataPipe MapKeyZipperIterDataPipe RoundRobinDemultiplexerIterDataPipe UnZipperIterDataPipe",
    ),
    f"{_ITER}.util.converter": (_MAP, "IterToMapConverterMapDataPipe"),
    f"{_ITER}.util.cycler": (_ITER, "CyclerIterDataPipe RepeaterIterDataPipe"),
    f"{_ITER}.util.dataframemaker": (
        _ITER,
        "DataFrameMakerIterDataPipe ParquetDFLoaderIterDataPipe=ParquetDataFrameLoader",
    ),
    f"{_ITER}.util.decompressor": (
        _ITER,
        "CompressionType DecompressorIterDataPipe ExtractorIterDataPipe",
    ),
    f"{_ITER}.util.distributed": (
        f"{_ITER}.threads.synchronizing",
        "FullSyncIterDataPipe PrefetchTimeoutError",
    ),
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
    f"{_ITER}.util.tfrecordloader": (_ITER, "TFRecordExample TFRecordExampleSpec TFRecordLoaderIterDataPipe"),
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
    f"{_UTILS}.common": (f"{_UTILS}._streams", "StreamWrapper validate_pathname_binary_tuple"),
    f"{_UTILS}.janitor": (f"{_UTILS}._streams", "janitor"),
    f"{_UTILS}.pin_memory": (_UTILS, "pin_memory_fn"),
}

_SUFFIXES = ("IterDataPipe", "MapDataPipe", "DataPipe")


def names_of(old: str) -> dict[str, str]:
    return {name: now for name, (_, now) in homes_of(old).items()}


def homes_of(old: str) -> dict[str, tuple[str, str]]:
    homes = {}
    for entry in OLD_MODULES[old][1].split():
        name, _, now = entry.partition("=")
        suffix = next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), "")
        home, _, name_there = now.rpartition(":")
        homes[name] = home or OLD_MODULES[old][0], name_there or name.removesuffix(suffix)
    return homes


def _patched_here(old: str) -> frozenset[str]:
    """Returns the names that, when set in an old module, are also set in the present module."""
    return frozenset(entry.partition("=")[0] for entry in OLD_MODULES[old][1].split() if ":" in entry)


class _OldModule(ModuleType):
    """Deleting a name restores its previous value in the present module, because `unittest.mock` and pytest end a patch
    by deleting the name.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        vars(self)["_replaced"] = {}  # for each name, the previous values, one for each time that the name was set

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _patched_here(self.__name__):
            super().__setattr__(name, value)
            return
        module, now = self._home_of(name)
        self._replaced.setdefault(name, []).append(getattr(module, now))
        setattr(module, now, value)

    def __delattr__(self, name: str) -> None:
        if not self._replaced.get(name):
            super().__delattr__(name)
            return
        module, now = self._home_of(name)
        setattr(module, now, self._replaced[name].pop())

    def _home_of(self, name: str) -> tuple[ModuleType, str]:
        home, now = homes_of(self.__name__)[name]
        return importlib.import_module(home), now


class _NamedLikeItsFunction(_OldModule):
    """The module must be callable, because it replaces a function with the same name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)


class _OldModules:
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in OLD_MODULES:
            return None
        loader: Any = self
        package = any(name.startswith(f"{fullname}.") for name in OLD_MODULES)
        return ModuleSpec(fullname, loader, is_package=package, origin=OLD_MODULES[fullname][0])

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        named_alike = spec.name.rpartition(".")[2] in names_of(spec.name)
        return _NamedLikeItsFunction(spec.name) if named_alike else _OldModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        home, homes = OLD_MODULES[module.__name__][0], homes_of(module.__name__)

        def __getattr__(name: str) -> Any:
            if name not in homes:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}; what it held is in {home}")
            where, now = homes[name]
            return getattr(importlib.import_module(where), now)

        public = [name for name in homes if name.endswith("__") or not name.startswith("_")]
        module.__doc__ = f"Where torchdata 0.9 kept what is in `{home}` now."
        vars(module).update(__getattr__=__getattr__, __all__=public, __dir__=lambda: sorted(homes))


def install() -> None:
    if not any(isinstance(finder, _OldModules) for finder in sys.meta_path):
        sys.meta_path.append(_OldModules())
