"""Runs a Ray cluster on this machine for a file of tests."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import torchdata

#: Skips a test if Ray is not installed, because some versions of Python lack a wheel of Ray.
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed: PyPI may have no wheel of Ray for this Python",
)

#: Runs tests in a separate process, because threads and handlers of Ray would crash children that other tests fork.
of_ray = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


#: On a busy machine, actors start in time only with normal priority, and without slow imports (pyarrow, pydantic).
_SETTINGS = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_niceness": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_idle_worker_killing_time_threshold_ms": "60000",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TESTS_HIDDEN": "pyarrow pydantic",
}


@contextmanager
def environment(**more: str) -> Iterator[None]:
    settings = {**_SETTINGS, **more}
    here, package = Path(__file__).resolve().parent, Path(torchdata.__file__).resolve().parents[1]
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "RAY_ADDRESS", *settings)}
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (here / "lean", here, package)))
    os.environ.update(settings)
    os.environ.pop("RAY_ADDRESS", None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


OPTIONS: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 200_000_000}
HEAD: dict[str, Any] = {**OPTIONS, "no_monitor": True, "include_log_monitor": False}
SILENT: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}


def _patiently(start: Callable[[], Any], undo: Callable[[], object] = bool) -> Any:
    for _ in range(2):
        try:
            return start()
        except Exception as error:  # Ray raises a plain Exception
            if "timed out during startup" not in str(error):
                raise
            undo()
    return start()


@contextmanager
def cluster(**more: str) -> Iterator[Any]:
    with nodes(0, 2, **more):
        import ray

        yield ray


@contextmanager
def nodes(count: int, processors: int = 0, **more: str) -> Iterator[Any]:
    with environment(**more):
        import ray
        from ray.cluster_utils import Cluster

        head = {"num_cpus": processors, **HEAD}
        made = _patiently(lambda: Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False))
        try:
            for _ in range(count):
                add(made, num_cpus=2)
            join(made)
            made.wait_for_nodes()
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


def join(made: Any) -> None:
    import ray

    ray.init(address=made.address, **SILENT)


def add(made: Any, **options: Any) -> Any:
    return _patiently(lambda: made.add_node(object_store_memory=OPTIONS["object_store_memory"], **options))


def raylet_of(node: Any) -> int:
    pid: int = node.all_processes["raylet"][0].process.pid
    return pid
