"""If upstream's torchdata is installed in the same folder as this package, every import emits a warning."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import torchdata
from fresh_processes import run_python
from needing import needs

PACKAGE = Path(torchdata.__file__).parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder like site-packages, which contains a copy of the package."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, folder / "torchdata")
    return folder


def warnings_of(program: str, site: Path) -> str:
    done = run_python("-W", "always", "-c", program, PYTHONPATH=str(site), PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(site / "torchdata" / "__init__.py")
    return done.stderr


@pytest.mark.parametrize(
    ("package", "upstream"),
    [
        ("dataloader2", "__version__ = '0.11.0+cpu'"),
        ("datapipes", "__version__ = '0.11.0+cpu'"),
        ("datapipes", ""),  # upstream without its version module
        ("nodes", "__version__ = '0.8.0'"),
        ("stateful_dataloader", "__version__ = '0.7.1'"),
    ],
)
def test_a_package_whose_front_door_upstream_has_replaced_warns_and_names_the_repair(
    package: str, upstream: str, site: Path
) -> None:
    if package in ("nodes", "stateful_dataloader"):
        needs("torch", f"torchdata.{package} imports it")
    ours = (site / "torchdata" / "__init__.py").read_text()
    program = f"import torchdata.{package}; print(torchdata.__file__)"
    assert "belongs to torchdata-rs" not in warnings_of(program, site)
    try:
        (site / "torchdata" / "__init__.py").write_text(upstream)
        said = warnings_of(program, site)
    finally:
        (site / "torchdata" / "__init__.py").write_text(ours)
    version = upstream.partition("'")[2].rstrip("'") or "without a version"
    assert f"torchdata.{package} belongs to torchdata-rs {torchdata.__version__}" in said
    assert f"`import torchdata` found torchdata {version}:" in said
    assert "pip install --force-reinstall --no-deps" in said


def test_two_distributions_in_one_folder_are_named_when_the_package_is_imported(site: Path) -> None:
    beside = site / "torchdata-0.11.0.dist-info"
    without_files = site / "torchdata-0.11.0+rs.0.1.0.dist-info"
    program = "import torchdata; print(torchdata.__file__)"
    try:
        without_files.mkdir()
        assert "side by side" not in warnings_of(program, site)
        beside.mkdir()
        said = warnings_of(program, site)
    finally:
        without_files.rmdir()
        beside.rmdir()
    assert "<string>:1: UserWarning: the distributions torchdata 0.11.0 and torchdata-rs" in said
