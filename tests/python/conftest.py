"""Pytest hooks and fixtures that all Python tests use."""

import fcntl
import gc
import itertools
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

from fresh_processes import LEAN, run_python
from http_server import Server, running
from loopback import Loopback

# Hypothesis's deadline would fail tests on a slow machine, and pytest-timeout already limits each test. Each run uses
# the same examples of Hypothesis, whereas `pytest --hypothesis-profile=random` searches for new examples.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("project", settings.get_profile("random"), derandomize=True)
settings.load_profile("project")


#: Modules with tests that need the whole machine, kill processes, or check for leftovers of processes.
ALONE = (
    "test_demo",
    "test_disk_caching_processes",
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
    """Lets Ctrl-C interrupt tests that a shell runs in the background, and disables warnings about waiting."""
    os.environ["TORCHDATA_WAIT_WARNING"] = "0"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Pauses garbage collection while pytest imports the test modules, because the imported objects stay alive."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Makes importing torch faster in processes that tests start (see `support/lean`).

    The pytest process does not use `lean`, because `gc.freeze` could hide leaked objects from tests."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if LEAN not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [LEAN, *paths]))


@pytest.fixture(autouse=True)
def lance_does_not_mention_forks() -> None:
    """Disables Lance's warning at every fork, because tests that check warnings would fail."""
    lance = sys.modules.get("lance")
    if lance is not None:
        lance.warnings = SimpleNamespace(warn=lambda *_, **__: None)  # type: ignore[attr-defined]


STARTS = re.compile(
    r"subprocess|multiprocessing|MultiProcessing|num_workers|os\.fork|process_checks|_job\b|check_loader"
)


def is_alone(path: Path) -> bool:
    return path.stem.startswith(ALONE)


def may_run_alone(path: Path) -> bool:
    return is_alone(path) or "mark.alone" in path.read_text(encoding="utf-8")


def is_of_ray(path: Path) -> bool:
    return "*of_ray" in path.read_text(encoding="utf-8")


def is_unit(path: Path) -> bool:
    return not may_run_alone(path) and not is_of_ray(path) and STARTS.search(path.read_text(encoding="utf-8")) is None


def may_run_in_parallel(path: Path) -> bool:
    return not is_alone(path) and not is_of_ray(path)


#: For each value of pytest's option `-m`, a function that returns whether a test file may contain selected tests.
HAS_SOME = {"alone": may_run_alone, "not alone and not ray": may_run_in_parallel, "ray": is_of_ray, "unit": is_unit}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips files without a test of the requested kind, because importing files takes long."""
    has_some = HAS_SOME.get(config.option.markexpr)
    if has_some is None or not collection_path.match("test_*.py"):
        return None
    return None if has_some(collection_path) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_alone(item.path):
            item.add_marker("alone")
    for path, tests in itertools.groupby(items, key=lambda item: item.path):
        if is_unit(path):
            for item in tests:
                item.add_marker("unit")


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.fixture(autouse=True, scope="module")
def _small_heap() -> None:
    """Excludes existing objects from garbage collection, so that the many collections in tests are fast."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _every_interrupt_is_raised() -> Iterator[None]:
    """Removes the garbage collector's callbacks, because Python prints their exceptions instead of raising them."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks


@pytest.fixture(autouse=True)
def _this_process_is_no_worker() -> Iterator[None]:
    """Fails a test that leaves torch's worker info set, because later loaders would read only this worker's shard."""
    yield
    worker = sys.modules.get("torch.utils.data._utils.worker")
    info = getattr(worker, "_worker_info", None)
    if worker is not None and info is not None:
        worker._worker_info = None  # type: ignore[attr-defined]
        pytest.fail(f"the test did not reset torch's worker info in its process: {info}")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the documentation, and fails if Sphinx emits a warning."""
    for module in ("furo", "myst_parser", "sphinx", "sphinx_copybutton"):
        pytest.importorskip(module, reason=f"building the documentation needs {module}")
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # all workers of pytest-xdist use one folder
        root = root.parent
    folder = root / "site"
    with (root / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "index.html").exists():
            folder.mkdir(exist_ok=True)
            _build_site(folder)
    return folder


def _build_site(folder: Path) -> None:
    run = run_python(Path(__file__).resolve().parents[2] / "tools/build_site.py", folder, folder=folder)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.fixture
def loopback() -> Loopback:
    return Loopback()


@pytest.fixture(scope="module")
def _web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture
def web(_web: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Runs an HTTP server for an empty folder, without a proxy, and with short pauses before retries."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setattr("torchdata.datapipes.iter.web.client.BACKOFF", 0.001)
    for file in _web.folder.iterdir():
        file.unlink()
    return _web
