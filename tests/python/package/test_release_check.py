"""The release check finds problems that must prevent a release."""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "tools"
sys.path.insert(0, str(TOOLS))

import release_check  # noqa: E402

INFO = "torchdata_rs-1.0.0.dist-info"
GOOD = {
    "torchdata/__init__.py": b"",
    "torchdata/py.typed": b"",
    "torchdata/_native.abi3.so": b"\0" * 100,
    f"{INFO}/METADATA": b"Name: torchdata-rs\nLicense-Expression: BSD-3-Clause\nVersion: 1.0.0\n",
    f"{INFO}/WHEEL": b"",
    f"{INFO}/RECORD": b"",
    f"{INFO}/licenses/LICENSE": b"",
    f"{INFO}/licenses/THIRD-PARTY-NOTICES.txt": b"",
    f"{INFO}/sboms/torchdata-py.cyclonedx.json": b"{}",
}


def wheel(folder: Path, **changed: bytes | None) -> Path:
    """Builds a wheel from the required files and `changed` (contents by path). None as content removes the file."""
    folder.mkdir(exist_ok=True)
    path = folder / "torchdata_rs-1.0.0-cp311-abi3-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**GOOD, **changed}.items():
            if content is not None:
                archive.writestr(zipfile.ZipInfo(name), content)
    return path


def test_a_wheel_of_the_package_alone_passes(tmp_path: Path) -> None:
    assert "9 files" in release_check.check_wheel(wheel(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("torchdata/tests/test_one.py", b"", "tests or a demo"),
        ("torchdata/demo/__main__.py", b"", "tests or a demo"),
        ("examples/one.py", b"", "the wheel contains"),
        ("torchdata/_native.abi3.so", bytes(release_check.BINARY + 1), "more than 5,000,000 bytes"),
        ("torchdata/_second.abi3.so", b"", "has the binaries"),
        ("torchdata/py.typed", None, "no py.typed"),
        (f"{INFO}/METADATA", b"License: BSD\n", "PEP 639"),
    ],
)
def test_an_error_names_files_that_do_not_belong_in_a_wheel(
    name: str, content: bytes | None, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(release_check.Failed, match=complaint):
        release_check.check_wheel(wheel(tmp_path, **{name: content}))


def test_an_error_names_the_file_in_which_two_builds_differ(tmp_path: Path) -> None:
    first, second = wheel(tmp_path / "first"), wheel(tmp_path / "second")
    assert "sha256" in release_check.check_reproducible(first, second)
    other = wheel(tmp_path / "other", **{"torchdata/__init__.py": b"other"})
    with pytest.raises(release_check.Failed, match=r"differ in \['torchdata/__init__.py'\]"):
        release_check.check_reproducible(first, other)


def test_an_sdist_without_a_license_or_with_compiled_files_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "torchdata_rs-1.0.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("torchdata_rs-1.0.0/Cargo.toml"), io.BytesIO())
    with pytest.raises(release_check.Failed, match="LICENSE"):
        release_check.check_sdist(path)


def test_the_version_is_the_same_in_all_files_and_a_release_needs_a_heading() -> None:
    version = release_check.tomllib.loads(release_check.text_of("Cargo.toml"))["workspace"]["package"]["version"]
    assert version in release_check.check_versions(version, is_release=False)
    with pytest.raises(
        release_check.Failed, match=r"the version is not 99\.0\.0 in .*Cargo.*CITATION.*conda.*_version"
    ):
        release_check.check_versions("99.0.0", is_release=False)
    if f"## [{version}]" not in release_check.text_of("CHANGELOG.md"):
        with pytest.raises(release_check.Failed, match="no heading"):
            release_check.check_versions(version, is_release=True)


def test_readme_s_examples_without_pytorch_are_a_subset_of_those_with_it() -> None:
    with_torch, without = release_check.readme_programs(True), release_check.readme_programs(False)
    assert without.keys() < with_torch.keys()
    assert without
