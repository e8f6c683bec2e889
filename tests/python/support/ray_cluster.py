"""A Ray cluster of this machine for a file of tests."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import torchdata

#: Skips a file of tests where Ray has no wheel for the Python at hand.
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed: it has no wheel for this Python, or none could be had",
)

#: Such a file runs in a process of its own: what Ray leaves in one crashes in children that later tests fork.
#: What Ray and its libraries warn of as they are imported and end is theirs.
of_ray = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


#: Ray's settings: no token is asked for; actors do not give way to all else on a busy machine, where they would not be
#: up in time; no process is started before it is wanted, which a driver would wait for; one that has run a task is kept
#: for the next one; and nobody is told of its use. Its workers do without two libraries that each of them would import.
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
    """The environment in which a cluster is started: its workers import what lies here.

    Args:
        more: settings of Ray's next to ours.
    """
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


#: Small, and silent.
OPTIONS: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 200_000_000}
#: Nobody reads its logs, and it does not grow by itself.
HEAD: dict[str, Any] = {**OPTIONS, "no_monitor": True, "include_log_monitor": False}
SILENT: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}


def _patiently(start: Callable[[], Any], undo: Callable[[], object] = bool) -> Any:
    """Starts what Ray gives half a minute to come up: up to thrice, as a busy machine may need more."""
    for _ in range(2):
        try:
            return start()
        except Exception as error:  # it has no class of its own
            if "timed out during startup" not in str(error):
                raise
            undo()
    return start()


@contextmanager
def cluster(**more: str) -> Iterator[Any]:
    """A cluster of one node; it is shut down in any case.

    Args:
        more: settings of Ray's next to ours.
    """
    with nodes(0, 2, **more):
        import ray

        yield ray


@contextmanager
def nodes(count: int, processors: int = 0, **more: str) -> Iterator[Any]:
    """A cluster of this many nodes on this machine next to the first one.

    It is ended here, and by no exit handler: that would run in children forked by later tests, and crash there.

    Args:
        count: how many nodes there are next to the first one.
        processors: those of the first one for workers.
        more: settings of Ray's next to ours.
    """
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
    """Enters a cluster of several nodes, for the first time or again."""
    import ray

    ray.init(address=made.address, **SILENT)


def add(made: Any, **options: Any) -> Any:
    """Adds a node to a cluster of several."""
    return _patiently(lambda: made.add_node(object_store_memory=OPTIONS["object_store_memory"], **options))


def raylet_of(node: Any) -> int:
    """The number of a node's own process, which holds its objects, too."""
    pid: int = node.all_processes["raylet"][0].process.pid
    return pid
