"""Supports import paths of torchdata 0.9 that no longer exist, such as `torchdata.datapipes.iter.util.cacheholder`.

A finder at the end of `sys.meta_path` creates an old module when it is imported. Python calls this module's finder only
for modules that the package does not contain. If published programs import or patch private names, `OLD_MODULES`
contains these names, too.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: Each line contains an old module, the module that now defines its names, and the names. `X*` means `XIterDataPipe`
#: (or `XMapDataPipe`), which is now called `X`, and `old=new` renames a name. `old=module:new` renames a name of
#: `module`, and an assignment to `old` also sets `new`. The line of `dataloader2.communication` contains no names,
#: because user code imports this module without using its names.
_TABLE = """
_constants _engine.processes.shutdown default_timeout_in_s=_ranks.group:DEFAULT_TIMEOUT
_constants _engine.processes.shutdown default_dl2_worker_join_timeout_in_s=_engine.processes.shutdown:ASKED
version . __version__
dataloader2.communication _engine
dataloader2.graph._serialization dataloader2.graph.serialization attach_wrapper clone deserialize_datapipe
dataloader2.graph._serialization dataloader2.graph.serialization extract_wrapper serialize_datapipe
dataloader2.graph._serialization dataloader2.graph.serialization _DataPipeSerializationWrapper
dataloader2.graph._serialization dataloader2.graph.serialization _IterDataPipeSerializationWrapper
dataloader2.graph._serialization dataloader2.graph.serialization _MapDataPipeSerializationWrapper
dataloader2.utils.dispatch dataloader2.graph.cutting find_lca_round_robin_sharding_dp find_non_dispatching_branches
dataloader2.utils.dispatch dataloader2.graph.cutting _DummyIterDataPipe
dataloader2.utils.worker dataloader2.services.program WorkerInfo process_init_fn process_reset_fn
datapipes.iter.load datapipes.iter
datapipes.iter.load.aisio datapipes.iter AISFileLister* AISFileLoader*
datapipes.iter.load.fsspec datapipes.iter FSSpecFileLister* FSSpecFileOpener* FSSpecSaver*
datapipes.iter.load.huggingface datapipes.iter HuggingFaceHubReader*
datapipes.iter.load.iopath datapipes.iter IoPathFileLister* IoPathFileOpener* IoPathSaver*
datapipes.iter.load.online datapipes.iter GDriveReaderDataPipe=GDriveReader HTTPReader*=HttpReader OnlineReader*
datapipes.iter.load.online datapipes.iter _get_proxies=datapipes.iter.web.client:_get_proxies
datapipes.iter.load.s3io datapipes.iter S3FileLister* S3FileLoader*
datapipes.iter.transform datapipes.iter
datapipes.iter.transform.bucketbatcher datapipes.iter BucketBatcher* InBatchShuffler* MaxTokenBucketizer*
datapipes.iter.transform.callable datapipes.iter BatchAsyncMapper* BatchMapper* Dropper* FlatMapper* Flatten*=Flattener
datapipes.iter.transform.callable datapipes.iter ShuffledFlatMapper* Slice*=Slicer ThreadPoolMapper*
datapipes.iter.util datapipes.iter
datapipes.iter.util.bz2fileloader datapipes.iter Bz2FileLoader*
datapipes.iter.util.cacheholder datapipes.iter EndOnDiskCacheHolder* InMemoryCacheHolder* OnDiskCacheHolder*
datapipes.iter.util.cacheholder datapipes.iter _hash_check=datapipes.iter.disk_cache.pipes:_hash_check
datapipes.iter.util.combining datapipes.iter IterKeyZipper* MapKeyZipper* RoundRobinDemultiplexer* UnZipper*
datapipes.iter.util.converter datapipes.map IterToMapConverter*
datapipes.iter.util.cycler datapipes.iter Cycler* Repeater*
datapipes.iter.util.dataframemaker datapipes.iter DataFrameMaker* ParquetDFLoader*=ParquetDataFrameLoader
datapipes.iter.util.decompressor datapipes.iter CompressionType Decompressor* Extractor*
datapipes.iter.util.distributed datapipes.iter.threads.synchronizing FullSync* PrefetchTimeoutError
datapipes.iter.util.hashchecker datapipes.iter HashChecker*
datapipes.iter.util.header datapipes.iter Header* LengthSetter*
datapipes.iter.util.indexadder datapipes.iter Enumerator* IndexAdder*
datapipes.iter.util.jsonparser datapipes.iter JsonParser*
datapipes.iter.util.mux_longest datapipes.iter MultiplexerLongest*
datapipes.iter.util.paragraphaggregator datapipes.iter ParagraphAggregator*
datapipes.iter.util.plain_text_reader datapipes.iter CSVDictParser* CSVParser* LineReader*
datapipes.iter.util.prefetcher datapipes.iter PinMemory* Prefetcher*
datapipes.iter.util.randomsplitter datapipes.iter RandomSplitter*
datapipes.iter.util.rararchiveloader datapipes.iter RarArchiveLoader*
datapipes.iter.util.rows2columnar datapipes.iter Rows2Columnar*
datapipes.iter.util.samplemultiplexer datapipes.iter SampleMultiplexerDataPipe=SampleMultiplexer
datapipes.iter.util.saver datapipes.iter Saver*
datapipes.iter.util.shardexpander datapipes.iter ShardExpander*
datapipes.iter.util.sharding datapipes.iter ShardingRoundRobinDispatcher* SHARDING_PRIORITIES
datapipes.iter.util.tararchiveloader datapipes.iter TarArchiveLoader*
datapipes.iter.util.tfrecordloader datapipes.iter TFRecordExample TFRecordExampleSpec TFRecordLoader*
datapipes.iter.util.webdataset datapipes.iter WebDataset*
datapipes.iter.util.xzfileloader datapipes.iter XzFileLoader*
datapipes.iter.util.zip_longest datapipes.iter ZipperLongest*
datapipes.iter.util.ziparchiveloader datapipes.iter ZipArchiveLoader*
datapipes.map.load datapipes.map
datapipes.map.transform datapipes.map
datapipes.map.util datapipes.map
datapipes.map.util.cacheholder datapipes.map InMemoryCacheHolder*
datapipes.map.util.converter datapipes.iter MapToIterConverter*
datapipes.map.util.unzipper datapipes.map UnZipper*
datapipes.utils._visualization datapipes.utils to_graph
datapipes.utils.common datapipes.utils._streams StreamWrapper validate_pathname_binary_tuple
datapipes.utils.janitor datapipes.utils._streams janitor
datapipes.utils.pin_memory datapipes.utils pin_memory_fn
"""

#: For each old module: the present module, and a dict from each old name to its present module and its present name.
OLD_MODULES: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {}
#: Pairs of an old module (a module of torchdata 0.9) and a name in the old module. If code assigns a value to such a
#: name in the old module, the present module gets the same value.
_patched: set[tuple[str, str]] = set()

for _old, _home, *_entries in map(str.split, _TABLE.strip().splitlines()):
    _old, _home = f"torchdata.{_old}", f"torchdata.{_home}".rstrip(".")
    _homes = OLD_MODULES.setdefault(_old, (_home, {}))[1]
    for _entry in _entries:
        _name, _, _now = _entry.partition("=")
        _elsewhere, _, _now = _now.rpartition(":")
        _full = _name.replace("*", "MapDataPipe" if _home == "torchdata.datapipes.map" else "IterDataPipe")
        _homes[_full] = f"torchdata.{_elsewhere}" if _elsewhere else _home, _now or _name.rstrip("*")
        if _elsewhere:
            _patched.add((_old, _full))


class _OldModule(ModuleType):
    """An old module. When `unittest.mock` or pytest ends a patch by deleting a name from the old module, the present
    module gets the name's original value back."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        vars(self)["_replaced"] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if (self.__name__, name) not in _patched:
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
        home, now = OLD_MODULES[self.__name__][1][name]
        return importlib.import_module(home), now


class _NamedLikeItsFunction(_OldModule):
    """A module that is callable, because it replaces a function with the same name."""

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
        named_alike = spec.name.rpartition(".")[2] in OLD_MODULES[spec.name][1]
        return _NamedLikeItsFunction(spec.name) if named_alike else _OldModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        home, homes = OLD_MODULES[module.__name__]

        def __getattr__(name: str) -> Any:
            if name not in homes:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}; its names are in {home}")
            where, now = homes[name]
            return getattr(importlib.import_module(where), now)

        public = [name for name in homes if name.endswith("__") or not name.startswith("_")]
        module.__doc__ = f"Where torchdata 0.9 kept what is in `{home}` now."
        vars(module).update(__getattr__=__getattr__, __all__=public, __dir__=lambda: sorted(homes))


def install() -> None:
    if not any(isinstance(finder, _OldModules) for finder in sys.meta_path):
        sys.meta_path.append(_OldModules())
