"""If upstream's torchdata is installed in the same folder as this package, every import emits a warning."""

import os
import shutil
from pathlib import Path

import pytest

import torchdata
from fresh_processes import LEAN, run_python
from needing import needs

PACKAGE = Path(torchdata.__file__).parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, folder / "torchdata")
    return folder


def warnings_of(site: Path, *packages: str) -> str:
    names = ", ".join(["torchdata", *(f"torchdata.{package}" for package in packages)])
    program = f"import {names}; print(torchdata.__file__)"
    path = os.pathsep.join([str(site), LEAN])
    done = run_python("-W", "always", "-c", program, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(site / "torchdata" / "__init__.py")
    return done.stderr


@pytest.mark.parametrize(
    ("version", "packages"),
    [
        ("0.11.0+cpu", ["dataloader2", "datapipes"]),
        ("without a version", ["datapipes"]),
        ("0.8.0", ["nodes", "stateful_dataloader"]),
    ],
)
def test_a_package_whose_front_door_upstream_has_replaced_warns_and_names_the_repair(
    version: str, packages: list[str], site: Path
) -> None:
    if "nodes" in packages:
        needs("torch", "the installed packages import torch")
    ours = (site / "torchdata" / "__init__.py").read_text()
    assert "belongs to torchdata-rs" not in warnings_of(site, *packages)
    try:
        upstream = "" if version == "without a version" else f"__version__ = {version!r}"
        (site / "torchdata" / "__init__.py").write_text(upstream)
        message = warnings_of(site, *packages)
    finally:
        (site / "torchdata" / "__init__.py").write_text(ours)
    for package in packages:
        assert f"torchdata.{package} belongs to torchdata-rs {torchdata.__version__}" in message
    assert f"`import torchdata` found torchdata {version}:" in message
    assert "pip install --force-reinstall --no-deps" in message


def test_two_distributions_in_one_folder_are_named_when_the_package_is_imported(site: Path) -> None:
    installed = site / "torchdata-0.11.0.dist-info"
    without_files = site / "torchdata-0.11.0+rs.0.1.0.dist-info"
    try:
        without_files.mkdir()
        assert "side by side" not in warnings_of(site)
        installed.mkdir()
        message = warnings_of(site)
    finally:
        without_files.rmdir()
        installed.rmdir()
    assert "<string>:1: UserWarning: the distributions torchdata 0.11.0 and torchdata-rs" in message
