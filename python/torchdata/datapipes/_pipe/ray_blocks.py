"""Reads the blocks of a materialized Ray Dataset: `RayBlocks`.

Role: a source of `ArrowParts`; its parts are blocks. The blocks stay in Ray's object store, possibly on several
machines, and a process requests only the blocks that it reads. A worker process joins the cluster at its first read. A
process that was forked from a member of the cluster cannot join, because Ray uses threads, which a fork does not copy.
The source imports ray when it is created or read.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from torchdata._optional import optional_import
from torchdata.datapipes._pipe.arrow_sources import ArrowSource

__all__ = ["RayBlocks"]

#: The id of the process that has joined a cluster. A forked child finds the parent's id in this variable, and can
#: therefore detect the fork.
_joined: int | None = None
_joining = threading.Lock()


class RayBlocks(ArrowSource):
    """The blocks of a materialized dataset.

    Args:
        dataset: a materialized `ray.data.Dataset`.
        filter: a `pyarrow.compute.Expression`, or None.

    Raises:
        TypeError: the dataset is not materialized.
    """

    def __init__(self, dataset: Any, filter: Any) -> None:
        ray, data = (
            optional_import(name, extra="ray", needed_by="ArrowParts of a Ray Data set")
            for name in ("ray", "ray.data.dataset")
        )
        if not isinstance(dataset, data.MaterializedDataset):
            raise TypeError(
                "ArrowParts: a Ray Data set must be materialized, as only then its blocks have a fixed order: give "
                f"dataset.materialize(), not {type(dataset).__name__}"
            )
        self._refs: list[Any] | None = dataset.to_arrow_refs()
        self._address = ray.get_runtime_context().gcs_address
        self._filter, self._pickled = filter, b""
        _join(ray, self._address)
        told = _tell(ray, self._refs)
        names = [
            f"block {number} of {len(told)} ({rows} rows, checksum {checksum:08x})"
            for number, (rows, checksum, _) in enumerate(told)
        ]
        # An empty block may lack columns.
        full = [schema for rows, _, schema in told if rows] or [schema for *_, schema in told]
        if not full:
            full = [optional_import("pyarrow", extra="parquet", needed_by="ArrowParts").schema([])]
        super().__init__(names, full[0])

    def __getstate__(self) -> dict[str, Any]:
        if self._refs is None:
            return vars(self)
        # Ray's pickler records the owner of a reference, whereas plain pickle does not.
        ray = optional_import("ray", extra="ray", needed_by="ArrowParts of a Ray Data set")
        return {**vars(self), "_refs": None, "_pickled": ray.cloudpickle.dumps(self._refs)}

    def _block(self, part: int) -> Any:
        ray = optional_import("ray", extra="ray", needed_by="ArrowReader of a Ray Data set")
        _join(ray, self._address)
        if self._refs is None:
            self._refs = ray.cloudpickle.loads(self._pickled)
        return ray.get(self._refs[part])

    def read(self, part: int, columns: list[str] | None, use_threads: bool) -> Any:
        table = self._block(part)
        if self._filter is not None and table.num_rows:
            table = table.filter(self._filter)
        return table.select(columns) if columns is not None and table.num_rows else table


def _join(ray: Any, address: str) -> None:
    """Joins the cluster unless this process has already joined.

    Raises:
        RuntimeError: this process was forked from a process that had joined the cluster.
        ConnectionError: the cluster no longer exists.
    """
    global _joined
    with _joining:
        if _joined not in (None, os.getpid()):
            raise RuntimeError(
                "a forked process cannot read the blocks of a Ray Data set: Ray needs threads, and a fork does not "
                "copy them. Use MultiProcessingReadingService(…, multiprocessing_context='spawn') or 'forkserver', "
                "or a "
                "RayReadingService"
            )
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, logging_level="error")
        _joined = os.getpid()


def _tell(ray: Any, refs: list[Any]) -> list[tuple[int, int, Any]]:
    """Returns the number of rows, the checksum of the first row, and the schema of each block. Runs on the machines
    that store the blocks.
    """

    def tell(table: Any) -> tuple[int, int, Any]:  # nested functions are pickled by value
        from zlib import crc32

        import pyarrow

        written = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(written, table.schema) as stream:
            stream.write_table(table.slice(0, 1))
        return table.num_rows, crc32(written.getvalue()), table.schema

    asked = ray.remote(num_cpus=0)(tell)
    told: list[tuple[int, int, Any]] = ray.get([asked.remote(ref) for ref in refs])
    return told
