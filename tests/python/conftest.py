"""Settings that all Python tests share."""

from __future__ import annotations

import fcntl
import gc
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

from fresh_processes import LEAN, python_path
from http_server import Server, running
from loopback import Loopback

# Deadlines measure the machine, not the code; the watchdog of each test is pytest-timeout's. All changes are tested
# with the same examples. `pytest --hypothesis-profile=random` searches for new examples.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("project", settings.get_profile("random"), derandomize=True)
settings.load_profile("project")


#: Modules with tests that start processes which need the whole machine, kill processes, or check for leftovers.
ALONE = (
    "test_demo",
    "test_disk_caching_processes",
    "test_accelerate",
    "test_distributed",
    "test_examples",
    "test_multiprocessing",
    "test_nodes_processes",
    "test_nodes_random",
    "test_nodes_threads",
    "test_drivers",
    "test_reference",
    "test_site",
    "test_stateful",
)


def pytest_configure() -> None:
    """Lets Ctrl-C work in the processes of tests: a shell that runs them in the background has it ignored.

    A busy machine makes any epoch long, so loaders must not warn of long epochs.
    """
    os.environ["TORCHDATA_WAIT_WARNING"] = "0"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Lets processes that tests start import torch at less expense: see `support/lean`.

    Objects of pytest itself are excluded: importing them could remove objects from later searches that the test has
    left.
    """
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if LEAN not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [LEAN, *paths]))


@pytest.fixture(autouse=True)
def lance_says_nothing_of_forks() -> None:
    """Mutes Lance's hook, which warns at every fork once a test has imported it: tests of warnings look for ours."""
    lance = sys.modules.get("lance")
    if lance is not None:
        lance.warnings = SimpleNamespace(warn=lambda *_, **__: None)  # type: ignore[attr-defined]


#: Names that files contain if their tests start processes. All other files contain unit tests.
STARTS = re.compile(
    r"subprocess|multiprocessing|MultiProcessing|num_workers|os\.fork|process_checks|_job\b|check_loader"
)


def is_alone(path: Path) -> bool:
    """Whether none of the file's tests is to run next to other ones."""
    return path.stem.startswith(ALONE)


def may_run_alone(path: Path) -> bool:
    """Whether the file may have tests that are not to run next to other ones."""
    return is_alone(path) or "mark.alone" in path.read_text(encoding="utf-8")


def is_of_ray(path: Path) -> bool:
    """Whether the file has tests that start clusters of Ray."""
    return "*of_ray" in path.read_text(encoding="utf-8")


def is_unit(path: Path) -> bool:
    """Whether the file has tests that start no process."""
    return not may_run_alone(path) and not is_of_ray(path) and STARTS.search(path.read_text(encoding="utf-8")) is None


def may_run_beside(path: Path) -> bool:
    """Whether the file may have tests that run next to other ones."""
    return not is_alone(path) and not is_of_ray(path)


#: By the marks that are asked for, which files may have such tests.
HAS_SOME = {
    "alone": may_run_alone,
    "not alone and not ray": may_run_beside,
    "ray": is_of_ray,
    "unit": is_unit,
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out files without tests of the requested kind, because their imports take longer than the tests."""
    has_some = HAS_SOME.get(config.option.markexpr)
    if has_some is None or not collection_path.match("test_*.py"):
        return None
    return None if has_some(collection_path) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests that do not run next to other ones, and tests that start no process."""
    for item in items:
        if is_alone(item.path):
            item.add_marker("alone")
    for path, tests in itertools.groupby(items, key=lambda item: item.path):
        if is_unit(path):
            for item in tests:
                item.add_marker("unit")


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the library believe that torch is not loaded."""
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.fixture(autouse=True, scope="module")
def _small_heap() -> None:
    """Hides objects of imports and of earlier files from the garbage collector, because many tests run the
    collector."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _every_interrupt_is_raised() -> Iterator[None]:
    """Removes the hook of hypothesis that makes the garbage collector call Python code.

    If Ctrl-C interrupts such a call, the exception is reported and not raised.
    """
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks


@pytest.fixture(autouse=True)
def _this_process_is_no_worker() -> Iterator[None]:
    """Fails a test that does not reset torch's worker info, because later loaders in this process would read the share
    of a worker."""
    yield
    worker = sys.modules.get("torch.utils.data._utils.worker")
    info = getattr(worker, "_worker_info", None)
    if worker is not None and info is not None:
        worker._worker_info = None  # type: ignore[attr-defined]
        pytest.fail(f"the test has left the info of a worker in its process: {info}")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the documentation as `make docs` builds it. A warning of Sphinx fails it."""
    for module in ("furo", "myst_parser", "sphinx"):
        pytest.importorskip(module, reason="it is a tool of development")
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # one for all of them
        root = root.parent
    folder = root / "site"
    with (root / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "index.html").exists():
            folder.mkdir(exist_ok=True)
            _build_site(folder)
    return folder


def _build_site(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": python_path()}
    command = [sys.executable, str(Path(__file__).resolve().parents[2] / "tools/build_site.py"), str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=folder, env=environment)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.fixture
def loopback() -> Loopback:
    """A link to oneself."""
    return Loopback()


@pytest.fixture(scope="module")
def _web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture
def web(_web: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """An HTTP server over an empty folder, reached without a proxy and, after a fault, without a long wait."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setattr("torchdata.datapipes.iter.web.client.BACKOFF", 0.001)
    for file in _web.folder.iterdir():
        file.unlink()
    return _web
